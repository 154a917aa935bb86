r"""How many draws an audit needs: its power, computed and not simulated.

If the event has probability p under one input and q under the other, its counts are two
independent binomial numbers, and a claim is refuted where their bound exceeds it. The chance
of that is a finite sum over the counts of p, of the binomial tail of q. Draws here are those
that a bound is computed from: :func:`~flower_ldp.audit.auditing.audit` spends as many again
on choosing the event.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.bounds import (
    check_confidence,
    epsilon_lower_bound,
    probability_lower,
    probability_upper,
)

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
        True probabilities of the event under the input where it is likelier and under the
        other, in [0, 1].
    claimed : float
        Epsilon that is claimed, at ``delta``.
    draws : int
        That the bound is computed from, under each input.
    confidence : float
        Of the bound.
    delta : float
        Of the claim.
    """
    from scipy.stats import binom

    check_confidence(confidence)
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
    """Return the bound from the expected counts: about what an audit typically reaches."""
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
    """Return a number of draws, within two per cent of the least, whose power is ``wanted``.

    Raises
    ------
    ValueError
        If the event does not contradict the claim, or needs more than 2^32 draws.
    """
    if p - delta <= math.exp(claimed) * q:
        raise ValueError(f"an event of probability {p:g} and {q:g} agrees with {claimed:g}")

    def enough(draws: int) -> bool:
        return power(p, q, claimed, draws, confidence=confidence, delta=delta) >= wanted

    high = 16
    while not enough(high):
        high *= 2
        if high > _MOST_DRAWS:
            raise ValueError(f"refuting {claimed:g} needs more than {_MOST_DRAWS} draws")
    low = high // 2
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _likely_counts(p: float, draws: int) -> NDArray[np.int64]:
    width = _SPAN * math.sqrt(draws * p * (1.0 - p)) + 50.0
    first = max(0, math.floor(draws * p - width))
    return np.arange(first, min(draws, math.ceil(draws * p + width)) + 1)
