"""The base of all strategies that train from private updates."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, ClassVar, Generic, TypedDict, TypeVar, Unpack

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
from flwr.serverapp import Grid, strategy
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from flower_ldp.errors import quoted
from flower_ldp.mechanisms.base import UpdateMechanism, UpdatePlan
from flower_ldp.mechanisms.hadamard import Subspace
from flower_ldp.parameter_bounds import must_be
from flower_ldp.privacy import Unit, compose
from flower_ldp.shuffle.sealing import KEY_FIELD, sealed_length
from flower_ldp.strategies.deadlines import StrategyWithDeadlines
from flower_ldp.strategies.forecast import Forecast, log_running_statistics
from flower_ldp.strategies.optimizers import ServerOptimizer
from flower_ldp.strategies.replies import Metrics, ReplyValidator
from flower_ldp.strategies.rounds import (
    Health,
    HealthMonitor,
    RoundCallback,
    SpendingLog,
    SpendingReport,
    TrainingRound,
    Vector,
)
from flower_ldp.strategies.sampling import ClientPool, pool_of, sample_round
from flower_ldp.strategies.shuffling import Shuffler
from flower_ldp.wire import layout as layouts
from flower_ldp.wire.proposal import Field, UpdateProposal

_log = logging.getLogger("flwr")
MechanismT = TypeVar("MechanismT")
_CENTRAL = tuple(
    getattr(strategy, name) for name in strategy.__all__ if name.startswith("DifferentialPrivacy")
)
#: A step of which less than this share of the length arrives is lost.
_SHARE = 0.5


class FedAvgOptions(TypedDict, total=False):
    """FedAvg's arguments that training strategies accept."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    arrayrecord_key: str
    configrecord_key: str
    evaluate_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None


class TrainingOptions(FedAvgOptions, total=False):
    """Arguments of all training strategies: see TrainingStrategy."""

    health: Health | None
    answers_per_client: int | ClientPool | None
    trainable: layouts.Trainable | None
    subspace: Subspace | None


