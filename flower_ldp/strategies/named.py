"""Training strategies by name: one per mechanism of this package, and one for extensions.

**Step sizes** of SignDS, with T the sum of signs over N reports and m the magnitude:

* ``"published"``: m T with a learned m = 2 r_est, and lr T / N with a fixed rate lr;
* ``"unbiased"``: m (2 / (contrast N)) T, whose mean is m times the clients' mean top-set direction.
"""

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, Unpack, get_args

import numpy as np
from flwr.app import ArrayRecord

from flower_ldp.extensions.contract import Chosen, ExtensionReport
from flower_ldp.mechanisms.codeword import MOST_SEED, Codeword
from flower_ldp.mechanisms.gaussian import Gaussian
from flower_ldp.mechanisms.magrr import MagRR, StepEstimate
from flower_ldp.mechanisms.signds import SelectionPlan, SignDS
from flower_ldp.mechanisms.signds_round import Report, SignDSRound
from flower_ldp.parameter_bounds import Bounded, Checked, check_in, must_be
from flower_ldp.shuffle import Analyzer, ReportAnalyzer
from flower_ldp.strategies.optimizers import AgreedLength, ServerOptimizer
from flower_ldp.strategies.replies import Metrics, ReplyValidator
from flower_ldp.strategies.rounds import RoundCallback, TrainingRound, Vector
from flower_ldp.strategies.shuffling import Shuffler
from flower_ldp.strategies.training import TrainingOptions, TrainingStrategy

_log = logging.getLogger("flwr")
Scaling = Literal["published", "unbiased"]
#: A first step of so many times the weights' own length is warned of.
LONG_STEP = 1.0


@dataclass(frozen=True)
class FixedStep(Checked):
    """A fixed rate: the published rule without magnitude bits.

    ``global_lr``, positive, is the change of a reported dimension, before averaging over clients.
    """

    #: No bit is asked for.
    magnitude: ClassVar[None] = None

    global_lr: Annotated[float, Bounded("(0, inf)")]


@dataclass(frozen=True)
class LearnedStep(Checked):
    """A step size learned by MagRR, with a fixed rate for small rounds.

    ``fallback`` is the rate for rounds below ``min_participation``, a fraction of the available
    clients in [0, 1]: they ask for no bit.
    """

    magnitude: MagRR
    fallback: FixedStep | None = None
    min_participation: Annotated[float, Bounded("[0, 1]")] = 0.05


class StepSize(RoundCallback[TrainingRound]):
    """A run's step rule and its state."""

    def __init__(self, rule: FixedStep | LearnedStep, scaling: Scaling = "published") -> None:
        if scaling not in get_args(Scaling):
            raise ValueError(f"scaling must be one of {get_args(Scaling)}, got {scaling!r}")
        self._rule = rule
        #: Of rounds without bits; None if there is no such round.
        self._fixed = rule if isinstance(rule, FixedStep) else rule.fallback
        self._scaling = scaling
        self.estimate: StepEstimate | None = rule.magnitude.start() if rule.magnitude else None
        self._ones = 0
        self._learned: Metrics = {}

    def counted(self, reports: Iterable[Report]) -> Iterator[Report]:
        """Yield a round's reports, counting their bits."""
        self._ones = 0
        for report in reports:
            self._ones += report[1] or 0
            yield report

    def after_replies(self, current: TrainingRound, replies: ReplyValidator) -> None:
        """Update the estimate by the round's bits."""
        self._learned = {}
        if current.proposal.mechanism.magnitude is not None and self.estimate is not None:
            majority = self.learn(self._ones, replies.accepted)
            self._learned["r-est"] = self.estimate.value
            self._learned["magnitude-majority"] = -1 if majority is None else majority

    def metrics(self, current: TrainingRound) -> Metrics:
        """Return ``r-est`` and ``magnitude-majority``, with bits."""
        return self._learned

    def question(self, participation: float) -> tuple[float, float] | None:
        """Return epsilon and threshold to ask for, or None."""
        rule = self._rule
        if isinstance(rule, FixedStep) or self.estimate is None:
            return None
        if rule.fallback is not None and participation < rule.min_participation:
            return None
        return rule.magnitude.epsilon, self.estimate.threshold

    def check(self, plan: SelectionPlan) -> None:
        """Raise ValueError if ``"unbiased"`` is impossible."""
        if self._scaling == "unbiased":
            _ = plan.unbiasing

    def learn(self, ones: int, total: int) -> int | None:
        """Update the estimate; return the majority's answer or None."""
        magnitude = self._rule.magnitude
        if magnitude is None or self.estimate is None:
            return None
        answer = magnitude.answer(self.estimate, ones, total)
        self.estimate = magnitude.advance(self.estimate, ones, total)
        return answer

    def factor(self, reports: int, plan: SelectionPlan, *, asked: bool) -> float:
        """Return the factor of the sum of signs."""
        check_in("[1, inf)", "reports", reports, int)
        if asked and self.estimate is not None:
            magnitude, published = self.estimate.magnitude, self.estimate.magnitude
        elif self._fixed is not None:
            magnitude, published = self._fixed.global_lr, self._fixed.global_lr / reports
        else:
            raise ValueError("a round without bits needs a fixed rate")
        if self._scaling == "published":
            return published
        return magnitude * plan.unbiasing / reports


