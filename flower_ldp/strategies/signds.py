"""SignDS training as a Flower strategy: sparse private reports in, one model step out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from types import NoneType

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from flower_ldp.mechanisms.selection import sum_of_signs
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.privacy import Unit, compose
from flower_ldp.strategies.checks import must_be
from flower_ldp.strategies.endings import stop_if_in_vain
from flower_ldp.strategies.exchange import (
    account,
    cost_metrics,
    moved_model,
    propose,
    reply_metrics,
)
from flower_ldp.strategies.health import Health, HealthWatch
from flower_ldp.strategies.patience import patient_start
from flower_ldp.strategies.replies import Complaints
from flower_ldp.strategies.server_optimizer import FixedLength, ServerOptimizer
from flower_ldp.strategies.signds_round import Round, Tally
from flower_ldp.strategies.spending import Proposals, SpendingReport
from flower_ldp.strategies.step_size import FixedStep, LearnedStep, Question, Scaling, StepSize
from flower_ldp.wire.layout import ModelLayout
from flower_ldp.wire.signds import SignDSProposal

_log = logging.getLogger("flwr")


class SignDSStrategy(FedAvg):
    """Federated training from SignDS reports.

    An ordinary Flower strategy: sampling, ``start`` and ``evaluate_fn`` are those of FedAvg.
    Clients run :class:`~flower_ldp.clients.LdpMod` with
    :class:`~flower_ldp.clients.SignDSRelease`; no gradient, loss or count of theirs arrives
    here. The server moves the model along the sum of the reported signs.

    Parameters
    ----------
    mechanism : SignDS
        The dimension selection that clients are asked for. Without k, K and h are chosen for
        the model of the round, and each proposal states them.
    step : LearnedStep or FixedStep
        Step size: learned from one more private bit per client (MagRR), or fixed.
    scaling : {"published", "unbiased"}
        See :mod:`flower_ldp.strategies.step_size`.
    server_optimizer : ServerOptimizer, optional
        Momentum or steps of fixed length; works on the privatized sum, at no cost in
        privacy. Its state belongs to one run. Steps of fixed length need a FixedStep.
    health : Health, optional
        Asks for one more private bit per report, whether it is neutral, and stops the run where
        too many are. By default no such bit is asked for.
    fraction_train, min_train_nodes, min_available_nodes, arrayrecord_key, configrecord_key
        As in FedAvg.
    fraction_evaluate, min_evaluate_nodes, evaluate_metrics_aggr_fn
        As in FedAvg, except that the fraction is 0 by default: metrics that clients send
        raw are a leak, and the gate refuses them. Use ``evaluate_fn`` on the server.

    Raises
    ------
    ValueError
        For a learned step with an optimizer of fixed length: clients would pay for bits
        that set no length.
    TypeError
        If the mechanism, the step, the optimizer or the health is of another type.

    Examples
    --------
    >>> from flower_ldp.mechanisms import MagRR, SignDS
    >>> strategy = SignDSStrategy(
    ...     SignDS(epsilon=8.0), LearnedStep(MagRR(epsilon=1.0)), fraction_train=0.5
    ... )
    """

    def __init__(
        self,
        mechanism: SignDS,
        step: LearnedStep | FixedStep,
        *,
        scaling: Scaling = "published",
        server_optimizer: ServerOptimizer | None = None,
        health: Health | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        evaluate_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
    ) -> None:
        must_be("mechanism", mechanism, SignDS, "a SignDS, as SignDS(epsilon=8.0)")
        must_be(
            "step",
            step,
            (LearnedStep, FixedStep),
            "a LearnedStep or a FixedStep, as LearnedStep(MagRR(epsilon=1.0)) or FixedStep(0.1)",
        )
        must_be("health", health, (Health, NoneType), "a Health, as Health(epsilon=0.5)")
        if isinstance(step, LearnedStep) and isinstance(server_optimizer, FixedLength):
            raise ValueError(
                "steps of fixed length ignore a learned size: clients would pay "
                f"epsilon {step.magnitude.epsilon:g} a round for a bit that is never used; "
                "pass a FixedStep, or another server optimizer"
            )
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
        self.step_size = StepSize(step, scaling)
        self.scaling = scaling
        self.server_optimizer = server_optimizer
        self._round: Round | None = None
        self._planned: set[int] = set()
        self._complaints = Complaints()
        self._health = HealthWatch(health)
        self.proposals = Proposals()

    start = patient_start

    def summary(self) -> None:
        """Log the configuration, what it costs and how to learn the step size if it is not."""
        spent = compose(self._proposal(self.mechanism, self.step_size.question(1.0)).events())
        _log.info("\t├──> SignDS: %s", self.mechanism)
        _log.info("\t│\t├──Cost of a round: at most %s", spent[Unit.CLIENT])
        _log.info("\t│\t├──Scaling: %s", self.scaling)
        if self.server_optimizer is not None:
            _log.info("\t│\t├──Server optimizer: %s", self.server_optimizer.describe())
        if self.step_size.estimate is None:
            _log.info(
                "\t│\t└──Step: fixed rate; to learn it from one private bit per client, set "
                "sign_mag_eps in the configuration or pass step=LearnedStep(MagRR(epsilon=...))"
            )
        else:
            _log.info("\t│\t└──Step: learned by MagRR from %s", self.step_size.estimate)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample clients as FedAvg does, and add the round's proposal to each message.

        Raises
        ------
        ValueError
            If reports about a model of this size could make no step. Nobody was asked.
        """
        messages = list(super().configure_train(server_round, arrays, config, grid))
        model = {name: array.numpy() for name, array in arrays.items()}
        layout = ModelLayout.of(model)
        available = len(list(grid.get_node_ids()))
        participation = len(messages) / available if available else 0.0
        self._warn_once(layout.dimension)
        mechanism = self.mechanism.sized(layout.dimension)
        proposal = self._proposal(mechanism, self.step_size.question(participation))
        plan = mechanism.plan(layout.dimension, quiet=True)
        self.step_size.check(plan)
        nodes = propose(messages, proposal.to_fields(), proposal.events(), self.proposals)
        self._round = Round(server_round, model, layout, plan, proposal, nodes)
        return messages

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
            report); ``r-est`` and ``magnitude-majority`` (B: 1 yes, 0 no, -1 undecided) where
            bits were asked for; ``failing-share`` and ``failing-share-error`` where health bits
            were; ``epsilon-round`` and ``epsilon-total`` (worst client, pure).

        Raises
        ------
        RunStopped
            If going on would be in vain (:mod:`flower_ldp.strategies.endings`).
        """
        current = self._round
        if current is None or current.server_round != server_round:
            raise RuntimeError(f"round {server_round} was not configured by this strategy")
        self._round = None
        tally = Tally(current, self._health, self._complaints)
        total = sum_of_signs(tally.selections(replies), current.layout.dimension)
        events = current.proposal.events()
        account(tally.filter, events, self.proposals, self._complaints, server_round)
        majority = None
        if current.proposal.magnitude is not None:
            majority = self.step_size.learn(tally.ones, tally.filter.accepted)
        metrics = self._metrics(current, tally, majority)
        stop_if_in_vain(tally.filter, server_round)
        self._health.check(server_round)
        if tally.filter.accepted == 0:
            return None, metrics
        moved = self._moved(current, total, tally.filter.accepted)
        if moved is None:
            _log.error("the step of round %d is not finite: the model stays", server_round)
        return moved, metrics

    def privacy_spent(self, *, delta: float = 1e-6) -> SpendingReport:
        """Return what clients have spent on this server's proposals, in the worst case.

        The clients' own ledgers are the truth. Needs the extra ``accounting`` for the
        approximate bound; without it, or where that is larger, the sums stand alone.

        Parameters
        ----------
        delta : float
            Of the approximate bound and of the conditional line, in (0, 1).
        """
        return self.proposals.report(delta=delta)

    def _moved(self, current: Round, total: NDArray[np.int32], reports: int) -> ArrayRecord | None:
        asked = current.proposal.magnitude is not None
        factor = self.step_size.factor(reports, current.plan, asked=asked)
        with np.errstate(over="ignore", invalid="ignore"):
            step = np.float32(factor) * total.astype(np.float32)
            if self.server_optimizer is not None:
                step = self.server_optimizer.step(step, current.server_round)
        return moved_model(current.layout, current.model, step)

    def _metrics(self, current: Round, tally: Tally, majority: int | None) -> MetricRecord:
        values = reply_metrics(tally.filter, tally.payload_bytes)
        if current.proposal.magnitude is not None and self.step_size.estimate is not None:
            values["r-est"] = self.step_size.estimate.value
            values["magnitude-majority"] = -1 if majority is None else majority
        values.update(self._health.values())
        values.update(cost_metrics(current.proposal.events(), self.proposals))
        return MetricRecord(values)  # type: ignore[arg-type]

    def _proposal(self, mechanism: SignDS, question: Question | None) -> SignDSProposal:
        health = self._health.epsilon
        if question is None:
            return SignDSProposal(mechanism, health_epsilon=health)
        return SignDSProposal(mechanism, question.epsilon, question.threshold, health)

    def _warn_once(self, dimension: int) -> None:
        """Say that the top set is small, by the mechanism as it was given, not at every round."""
        self.mechanism.plan(dimension, quiet=dimension in self._planned)
        self._planned.add(dimension)
