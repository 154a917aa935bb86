r"""MagRR: the server learns the step size from one randomized bit per client.

A client's magnitude r is the mean of s u over its K largest entries S. The server keeps an
estimate r_est and asks once a round, "is r below the threshold?":

* **growth**: threshold 2 r_est. A majority of "no" doubles r_est; "yes" starts contraction.
* **contraction**: threshold r_est. A majority of "yes" halves r_est.

Once the search settles, r lies in [r_est, 2 r_est), and the step is 2 r_est.

**Relation**: any two updates of one client.

**Unit**: client.

**Guarantee**: a report is epsilon-LDP, and tight.

**Proof**: the answer is one bit, which passes binary randomized response. The bit reads the same
update as the selection, so a round costs the sum of both epsilons.

**Exactness**: the bit is drawn exactly (:mod:`flower_ldp.mechanisms.randomized_response`).

**Invalid input**: an update without a magnitude gets a fair bit, randomized. A magnitude of 0 would
vote "below" each time.

**Beyond the published rule**, reports of rounds that ask the same question are pooled, and a
majority counts once its lead, yes minus no, reaches :meth:`MagRR.barrier`. This is the larger of
:math:`B/\epsilon` with :math:`B = \ln\frac{1-\alpha}{\alpha}` (Wald's test) and ``significance``
standard deviations of the largest pooled round, :math:`\alpha` being the chance that a normal
variable exceeds these. docs/magrr.md has the theorem and its proof.

**Source**: Jiang, Zhou, Grossklags, "SignDS-FL", ACM TIST 13(5), 2022, section 5; Wald, "Sequential
tests of statistical hypotheses", Annals of Mathematical Statistics 16(2), 1945.
"""

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any

from flower_ldp.mechanisms.base import Mechanism
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.randomized_response import BinaryResponse
from flower_ldp.parameter_bounds import Bounded, check_in

_SMALLEST, _LARGEST = 1e-30, 1e30


class Phase(str, Enum):
    """Which question the server asks."""

    GROWTH = "growth"
    CONTRACTION = "contraction"


@dataclass(frozen=True)
class StepEstimate:
    """The server's estimate of the clients' magnitude.

    Parameters
    ----------
    value : float
        r_est, in units of the update.
    phase : Phase
    settled : int
        Contraction rounds in a row that kept the value.
    ones, total, largest : int
        The pool for the current question: reports of "yes", all reports, and reports of the largest
        round. Empty after a decision.
    """

    value: float
    phase: Phase = Phase.GROWTH
    settled: int = 0
    ones: int = 0
    total: int = 0
    largest: int = 0

    @property
    def threshold(self) -> float:
        """The threshold that clients compare their magnitude with."""
        return 2.0 * self.value if self.phase is Phase.GROWTH else self.value

    @property
    def magnitude(self) -> float:
        """The step, 2 r_est."""
        return 2.0 * self.value


@dataclass(frozen=True)
class MagRR(Mechanism[Any, int]):
    """Magnitude estimation by randomized response.

    Parameters
    ----------
    epsilon : float
        Per release of one bit, per client (pure LDP); in (0, 100].
    initial_estimate : float
        r_est before the first round, in [1e-30, 1e30].
    significance : float
        Standard deviations that a majority needs: by default a false one has a chance of 1.1 % if
        all clients agree. 0 is the published rule.
    regrow_after : int
        Contraction rounds in a row without a halving after which "no" starts growth again, so that
        too small an estimate recovers; 0 for never, as published.
    """

    name = "magrr"

    epsilon: Annotated[float, Bounded("(0, 100]")]
    initial_estimate: Annotated[float, Bounded(f"[{_SMALLEST:g}, {_LARGEST:g}]")] = 2.0**-10
    significance: Annotated[float, Bounded("[0, inf)")] = 2.3
    regrow_after: Annotated[int, Bounded("[0, inf)")] = 5

    @property
    def response(self) -> BinaryResponse:
        """The randomized response that carries the bit."""
        return BinaryResponse(self.epsilon, self.name)

    def randomize(self, value: bool | None, rng: RandomSource) -> int:
        """Return a report of the private answer to "is r below the threshold?", None if none."""
        return self.response.randomize(value, rng)

    def log_prob(self, report: int, value: bool | None) -> float:
        """Return log P(report | answer)."""
        return self.response.log_prob(report, value)

    def estimate(self, ones: int, total: int) -> float:
        """Return an unbiased estimate of how many truly said yes."""
        return self.response.estimate(ones, total)

    def start(self) -> StepEstimate:
        """Return the state before the first round."""
        return StepEstimate(self.initial_estimate)

    def barrier(self, largest_round: int) -> float:
        """Return the lead that decides."""
        keep = self.response.keep_probability
        noise = 2.0 * math.sqrt(largest_round * keep * (1.0 - keep))
        return max(_log_odds(self.significance) / self.epsilon, self.significance * noise)

    def majority(self, ones: int, total: int, largest: int | None = None) -> int | None:
        """Return the majority's answer B (1 is yes), or None if noise may explain it.

        ``largest`` is the number of reports in the largest pooled round, by default ``total``;
        impossible counts raise ValueError.
        """
        check_in(f"[0, {total}]", "ones", ones)
        if total == 0:
            return None
        # Debiasing scales the lead and never changes its sign, so counts decide who leads.
        lead = 2 * ones - total
        if self.significance == 0:
            return int(lead > 0)  # the published rule has no abstention: a tie counts as no
        if lead == 0:  # which no barrier is sure to exceed, once it is too small for a double
            return None
        barrier = self.barrier(total if largest is None else largest)
        return int(lead > 0) if abs(lead) >= barrier else None

    def answer(self, state: StepEstimate, ones: int, total: int) -> int | None:
        """Return B with the pool of earlier rounds; ValueError as :meth:`majority`."""
        pool = _pooled(state, ones, total)
        return self.majority(pool.ones, pool.total, pool.largest)

    def advance(self, state: StepEstimate, ones: int, total: int) -> StepEstimate:
        """Return the state after a round; ValueError as :meth:`majority`."""
        majority = self.answer(state, ones, total)
        if total == 0:
            return state
        settled = state.settled + 1 if state.phase is Phase.CONTRACTION else 0
        if majority is None:
            return replace(_pooled(state, ones, total), settled=settled)
        if state.phase is Phase.GROWTH:
            if majority == 1:
                return StepEstimate(state.value, Phase.CONTRACTION)
            return StepEstimate(min(2.0 * state.value, _LARGEST))
        if majority == 1:
            return StepEstimate(max(state.value / 2.0, _SMALLEST), Phase.CONTRACTION)
        # Not while the test is open: a question that is dropped half-way is never answered.
        if self.regrow_after and settled >= self.regrow_after:
            return StepEstimate(state.value, Phase.GROWTH)
        return StepEstimate(state.value, Phase.CONTRACTION, settled)


def _pooled(state: StepEstimate, ones: int, total: int) -> StepEstimate:
    check_in(f"[0, {total}]", "ones", ones)
    most = max(state.largest, total)
    return replace(state, ones=state.ones + ones, total=state.total + total, largest=most)


def _log_odds(deviations: float) -> float:
    tail = math.erfc(deviations / math.sqrt(2.0)) / 2.0
    # Beyond 37 deviations the chance is no double any more; its logarithm nears this.
    return math.log((1.0 - tail) / tail) if tail > 0 else deviations * deviations / 2.0