class SignDSStrategy(TrainingStrategy[SignDS]):
    """Federated training from SignDS reports.

    Clients run :class:`~flower_ldp.clients.LdpMod` with :class:`~flower_ldp.clients.SignDSRelease`.
    With magnitude bits the metrics include ``r-est`` and ``magnitude-majority`` (B: 1 yes, 0 no, -1
    undecided).

    Parameters
    ----------
    mechanism : SignDS
        Without k, K and h are chosen for the round's model.
    step : LearnedStep or FixedStep, optional
        By default only the direction of the sum counts.
    scaling : {"published", "unbiased"}
        See :mod:`flower_ldp.strategies.named`.
    server_optimizer : ServerOptimizer, optional
        Without a step, :class:`~flower_ldp.strategies.AgreedLength` by default.
    **options
        As in :class:`~flower_ldp.strategies.training.TrainingStrategy`.

    Raises
    ------
    ValueError
        For a learned step with FixedLength or AgreedLength, which would ignore the paid bits.

    Examples
    --------
    >>> from flower_ldp.mechanisms import MagRR, SignDS
    >>> untuned = SignDSStrategy(SignDS(epsilon=8.0), answers_per_client=1)
    >>> strategy = SignDSStrategy(
    ...     SignDS(epsilon=8.0), LearnedStep(MagRR(epsilon=1.0)), fraction_train=0.5
    ... )
    """

    _mechanism_type = SignDS
    _mechanism_example = "a SignDS, as SignDS(epsilon=8.0)"

    def __init__(
        self,
        mechanism: SignDS,
        step: LearnedStep | FixedStep | None = None,
        *,
        scaling: Scaling = "published",
        server_optimizer: ServerOptimizer | None = None,
        **options: Unpack[TrainingOptions],
    ) -> None:
        if step is None:
            step, server_optimizer = FixedStep(1.0), server_optimizer or AgreedLength()
        wanted = (
            "a LearnedStep or a FixedStep, as LearnedStep(MagRR(epsilon=1.0)) or FixedStep(0.1)"
        )
        must_be("step", step, (LearnedStep, FixedStep), wanted)
        super().__init__(mechanism, server_optimizer, **options)
        if step.magnitude is not None and server_optimizer and server_optimizer.sets_length:
            raise ValueError(
                "steps of planned length ignore a learned size: clients would pay "
                f"epsilon {step.magnitude.epsilon:g} a round for a bit that is never used; "
                "leave the step out, or pass another server optimizer"
            )
        self.step_size = StepSize(step, scaling)
        self.scaling = scaling
        self.callbacks.append(self.step_size)
        self._planned: set[int] = set()
        self._told_length = False

    def _asked(self, entries: int | None, participation: float = 1.0) -> SignDSRound:
        mechanism = self.mechanism if entries is None else self.mechanism.sized(entries)
        return SignDSRound(mechanism, *(self.step_size.question(participation) or ()))

    def _next(self, entries: int, participation: float) -> SignDSRound:
        # That the top set is small is said by the mechanism as it was given, and once.
        self.mechanism.plan(entries, quiet=entries in self._planned)
        self._planned.add(entries)
        asked = self._asked(entries, participation)
        self.step_size.check(asked.selection.plan(entries, quiet=True))
        return asked

    def _total(self, current: TrainingRound, reports: Iterable[Report]) -> Vector:
        return super()._total(current, self.step_size.counted(reports))

    def _estimate(self, current: TrainingRound, total: Vector, reports: int) -> Vector:
        asked: SignDSRound = current.proposal.mechanism
        plan = asked.selection.plan(current.layout.entries, quiet=True)
        factor = self.step_size.factor(reports, plan, asked=asked.magnitude is not None)
        step = np.float32(factor) * total.astype(np.float32)
        if asked.magnitude is None and self.server_optimizer is None:
            self._tell_length(current, step)
        return step

    def expect(self, rounds: int, arrays: ArrayRecord) -> None:
        """Begin a run with this number of rounds and this model; ``start`` calls it."""
        self._told_length = False
        super().expect(rounds, arrays)

    def _tell_length(self, current: TrainingRound, step: Vector) -> None:
        """Log the first step's length beside the weights' own, and warn if it is as long."""
        arrays = (current.model[spec.name] for spec in current.layout.updated)
        whole = math.sqrt(sum(float(np.square(one, dtype=np.float64).sum()) for one in arrays))
        if self._told_length or whole == 0.0:
            return
        self._told_length = True
        share = float(np.linalg.norm(step)) / whole
        told = f"the first step is {share:.2g} times as long as the trained weights"
        if share < LONG_STEP:
            _log.info("\t├──> %s", told)
        else:
            _log.warning(
                "%s: steps of a fixed rate this long seldom learn. Take a smaller sign_global_lr "
                "(FixedStep(global_lr=...)), or learn the rate by LearnedStep",
                told,
            )

    def _description(self) -> Iterator[str]:
        yield from super()._description()
        yield f"Scaling: {self.scaling}"

    def step_rule(self) -> str:
        """Describe how the model is moved."""
        optimizer = self.server_optimizer
        if optimizer is not None and optimizer.sets_length:
            return f"{optimizer.describe()}; only the direction of the sum counts"
        rule = (
            "fixed rate; to learn it from one private bit per client, set sign_mag_eps in the "
            "configuration or pass step=LearnedStep(MagRR(epsilon=...))"
        )
        if self.step_size.estimate is not None:
            rule = f"learned by MagRR from {self.step_size.estimate}"
        return rule if optimizer is None else f"{optimizer.describe()}; {rule}"

    def plan(self) -> partial[SelectionPlan]:
        """Return the mechanism's plan, without its warning."""
        return partial(self.mechanism.plan, quiet=True)