class TrainingStrategy(StrategyWithDeadlines, FedAvg, Generic[MechanismT]):
    """Federated training from private reports about updates.

    For any :class:`~flower_ldp.mechanisms.UpdateMechanism`: the model moves by the mean of the
    reports. Sampling, ``start`` and ``evaluate_fn`` are those of FedAvg.

    Parameters
    ----------
    mechanism : object
        Of the strategy's own type.
    server_optimizer : ServerOptimizer, optional
        Post-processes the step. Its state belongs to one run.
    health : Health, optional
        Asks for one more private bit per report, and stops the run if too many reports are neutral.
    answers_per_client : int or ClientPool, optional
        How often a client is asked in the whole run, sampled without replacement. By default, and
        with None, every round samples anew; :class:`CodewordStrategy` asks once by default.
    trainable : str or sequence of str, optional
        Names or patterns (``"head.*"``) of the arrays that reports are about; others never change.
        By default all floating-point arrays except running statistics.
    subspace : Subspace, optional
        Public. Reports are about the update's projection, and the model moves only in it.
    **fedavg
        As in FedAvg, but ``fraction_evaluate`` is 0 by default: raw metrics leak, and the gate
        refuses them. With ``answers_per_client``, ``fraction_train`` follows by default from the
        rounds of ``start``: their requests use all answers.

    Raises
    ------
    TypeError
        If an argument is unknown or of a wrong type.
    """

    #: Type of the mechanism, and what to write for one.
    _mechanism_type: ClassVar[type[Any]] = UpdateMechanism
    _mechanism_example: ClassVar[str] = "an UpdateMechanism, as Gaussian(8.0, 1e-6)"
    #: What makes the server optimizer where none is given; the mean without one.
    _default_optimizer: ClassVar[type[ServerOptimizer] | None] = None

    def __init__(
        self,
        mechanism: MechanismT,
        server_optimizer: ServerOptimizer | None = None,
        *,
        health: Health | None = None,
        answers_per_client: int | ClientPool | None = None,
        trainable: layouts.Trainable | None = None,
        subspace: Subspace | None = None,
        **fedavg: Unpack[FedAvgOptions],
    ) -> None:
        must_be("mechanism", mechanism, self._mechanism_type, self._mechanism_example)
        wanted = "a ServerOptimizer, as FixedLength(0.5, rounds=40)"
        must_be("server_optimizer", server_optimizer, (ServerOptimizer, NoneType), wanted)
        if server_optimizer is None and self._default_optimizer is not None:
            server_optimizer = self._default_optimizer()
        must_be("subspace", subspace, (Subspace, NoneType), "a Subspace, as Subspace(2_000)")
        if unknown := fedavg.keys() - FedAvgOptions.__annotations__:
            raise TypeError(f"{type(self).__name__} has no argument {', '.join(sorted(unknown))}")
        fedavg.setdefault("fraction_evaluate", 0.0)
        super().__init__(**fedavg)
        self.mechanism = mechanism
        self.server_optimizer = server_optimizer
        self.subspace = subspace
        self.proposals = SpendingLog()
        self._trainable = layouts.patterns_of(trainable)
        self.pool = pool_of(answers_per_client)
        self.pool_is_shared = self.pool is answers_per_client and self.pool is not None
        self.spreads = self.pool is not None and "fraction_train" not in fedavg
        self._round: TrainingRound | None = None
        #: Of strategies whose reports an analyzer may add up.
        self._shuffler: Shuffler | None = None
        self._health = HealthMonitor(health)
        self._forecast = Forecast(self)
        self.callbacks: list[RoundCallback[Any]] = [self._forecast, self.proposals, self._health]

    def expect(self, rounds: int, arrays: ArrayRecord) -> None:
        """Begin a run with so many rounds and this model."""
        model = {name: array.numpy() for name, array in arrays.items()}
        if self._trainable is None:
            log_running_statistics(model)
        layout = self._layout(model)
        for callback in self.callbacks:
            callback.on_run_start(rounds, layout)
        if self.server_optimizer is not None:
            self.server_optimizer.reset()
        if self.spreads and self.pool is not None:  # of the summary: each round counts anew
            self.fraction_train = min(self.pool.answers_per_client / max(rounds, 1), 1.0)

    def _asked(self, entries: int | None, participation: float = 1.0) -> UpdateMechanism:
        return self.mechanism  # type: ignore[return-value]

    def _next(self, entries: int, participation: float) -> UpdateMechanism:
        """Return the mechanism; raise ValueError if its reports could make no step."""
        return self._asked(entries, participation)

    def _total(self, current: TrainingRound, reports: Iterable[Any]) -> Vector:
        mechanism: UpdateMechanism = current.proposal.mechanism
        return mechanism.total(reports, current.layout.entries)

    def _estimate(self, current: TrainingRound, total: Vector, reports: int) -> Vector:
        """Return the step for the sum of at least one report."""
        return np.asarray(total / reports)

    def _metrics(self, current: TrainingRound, reports: int) -> Metrics:
        return {}

    def _description(self) -> Iterator[str]:
        yield f"{type(self.mechanism).__name__}: {self.mechanism}"

    def step_rule(self) -> str:
        """Describe how the model is moved."""
        optimizer = self.server_optimizer
        return "the mean" if optimizer is None else optimizer.describe()

    def plan(self) -> Callable[[int], UpdatePlan] | None:
        """Return the mechanism's plan by number of weights."""
        return getattr(self.mechanism, "plan", None)

    def summary(self) -> None:
        """Log cost, configuration and outlook."""
        first, *more = self._description()
        cost = f"Cost of a round: at most {compose(self.proposal(None).events())[Unit.CLIENT]}"
        _log.info("\t├──> Total of a client by training: %s", self._forecast.total())
        _log.info("\t├──> %s", first)
        for line in (*more, cost, *self._forecast.lines()):
            _log.info("\t│\t├──%s", line)
        if self._trainable is not None:
            _log.info("\t├──> Trained: %s", ", ".join(self._trainable))
        if self.subspace is not None:
            within = self.subspace
            _log.info("\t├──> In %d public dimensions, seed %d", within.dimension, within.seed)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample clients and send them the round's proposal; no client is asked if it raises.

        Raises
        ------
        ValueError
            If reports could make no step, ``trainable`` names no floating-point array, or the
            subspace has more dimensions than weights.
        TypeError
            If one of Flower's central DP wrappers wraps the strategy.
        RuntimeError
            If the server optimizer, or the number of clients of a round, needs a run.
        """
        refuse_central_wrapper(type(self).__name__)
        model = {name: array.numpy() for name, array in arrays.items()}
        layout = self._layout(model)
        sample = sample_round(
            grid,
            self.pool,
            self.fraction_train,
            self.min_train_nodes,
            self.min_available_nodes,
            spread=self._forecast.rounds_from(server_round) if self.spreads else None,
        )
        self._round = None
        if sample is None:
            return []
        mechanism = self._next(layout.entries, sample.size / sample.present)
        proposal = UpdateProposal(mechanism, self._health.epsilon)
        current = TrainingRound(server_round, sample, proposal.events(), model, layout, proposal)
        fields: dict[str, Field] = {**proposal.to_fields(), **layout.part.to_fields()}
        if self._shuffler is not None:
            current.analyzer_key = self._shuffler.key(grid, server_round)
            fields[KEY_FIELD] = current.analyzer_key.to_bytes().hex()
        for callback in self.callbacks:
            callback.before_ask(current)
        config["server-round"] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        self.proposals.choose(current, content, fields)
        self._round = current
        return self._construct_messages(content, current.nodes, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Move the model by the reports of this round.

        The model is None, which keeps the old one, if no report was usable. docs/wire.md has the
        metrics.

        Raises
        ------
        RunStopped
            If further rounds would be useless (:mod:`flower_ldp.strategies.replies`).
        """
        current = self._round
        if current is None and (self.pool is not None or self.fraction_train == 0.0):
            return None, None
        if current is None or current.server_round != server_round:
            raise RuntimeError(f"round {server_round} was not configured by this strategy")
        self._round = None
        if not current.nodes:
            return None, None
        judge = ReplyValidator(current.nodes, self._health.complaints)
        mechanism, entries = current.proposal.mechanism, current.layout.entries
        key = current.analyzer_key
        if self._shuffler is not None and key is not None:
            total = self._shuffler.total(current, key, judge, replies, self._health)
        else:
            decode = self._health.decoder(lambda data: mechanism.decode(data, entries))
            total = self._total(current, judge.decode(replies, decode))
        self.proposals.answered(current.events, judge.accepted)
        _log.info(
            f"aggregate_train: accepted {judge.accepted} reports, rejected "
            f"{judge.rejected.total()} {dict(judge.rejected) or ''}"
        )
        if judge.accepted == 0:
            _log.warning(f"no usable report in round {server_round}: the model stays as it is")
        for callback in self.callbacks:
            callback.after_replies(current, judge)
        moved, values = None, judge.metrics()
        if judge.accepted:
            moved = self._moved(current, total, judge.accepted)
            for callback in self.callbacks:
                callback.after_step(current, total, judge.accepted)
            # All reports of a round have one length.
            length = current.proposal.report_bytes(entries)
            values["bytes-up"] = float(sealed_length(length) if current.analyzer_key else length)
            values |= self._metrics(current, judge.accepted)
        for callback in self.callbacks:
            values |= callback.metrics(current)
        return moved, MetricRecord(values)  # type: ignore[arg-type]

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return FedAvg's messages, which no epsilon covers."""
        messages = super().configure_evaluate(server_round, arrays, config, grid)
        return self.proposals.note_uncounted(messages)

    def privacy_spent(self, *, delta: float = 1e-6) -> SpendingReport:
        """Return the worst-case spending of clients on this server's proposals.

        Epsilons and deltas add up. The clients' ledgers are authoritative. ``delta``, of the
        approximate and the shuffle bound, is in (0, 1), above the sum of the releases' own.
        """
        return self.proposals.report(delta=delta)

    def _layout(self, model: Mapping[str, NDArray[Any]]) -> layouts.ModelLayout:
        patterns = self._trainable
        if patterns is None and layouts.running_statistics(model):
            patterns = ("*",)
        names = None if patterns is None else layouts.named_by(patterns, model)
        return layouts.ModelLayout.of(model, layouts.Part(names, self.subspace))

    def proposal(self, entries: int | None) -> UpdateProposal[UpdateMechanism]:
        """Return the proposal of a round of all clients."""
        return UpdateProposal(self._asked(entries), self._health.epsilon)

    def _moved(self, current: TrainingRound, total: Vector, reports: int) -> ArrayRecord | None:
        with np.errstate(over="ignore", invalid="ignore"):
            step = self._estimate(current, total, reports).astype(np.float32, copy=False)
            # An optimizer that has seen one infinity proposes nothing else for ever.
            if self.server_optimizer is not None and np.isfinite(step).all():
                plan, signal = self.plan(), 0.0
                if plan is not None:  # what the square of the sum has beyond noise, over the noise
                    summed = np.asarray(total, dtype=np.float64)
                    noise = plan(current.layout.entries).null_distribution
                    signal = noise.beyond(float(summed @ summed), reports)
                self.server_optimizer.on_signal(signal, reports)
                step = self.server_optimizer.step(step, current.server_round)
            step = current.layout.lift(step)
            moved = current.layout.add(current.model, step)
        if not all(np.isfinite(moved[spec.name]).all() for spec in current.layout.updated):
            _log.error("the step of round %d is not finite: the model stays", current.server_round)
            return None
        lost = precision_loss(current.layout, current.model, moved, step)
        if lost is not None:
            _log.warning("round %d: %s", current.server_round, lost)
        return ArrayRecord({name: Array(array) for name, array in moved.items()})


