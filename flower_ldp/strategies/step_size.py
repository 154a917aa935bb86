"""Step sizes of SignDS training: learned from magnitude bits, or fixed.

With T the sum of signs over N reports and m the magnitude, the two scalings are

* ``"published"``: m T where m = 2 r_est was learned, and lr T / N for a fixed rate lr;
* ``"unbiased"``: m (2 / (contrast N)) T, whose mean is m times the clients' mean top-set
  direction. The published step is that times N * contrast / 2: too small for few clients,
  too large for thousands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from flower_ldp.mechanisms.magrr import MagRR, StepEstimate
from flower_ldp.mechanisms.signds import SelectionPlan
from flower_ldp.mechanisms.signds_round import Report
from flower_ldp.strategies.replies import ReplyFilter
from flower_ldp.strategies.rounds import Metrics, RoundCallback, TrainingRound

Scaling = Literal["published", "unbiased"]
SCALINGS: tuple[Scaling, ...] = ("published", "unbiased")


@dataclass(frozen=True)
class FixedStep:
    """A fixed rate, the published rule without magnitude bits.

    Parameters
    ----------
    global_lr : float
        What a reported dimension moves by, before averaging over clients; positive.
    """

    #: No bit is asked for.
    magnitude: ClassVar[None] = None

    global_lr: float

    def __post_init__(self) -> None:
        if not 0 < self.global_lr < math.inf:
            raise ValueError(f"global_lr must be in (0, inf), got {self.global_lr}")

    @property
    def rate(self) -> float:
        """The rate of a round without bits, which is every round."""
        return self.global_lr


@dataclass(frozen=True)
class LearnedStep:
    """A step size learned by MagRR, with a fixed rate where too few clients take part.

    Parameters
    ----------
    magnitude : MagRR
        The bit and its rule.
    fallback : FixedStep or None
        Rate for rounds below ``min_participation``, which ask for no bit; None to learn in
        every round.
    min_participation : float
        Fraction of the available clients, in [0, 1]; the published rule has 0.05.
    """

    magnitude: MagRR
    fallback: FixedStep | None = None
    min_participation: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.min_participation <= 1:
            raise ValueError(f"min_participation must be in [0, 1], got {self.min_participation}")

    @property
    def rate(self) -> float | None:
        """The rate of a round without bits; None if there is no such round."""
        return None if self.fallback is None else self.fallback.rate

    def asks(self, participation: float) -> bool:
        """Return whether a round asks for bits.

        Parameters
        ----------
        participation : float
            Fraction of the available clients that take part.
        """
        return self.fallback is None or participation >= self.min_participation


#: How the size of steps is set.
StepRule: TypeAlias = FixedStep | LearnedStep


class StepSize(RoundCallback[TrainingRound]):
    """The step rule of one run, with what it has learned so far.

    Parameters
    ----------
    rule : StepRule
        How the size is set.
    scaling : {"published", "unbiased"}
        What it multiplies.

    Attributes
    ----------
    estimate : StepEstimate or None
        MagRR's knowledge; None for a fixed rate.
    """

    def __init__(self, rule: StepRule, scaling: Scaling = "published") -> None:
        if scaling not in SCALINGS:
            raise ValueError(f"scaling must be one of {SCALINGS}, got {scaling!r}")
        self._rule = rule
        self._scaling = scaling
        self.estimate: StepEstimate | None = rule.magnitude.start() if rule.magnitude else None
        self._ones = 0
        self._learned: Metrics = {}

    def counted(self, reports: Iterable[Report]) -> Iterator[Report]:
        """Yield a round's reports, and count the magnitude bits that are 1."""
        self._ones = 0
        for report in reports:
            self._ones += report[1] or 0
            yield report

    def after_replies(self, current: TrainingRound, replies: ReplyFilter) -> None:
        """Learn from the bits, if they were asked for."""
        self._learned = {}
        if current.proposal.mechanism.magnitude is None or self.estimate is None:
            return
        majority = self.learn(self._ones, replies.accepted)
        self._learned = {
            "r-est": self.estimate.value,
            "magnitude-majority": -1 if majority is None else majority,
        }

    def metrics(self, current: TrainingRound) -> Metrics:
        """Return ``r-est`` and ``magnitude-majority`` (1 yes, 0 no, -1 undecided), if asked for."""
        return self._learned

    def question(self, participation: float) -> tuple[float, float] | None:
        """Return epsilon and threshold of a round's question, or None to ask for no bit.

        Parameters
        ----------
        participation : float
            Fraction of the available clients that take part.
        """
        rule = self._rule
        if rule.magnitude is None or self.estimate is None or not rule.asks(participation):
            return None
        return rule.magnitude.epsilon, self.estimate.threshold

    def check(self, plan: SelectionPlan) -> None:
        """Refuse a selection of which this scaling makes no step: ask before it costs anything.

        Raises
        ------
        ValueError
            If the scaling is ``"unbiased"`` and reports say nothing of the update.
        """
        if self._scaling == "unbiased":
            _ = plan.unbiasing

    def learn(self, ones: int, total: int) -> int | None:
        """Take in the bits of a round: ``ones`` of ``total`` say that r is below.

        Returns
        -------
        int or None
            The majority's answer B, or None if these bits and those of earlier rounds that
            asked the same do not tell.
        """
        magnitude = self._rule.magnitude
        if magnitude is None or self.estimate is None:
            return None
        answer = magnitude.answer(self.estimate, ones, total)
        self.estimate = magnitude.advance(self.estimate, ones, total)
        return answer

    def factor(self, reports: int, plan: SelectionPlan, *, asked: bool) -> float:
        """Return what the sum of signs is multiplied by.

        Parameters
        ----------
        reports : int
            N, reports in the sum; at least 1.
        plan : SelectionPlan
            The selection's public numbers.
        asked : bool
            Whether this round asked for bits: only then is the learned size used.
        """
        if reports < 1:
            raise ValueError(f"reports must be at least 1, got {reports}")
        rate = self._rule.rate
        if asked and self.estimate is not None:
            magnitude, published = self.estimate.magnitude, self.estimate.magnitude
        elif rate is not None:
            magnitude, published = rate, rate / reports
        else:
            raise ValueError("a round without bits needs a fixed rate")
        if self._scaling == "published":
            return published
        return magnitude * plan.unbiasing / reports