class CodewordStrategy(TrainingStrategy[Codeword]):
    """Federated training from one codeword per client, near the direction of its update.

    Clients run :class:`~flower_ldp.clients.LdpMod` with
    :class:`~flower_ldp.clients.CodewordRelease`. The metrics include ``expected-cosine``, of
    clients that agree. Each round has its own seed, counted on from the mechanism's. By default
    each client is asked once in the run (``answers_per_client=1``; None samples anew in every
    round), and steps are those of :class:`~flower_ldp.strategies.AgreedLength`. Other options are
    those of :class:`~flower_ldp.strategies.training.TrainingStrategy`.

    With an ``analyzer`` reports leave the clients as ciphertexts for it. This server sends it each
    round's in one batch without an order, and gets sums (docs/analyzer.md). The metrics then
    include ``central-epsilon``, ``central-epsilon-minimum`` and ``central-delta``.

    Examples
    --------
    >>> from flower_ldp.mechanisms import Codeword
    >>> strategy = CodewordStrategy(Codeword(epsilon=8.0))
    """

    _mechanism_type = Codeword
    _mechanism_example = "a Codeword, as Codeword(epsilon=8.0)"
    _default_optimizer = AgreedLength
    _rounds: int | None = None

    def __init__(
        self,
        mechanism: Codeword,
        server_optimizer: ServerOptimizer | None = None,
        *,
        analyzer: Analyzer | ReportAnalyzer | None = None,
        **options: Unpack[TrainingOptions],
    ) -> None:
        options.setdefault("answers_per_client", 1)
        super().__init__(mechanism, server_optimizer, **options)
        if analyzer is not None:
            self._shuffler = Shuffler(analyzer, self.proposals)
            self.callbacks.append(self._shuffler)

    def _description(self) -> Iterator[str]:
        yield from super()._description()
        if self._shuffler is not None:
            yield f"Reports are added up by an analyzer: {self._shuffler}"

    def _asked(self, entries: int | None, participation: float = 1.0) -> Codeword:
        return self.mechanism if entries is None else self.mechanism.sized(entries)

    def _next(self, entries: int, participation: float) -> Codeword:
        # Rounds count on from what the pool remembers: earlier ones were no more than it asked.
        if self._rounds is None:
            self._rounds = 0 if self.pool is None else sum(self.pool.asked().values())
        seed = (self.mechanism.seed + self._rounds) % MOST_SEED
        self._rounds += 1
        return replace(self._asked(entries), seed=seed)

    def _estimate(self, current: TrainingRound, total: Vector, reports: int) -> Vector:
        plan = self.mechanism.plan(current.layout.entries)
        return np.asarray(total / (reports * plan.projection))

    def _metrics(self, current: TrainingRound, reports: int) -> Metrics:
        plan = self.mechanism.plan(current.layout.entries)
        return {"expected-cosine": plan.cosine_of_sum(reports)}