def refuse_central_wrapper(name: str) -> None:
    """Raise TypeError if one of Flower's central DP wrappers is among the callers.

    It would clip nothing, and add noise to a private sum.
    """
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, _CENTRAL):
            raise TypeError(
                f"{type(owner).__name__} around {name} clips nothing, since reports hold no "
                f"models, and its noise adds to a sum that is private already: run {name} "
                "without it"
            )
        frame = frame.f_back  # type: ignore[assignment]


def precision_loss(
    layout: layouts.ModelLayout,
    before: Mapping[str, NDArray[Any]],
    after: Mapping[str, NDArray[Any]],
    step: NDArray[np.floating[Any]],
) -> str | None:
    """Return a log text if float16 arrays lost most of a step, else None."""
    meant = moved = 0.0
    ends = np.cumsum([spec.size for spec in layout.updated])
    pieces = zip(layout.updated, np.split(step, ends[:-1]), strict=True)
    halves = [(spec.name, piece) for spec, piece in pieces if spec.dtype.itemsize == 2]
    for name, piece in halves:
        found = np.subtract(after[name], before[name], dtype=np.float64)
        meant += float(np.square(piece, dtype=np.float64).sum())
        moved += float(np.square(found).sum())
    if moved >= _SHARE**2 * meant:
        return None
    more = ", ..." if len(halves) > 1 else ""
    return (
        f"most of the step is lost: of the float16 arrays ({quoted(halves[0][0])}{more}) it is "
        "less than half of the last digit. Keep the model in float32 on the server"
    )
