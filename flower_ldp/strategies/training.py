"""What strategies that train from private updates share: all but the mechanism's arithmetic.

A round is asked for and remembered, its reports are decoded one by one and added up, what they
cost is written down, a run in vain is stopped, and the model is moved. A strategy for a mechanism
states two things: its :class:`~flower_ldp.strategies.tally.Tally`, which is one round of it, and
the lines that describe it.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from flower_ldp.mechanisms.subspace import Subspace
from flower_ldp.strategies.deadlines import patient_start
from flower_ldp.strategies.following import Following
from flower_ldp.strategies.forecast import (
    NoiseWatch,
    Preview,
    Prospect,
    tell_of_part,
    tell_of_statistics,
)
from flower_ldp.strategies.guards import lost_step, must_be, refuse_central_wrapper
from flower_ldp.strategies.health import Health, HealthWatch
from flower_ldp.strategies.optimizers import Forgetting, ServerOptimizer
from flower_ldp.strategies.replies import Complaints, ReplyFilter
from flower_ldp.strategies.rounds import Metrics, cost_metrics, propose, reply_metrics, settle
from flower_ldp.strategies.sampling import ClientPool, Turn, find_turn, pool_of
from flower_ldp.strategies.spending import Proposals, SpendingReport
from flower_ldp.strategies.tally import Tally, read_reports
from flower_ldp.wire.layout import ModelLayout
from flower_ldp.wire.part import Part, Trainable, named_by, patterns_of, running_statistics

_log = logging.getLogger("flwr")
MechanismT = TypeVar("MechanismT")


@dataclass(frozen=True)
class _Round:
    """What the server must remember between asking and aggregating."""

    server_round: int
    model: Mapping[str, NDArray[Any]]
    layout: ModelLayout
    tally: Tally[Any]
    nodes: list[int]


class TrainingStrategy(FedAvg, Generic[MechanismT]):
    """Federated training from private reports about updates; the base of those of this package.

    Parameters
    ----------
    mechanism : object
        What clients are asked for, of the strategy's own type.
    server_optimizer : ServerOptimizer, optional
        Works on the step that a round says, at no cost in privacy. Its state belongs to one run.
    health : Health, optional
        Asks for one more private bit per report, whether it is neutral, and stops the run where
        too many are. By default no such bit is asked for.
    answers_per_client : int or ClientPool, optional
        How often a client is asked in a whole run, by sampling without replacement; a
        :class:`~flower_ldp.strategies.ClientPool` to share it with an evaluation or to keep it
        in a file. By default every round samples anew, as FedAvg does.
    trainable : str or sequence of str, optional
        Names or patterns (``"head.*"``) of the arrays that reports are about; others are sent to
        clients and never move. By default all floating-point arrays but running statistics.
    subspace : Subspace, optional
        Public; reports are about the update's projection onto it, and the model moves in it
        alone. By default reports are about the update, weight by weight.
    fraction_train, min_train_nodes, min_available_nodes, arrayrecord_key, configrecord_key
        As in FedAvg.
    fraction_evaluate, min_evaluate_nodes, evaluate_metrics_aggr_fn
        As in FedAvg, except that the fraction is 0 by default: metrics that clients send
        raw are a leak, and the gate refuses them. Use ``evaluate_fn`` on the server.

    Raises
    ------
    TypeError
        If the mechanism, the health or the part is of another type.
    """

    #: Type of the mechanism, and what to write for one.
    _mechanism_type: ClassVar[type[Any]]
    _mechanism_example: ClassVar[str]

    def __init__(
        self,
        mechanism: MechanismT,
        *,
        server_optimizer: ServerOptimizer | None = None,
        health: Health | None = None,
        answers_per_client: int | ClientPool | None = None,
        trainable: Trainable | None = None,
        subspace: Subspace | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        evaluate_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
    ) -> None:
        must_be("mechanism", mechanism, self._mechanism_type, self._mechanism_example)
        must_be("health", health, (Health, NoneType), "a Health, as Health(epsilon=0.5)")
        must_be("subspace", subspace, (Subspace, NoneType), "a Subspace, as Subspace(2_000)")
        super().__init__(
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=min_train_nodes,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_available_nodes,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
        )
        self.mechanism = mechanism
        self.server_optimizer = server_optimizer
        self.subspace = subspace
        self.proposals = Proposals()
        self._trainable = patterns_of(trainable)
        self._pool = pool_of(answers_per_client)
        self._pool_is_own = self._pool is not answers_per_client
        self._complaints = Complaints()
        self._health = HealthWatch(health)
        self._round: _Round | None = None
        self._prospect = Prospect()
        self._watch: NoiseWatch | None = None

    start = patient_start

    def expect(self, rounds: int, arrays: ArrayRecord) -> None:
        """Learn of a run that begins, of so many rounds and of this model; ``start`` calls it."""
        model = {name: array.numpy() for name, array in arrays.items()}
        if self._trainable is None:
            tell_of_statistics(model)
        layout = self._layout(model)
        before = {} if self._pool is None else self._pool.asked()
        self._prospect.expect(rounds, layout.entries, max(before.values(), default=0))
        self._watch = NoiseWatch()
        self._complaints = Complaints()
        self._health.begin_run()
        if isinstance(self.server_optimizer, Forgetting):
            self.server_optimizer.forget()

    @abstractmethod
    def _tally(self, dimension: int, participation: float) -> Tally[Any]:
        """Return an empty tally of the next round.

        Parameters
        ----------
        dimension : int
            Entries that a report is about: those of the update, or the subspace's.
        participation : float
            Fraction of the available clients that are asked.

        Raises
        ------
        ValueError
            If reports about so many entries could make no step. Nobody was asked.
        """

    @abstractmethod
    def _description(self) -> Iterable[str]:
        """Return lines for the log: the configuration, and what it costs."""

    def _preview(self, dimension: int | None) -> Preview | None:
        """Return what can be said of a round before it; None says nothing of worth.

        Parameters
        ----------
        dimension : int or None
            Entries that a report is about; None if they are not known yet.
        """
        return None

    def summary(self) -> None:
        """Log what a client spends in all, the configuration, and what the run can learn.

        The model and the rounds are known once ``start`` was called, and what can be learned from
        the first round on, which logs it.
        """
        preview = self._preview(self._prospect.entries)
        lines = list(self._description())
        if preview is not None:
            total = self._prospect.total(preview, self._answers)
            lines.insert(0, f"\t├──> Total of a client by training: {total}")
            run = self._prospect.lines(preview, self._answers)
            lines += ["\t├──> The run", *(f"\t│\t├──{line}" for line in run)]
        for line in lines:
            _log.info("%s", line)
        if self._trainable is not None:
            _log.info("\t├──> Trained: %s", ", ".join(self._trainable))
        if self.subspace is not None:
            within = self.subspace
            _log.info("\t├──> In %d public dimensions, seed %d", within.dimension, within.seed)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample clients as FedAvg does, and add the round's proposal to each message.

        Raises
        ------
        ValueError
            If reports about a model of this size could make no step, ``trainable`` names what is
            none of its floating-point arrays, or the subspace has more dimensions than they have
            weights. Nobody was asked.
        TypeError
            If a central wrapper of Flower's stands around it. Nobody was asked.
        RuntimeError
            If the server optimizer goes by the run, and knows of none. Nobody was asked.
        """
        refuse_central_wrapper(type(self).__name__)
        model = {name: array.numpy() for name, array in arrays.items()}
        layout = self._layout(model)
        turn = find_turn(
            grid, self._pool, self.fraction_train, self.min_train_nodes, self.min_available_nodes
        )
        self._round = None
        if turn is None:
            return []
        tally = self._tally(layout.entries, turn.size / turn.present)
        asked = tally.proposal
        fields, events = {**asked.to_fields(), **layout.part.to_fields()}, asked.events()
        weights = [model[spec.name] for spec in layout.updated]
        self._tell(turn, layout, weights)
        self._plan_steps(server_round, turn)
        config["server-round"] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        nodes = propose(turn, content, fields, events, self.proposals)
        self._round = _Round(server_round, model, layout, tally, nodes)
        return self._construct_messages(content, nodes, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Move the model by the reports of this round.

        Returns
        -------
        arrays : ArrayRecord or None
            The new model; None, which keeps the old one, if no report was usable.
        metrics : MetricRecord or None
            ``accepted``, ``rejected`` and ``rejected-<reason>``; ``bytes-up`` (payload per
            report); the mechanism's own; ``failing-share`` and ``failing-share-error`` where
            health bits were asked for; ``epsilon-total`` (worst client, a sum) and
            ``epsilon-round``, and ``delta-total`` and ``delta-round`` where there are deltas.

        Raises
        ------
        RunStopped
            If going on would be in vain (:mod:`flower_ldp.strategies.stopping`).
        """
        current = self._round
        if current is None and (self._pool is not None or self.fraction_train == 0.0):
            return None, None
        if current is None or current.server_round != server_round:
            raise RuntimeError(f"round {server_round} was not configured by this strategy")
        self._round = None
        if not current.nodes:
            return None, None
        judge = ReplyFilter(current.nodes, self._complaints)
        self._health.begin()
        read_reports(replies, judge, self._health, current.tally)
        self._settle(current, judge)
        own = current.tally.close(judge.accepted)
        self._health.check(server_round)
        moved = self._moved(current, judge.accepted) if judge.accepted else None
        if judge.accepted and self._watch is not None and self._watch.watches:
            self._watch.add(current.tally.summed(), judge.accepted)
        return moved, self._metrics(current, judge, own)

    def privacy_spent(self, *, delta: float = 1e-6) -> SpendingReport:
        """Return what clients have spent on this server's proposals, in the worst case.

        Epsilons and deltas add up. The clients' own ledgers are the truth. Needs the extra
        ``accounting`` for the approximate bound; without it, or where that is larger, the sums
        stand alone.

        Parameters
        ----------
        delta : float
            Of the approximate bound and of the conditional line, in (0, 1). A bound on what has
            deltas itself must exceed their sum.
        """
        return self.proposals.report(delta=delta)

    def _layout(self, model: Mapping[str, NDArray[Any]]) -> ModelLayout:
        """Return what of the model reports are about, and where it lies."""
        patterns = self._trainable
        if patterns is None and running_statistics(model):
            patterns = ("*",)
        names = None if patterns is None else named_by(patterns, model)
        return ModelLayout.of(model, Part(names, self.subspace))

    def _tell(self, turn: Turn, layout: ModelLayout, weights: list[NDArray[Any]]) -> None:
        """Say in a run's first round what it can learn, and watch its steps from there on."""
        preview = None if self._watch is None else self._preview(self._prospect.entries)
        if self._watch is None or preview is None:
            return
        left = turn.answers_left()
        outlook = self._prospect.ask(preview, turn.present, turn.size, left)
        if outlook is not None:
            self._watch.begin(outlook)
            tell_of_part(layout, outlook)
            # A pool that came from elsewhere may be there for an evaluation too.
            own = left is not None and self._pool_is_own
            spread = self._prospect.spread(turn.present, left) if own and left else None
            if spread is not None:
                _log.warning("%s", spread)
            if isinstance(self.server_optimizer, Following):
                self.server_optimizer.begin(outlook.rounds, weights)

    def _plan_steps(self, server_round: int, turn: Turn) -> None:
        """Have steps planned for the rounds that there are clients for, before any is asked."""
        optimizer = self.server_optimizer
        if not isinstance(optimizer, Following):
            return
        if not optimizer.begun:
            raise RuntimeError(
                f"{type(optimizer).__name__} plans its steps from the run's rounds and model: run "
                "the rounds by the strategy's start, call begin, or name a FixedLength. Nobody was "
                "asked"
            )
        rounds = self._prospect.rounds_by_now(server_round, turn.size, turn.answers_left())
        if rounds is not None:
            optimizer.lengthen(rounds)

    @property
    def _answers(self) -> int | None:
        return None if self._pool is None else self._pool.answers_per_client

    def _settle(self, current: _Round, judge: ReplyFilter) -> None:
        """Log what came back, and take off what cost nothing."""
        _log.info(
            "aggregate_train: accepted %d reports, rejected %d %s",
            judge.accepted,
            judge.rejected.total(),
            dict(judge.rejected) or "",
        )
        if judge.accepted == 0:
            _log.warning(
                "no usable report in round %d: the model stays as it is", current.server_round
            )
        events = current.tally.proposal.events()
        self.proposals.answered(events, judge.accepted)
        settle(judge, events, self.proposals, self._pool, current.server_round)

    def _metrics(self, current: _Round, judge: ReplyFilter, own: Metrics) -> MetricRecord:
        proposal, values = current.tally.proposal, reply_metrics(judge)
        if judge.accepted:  # all reports of a round have one length
            values["bytes-up"] = float(proposal.report_bytes(current.layout.entries))
        values |= {
            **own,
            **self._health.values(),
            **cost_metrics(proposal.events(), self.proposals),
        }
        return MetricRecord(values)  # type: ignore[arg-type]

    def _moved(self, current: _Round, reports: int) -> ArrayRecord | None:
        """Return the model after the round's step, or None if that is not finite.

        A model with an infinity in it could never be trained again: no client would answer.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            step = current.tally.step(reports).astype(np.float32, copy=False)
            # An optimizer that has seen one infinity proposes nothing else for ever.
            usable = self.server_optimizer is not None and bool(np.isfinite(step).all())
            if usable and isinstance(self.server_optimizer, Following):
                self.server_optimizer.hear(self._signal(current, reports), reports)
            if usable and self.server_optimizer is not None:
                step = self.server_optimizer.step(step, current.server_round)
            step = current.layout.lift(step)
            moved = current.layout.add(current.model, step)
        if not all(np.isfinite(moved[spec.name]).all() for spec in current.layout.updated):
            _log.error("the step of round %d is not finite: the model stays", current.server_round)
            return None
        lost = lost_step(current.layout, current.model, moved, step)
        if lost is not None:
            _log.warning("round %d: %s", current.server_round, lost)
        return ArrayRecord({name: Array(array) for name, array in moved.items()})

    def _signal(self, current: _Round, reports: int) -> float:
        """Return what the square of a round's sum has beyond noise, over the noise."""
        preview = self._preview(current.layout.entries)
        if preview is None:
            return 0.0
        summed = np.asarray(current.tally.summed(), dtype=np.float64)
        noise = preview.plan(current.layout.entries).pure_noise
        return noise.beyond(float(summed @ summed), reports)