class GaussianStrategy(TrainingStrategy[Gaussian]):
    """Federated training from updates that each client clipped and noised itself.

    Clients run :class:`~flower_ldp.clients.LdpMod` with
    :class:`~flower_ldp.clients.GaussianRelease`. The metrics include ``noise-deviation``, of an
    entry of the mean. For rounds with equal parameters
    :func:`flower_ldp.accounting.composed_epsilon` gives a smaller bound than :meth:`privacy_spent`.

    Examples
    --------
    >>> from flower_ldp.mechanisms import Gaussian
    >>> strategy = GaussianStrategy(Gaussian(epsilon=8.0, delta=1e-6, clip_norm=0.5))
    """

    _mechanism_type = Gaussian
    _mechanism_example = "a Gaussian, as Gaussian(epsilon=8.0, delta=1e-6, clip_norm=0.5)"

    def _estimate(self, current: TrainingRound, total: Vector, reports: int) -> Vector:
        return self.mechanism.estimate(total, reports)

    def _metrics(self, current: TrainingRound, reports: int) -> Metrics:
        return {"noise-deviation": self.mechanism.deviation / reports**0.5}

    def _description(self) -> Iterator[str]:
        yield from super()._description()
        yield f"Noise of one client's entry: standard deviation {self.mechanism.deviation:.4g}"


class ExtensionStrategy(TrainingStrategy[Chosen]):
    """Federated training from the reports of an extension's mechanism.

    Clients run :class:`~flower_ldp.clients.LdpMod` with
    :class:`~flower_ldp.clients.ExtensionRelease`. The guarantee is a claim of the extension's
    author, and an owner's ledger may charge more than the stated cost. The mechanism is
    :meth:`Extension.chosen <flower_ldp.extensions.Extension.chosen>`.
    """

    _mechanism_type = Chosen
    _mechanism_example = "an extension's parameters, as extension.chosen(epsilon=1.0)"

    def _asked(self, entries: int | None, participation: float = 1.0) -> ExtensionReport:
        return self.mechanism.sized(entries)

    def _description(self) -> Iterator[str]:
        name = self.mechanism.extension.name
        yield f"{name}, an extension: its guarantee, and the cost below, is its author's claim"
