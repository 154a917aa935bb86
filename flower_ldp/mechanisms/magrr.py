r"""MagRR: the server learns the step size from one randomized bit per client.

A SignDS report has no magnitude. The magnitude of a client's update is
:math:`r = \frac1K \sum_{j \in S} s u_j`, the mean over its K largest entries. The server
keeps an estimate r_est and asks one question a round, "is r below the threshold?":

* **growth**: threshold 2 r_est. If the majority says no, r_est doubles; if it says yes,
  r_est stays and contraction begins.
* **contraction**: threshold r_est. If the majority says yes, r_est halves; else it stays.

So r lies in [r_est, 2 r_est) once the search settles, and the step is 2 r_est.

**Neighbours**: any two updates of one client. **Theorem**: the answer is one bit, which
goes through binary randomized response, so a report is epsilon-LDP and tight. The bit
reads the same update as the selection, so a round costs the sum of both epsilons.

**Invalid input**: an update without a magnitude has no answer, and a fair bit takes its place:
yes or no with probability 1/2, randomized. Calling its magnitude 0 would vote "below" each time.

**Beyond the published rule.** A single false majority halves r_est for ever (with every
true bit 0, the chance of one is 0.27 at 100 clients and epsilon 0.1). So a majority is
acted on only if it stands out from its own noise: the debiased count of yes differs from
N/2 by more than ``significance`` standard deviations of the randomized response. And
after ``regrow_after`` contraction rounds without a halving the growth question is asked
again, so that an estimate that is too small recovers. ``significance=0, regrow_after=0``
is the rule as published.

Source: Jiang, Zhou, Grossklags, "SignDS-FL", ACM TIST 13(5), 2022, section 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.randomized_response import BinaryResponse
from flower_ldp.privacy import PrivacyEvent

_SMALLEST, _LARGEST = 1e-30, 1e30


class Phase(str, Enum):
    """Which question the server asks."""

    GROWTH = "growth"
    CONTRACTION = "contraction"


@dataclass(frozen=True)
class StepEstimate:
    """The server's knowledge of the clients' magnitude.

    Parameters
    ----------
    value : float
        r_est, in units of the update.
    phase : Phase
        Growth or contraction.
    settled : int
        Contraction rounds in a row that left the value alone.
    """

    value: float
    phase: Phase = Phase.GROWTH
    settled: int = 0

    @property
    def threshold(self) -> float:
        """What clients compare their magnitude with."""
        return 2.0 * self.value if self.phase is Phase.GROWTH else self.value

    @property
    def magnitude(self) -> float:
        """The step that the estimate stands for, 2 r_est."""
        return 2.0 * self.value


@dataclass(frozen=True)
class MagRR:
    """Magnitude estimation by randomized response.

    Parameters
    ----------
    epsilon : float
        Per release of one bit, per client (pure LDP); in (0, 100].
    initial_estimate : float
        r_est before the first round; growth starts here. In [1e-30, 1e30].
    significance : float
        Standard deviations by which a majority must stand out from its noise to be acted
        on; 0 is the published rule.
    regrow_after : int
        Contraction rounds in a row without a halving after which growth is probed again; 0
        for never, as published.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.
    """

    epsilon: float
    initial_estimate: float = 2.0**-10
    significance: float = 2.0
    regrow_after: int = 5

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 100:
            raise ValueError(f"epsilon must be in (0, 100], got {self.epsilon}")
        if not _SMALLEST <= self.initial_estimate <= _LARGEST:
            raise ValueError(
                f"initial_estimate must be in [{_SMALLEST:g}, {_LARGEST:g}], "
                f"got {self.initial_estimate}"
            )
        if not 0 <= self.significance < math.inf:
            raise ValueError(f"significance must be in [0, inf), got {self.significance}")
        if self.regrow_after < 0:
            raise ValueError(f"regrow_after must be at least 0, got {self.regrow_after}")

    @property
    def response(self) -> BinaryResponse:
        """The randomized response that carries the bit."""
        return BinaryResponse(self.epsilon, name="magrr")

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one bit: epsilon per client, pure."""
        return self.response.events()

    def randomize(self, value: bool | None, rng: RandomSource) -> int:
        """Return a report of the private answer to "is r below the threshold?", None if none."""
        return self.response.randomize(value, rng)

    def log_prob(self, report: int, value: bool | None) -> float:
        """Return log P(report | answer) of the sampler as built."""
        return self.response.log_prob(report, value)

    def estimate(self, ones: int, total: int) -> float:
        """Return an unbiased estimate of how many of ``total`` clients truly said yes."""
        return self.response.estimate(ones, total)

    def start(self) -> StepEstimate:
        """Return the state before the first round."""
        return StepEstimate(self.initial_estimate)

    def majority(self, ones: int, total: int) -> int | None:
        """Return the majority's answer B (1 is yes), or None if noise may have made it.

        Parameters
        ----------
        ones, total : int
            Reports that say yes, and reports in all.

        Raises
        ------
        ValueError
            If the counts are impossible.
        """
        if not 0 <= ones <= total:
            raise ValueError(f"ones must be in [0, {total}], got {ones}")
        if total == 0:
            return None
        # Debiasing scales the lead and never changes its sign, so counts decide who leads.
        majority = int(2 * ones > total)
        if self.significance == 0:
            return majority  # the published rule has no abstention: a tie counts as no
        lead = self.estimate(ones, total) - total / 2.0
        noise = self.significance * self.response.standard_deviation(total)
        return majority if abs(lead) > noise else None

    def advance(self, state: StepEstimate, ones: int, total: int) -> StepEstimate:
        """Return the state after a round with ``total`` bits, of which ``ones`` say yes.

        Raises
        ------
        ValueError
            If the counts are impossible.
        """
        majority = self.majority(ones, total)
        if total == 0:
            return state
        if state.phase is Phase.GROWTH:
            if majority == 1:
                return StepEstimate(state.value, Phase.CONTRACTION)
            grown = min(2.0 * state.value, _LARGEST)
            return state if majority is None else replace(state, value=grown)
        if majority == 1:
            return StepEstimate(max(state.value / 2.0, _SMALLEST), Phase.CONTRACTION)
        settled = state.settled + 1
        if self.regrow_after and settled >= self.regrow_after:
            return StepEstimate(state.value, Phase.GROWTH)
        return replace(state, settled=settled)
