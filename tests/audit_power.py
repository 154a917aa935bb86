"""How likely an audit refutes a false claim, and how many draws that takes.

**Power** is computed and not simulated: the counts are independent binomial numbers, so the chance
of a bound above the claim is a finite sum. Its draws are those of the bound alone;
:func:`~flower_ldp.audit.auditing.audit` needs as many again to choose the event.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.bounds import epsilon_lower_bound, probability_lower, probability_upper
from flower_ldp.parameter_bounds import check_in, least

# Standard deviations of a count that the sum spans: the rest weighs less than 1e-20.
_SPAN = 10.0
_MOST_DRAWS = 1 << 32


def power(
    p: float, q: float, claimed: float, draws: int, *, confidence: float, delta: float = 0.0
) -> float:
    """Return the probability that ``draws`` draws under each input refute a claim.

    Parameters
    ----------
    p, q : float
        True probabilities of the event under the input where it is likelier and under the other.
    claimed : float
        Claimed epsilon, at ``delta``.
    draws : int
        Draws of the bound, under each input.
    confidence : float
        Of the bound.
    delta : float
        Of the claim.
    """
    from scipy.stats import binom

    check_in("(0, 1)", "confidence", confidence)
    error = (1.0 - confidence) / 2.0
    seen = _likely_counts(p, draws)
    # A count of the other side refutes if its upper bound is below this.
    needed = (probability_lower(seen, draws, error) - delta) * math.exp(-claimed)
    others = _likely_counts(q, draws)
    refuting = np.searchsorted(probability_upper(others, draws, error), needed, side="left")
    # Counts below the likely ones refute where the first of the likely does.
    at_most = np.where(refuting > 0, others[refuting - 1], -1)
    return float(np.sum(binom.pmf(seen, draws, p) * binom.cdf(at_most, draws, q)))


def expected_bound(
    p: float, q: float, draws: int, *, confidence: float, delta: float = 0.0
) -> float:
    """Return the bound from the expected counts, about the typical one."""
    often, seldom = round(p * draws), round(q * draws)
    bound = epsilon_lower_bound(often, seldom, draws, confidence=confidence, delta=delta)
    return float(bound)


def draws_to_refute(
    p: float,
    q: float,
    claimed: float,
    *,
    confidence: float,
    wanted: float = 0.99,
    delta: float = 0.0,
) -> int:
    """Return a number of draws, within two per cent of the least, with this power.

    Raises
    ------
    ValueError
        If the event does not contradict the claim, or needs more than 2^32 draws.
    """
    if p - delta <= math.exp(claimed) * q:
        raise ValueError(f"an event of probability {p:g} and {q:g} agrees with {claimed:g}")

    def enough(draws: float) -> bool:
        least_draws = math.ceil(draws)
        return power(p, q, claimed, least_draws, confidence=confidence, delta=delta) >= wanted

    high = 16
    while not enough(high):
        high *= 2
        if high > _MOST_DRAWS:
            raise ValueError(f"refuting {claimed:g} needs more than {_MOST_DRAWS} draws")
    return math.ceil(least(enough, high / 2, high, 0.02))


def _likely_counts(p: float, draws: int) -> NDArray[np.int64]:
    width = _SPAN * math.sqrt(draws * p * (1.0 - p)) + 50.0
    first = max(0, math.floor(draws * p - width))
    return np.arange(first, min(draws, math.ceil(draws * p + width)) + 1)
