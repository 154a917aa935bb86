r"""The exact law of v = |J n S| in SignDS.

SignDS reports an h-subset J of d dimensions with probability proportional to
:math:`e^{\epsilon [|J \cap S| \ge v_{th}]}`, where S holds the K largest entries. Then v
has weight :math:`C(K, v)\,C(d-K, h-v)`, times :math:`e^\epsilon` from v_th on. Doubles
overflow in these weights (the client of the published implementation returns h = 79
where 238 is right), so the law is kept as Python integers, with a rational number just
below :math:`e^\epsilon` (see :mod:`flower_ldp.mechanisms.sampling.exact`); a draw is one uniform
integer and a bisection, with no rounding at all.

Source: Jiang, Zhou, Grossklags, "SignDS-FL", ACM TIST 13(5), 2022, section 4.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.exact import EXP_BITS, exp_lower, exp_scaled_at_least

#: Largest model: indices are unsigned 32-bit numbers.
MAX_DIMENSION = 2**32 - 1
#: Largest number of reported dimensions; exact weights of more would take seconds.
MAX_DIM_OUT = 4096


def hypergeometric_weights(dimension: int, top_size: int, dim_out: int) -> tuple[int, list[int]]:
    """Return the smallest feasible v and the counts C(K, v) C(d-K, h-v) from there on.

    Parameters
    ----------
    dimension, top_size, dim_out : int
        d, K and h, with 1 <= K <= d and 1 <= h <= d.

    Returns
    -------
    first : int
        max(0, h - (d - K)).
    counts : list of int
        Exact, for v from ``first`` to min(h, K).
    """
    rest = dimension - top_size
    first = max(0, dim_out - rest)
    count = math.comb(top_size, first) * math.comb(rest, dim_out - first)
    counts = [count]
    for v in range(first, min(dim_out, top_size)):
        count *= (top_size - v) * (dim_out - v)
        count //= (v + 1) * (rest - dim_out + v + 1)
        counts.append(count)
    return first, counts


@dataclass(frozen=True)
class TailMoments:
    """Suffix sums of the counts and of v times the counts: exact means for every threshold."""

    first: int
    counts: list[int]
    moments: list[int]

    @classmethod
    def of(cls, dimension: int, top_size: int, dim_out: int) -> TailMoments:
        """Return the sums for d, K and h."""
        first, counts = hypergeometric_weights(dimension, top_size, dim_out)
        products = [v * count for v, count in enumerate(counts, start=first)]
        return cls(first, _suffix_sums(counts), _suffix_sums(products))

    def _split(self, t: int) -> tuple[int, int, int, int]:
        at = min(max(t - self.first, 0), len(self.counts) - 1)
        count, moment = self.counts[at], self.moments[at]
        return self.counts[0] - count, self.moments[0] - moment, count, moment

    def mean_at_least(self, t: int, bound: Fraction, epsilon: float) -> bool:
        """Decide E_t >= bound, exactly."""
        below, below_v, above, above_v = self._split(t)
        p, q = bound.numerator, bound.denominator
        return exp_scaled_at_least(epsilon, q * above_v - p * above, p * below - q * below_v)

    def mean_at_most(self, t: int, bound: Fraction, epsilon: float) -> bool:
        """Decide E_t <= bound, exactly."""
        below, below_v, above, above_v = self._split(t)
        p, q = bound.numerator, bound.denominator
        return exp_scaled_at_least(epsilon, p * above - q * above_v, q * below_v - p * below)


def _suffix_sums(terms: list[int]) -> list[int]:
    """Return the sums of ``terms[i:]`` for i from 0 to len(terms); the last is 0."""
    return list(accumulate(reversed(terms), initial=0))[::-1]


@dataclass(frozen=True)
class SelectionLaw:
    """Distribution of v, the number of reported dimensions that lie in S.

    Parameters
    ----------
    first : int
        Smallest feasible v.
    threshold : int
        v_th.
    low, high : int
        Integer weights of one subset J below the threshold and from it on;
        ``high / low`` is just below e^epsilon.
    cumulative : list of int
        Running sums of the weights of v = first, first + 1, ...
    """

    first: int
    threshold: int
    low: int
    high: int
    cumulative: list[int]

    @classmethod
    def of(
        cls, dimension: int, top_size: int, dim_out: int, threshold: int, epsilon: float
    ) -> SelectionLaw:
        """Return the law for d, K, h and v_th at ``epsilon`` per release."""
        first, counts = hypergeometric_weights(dimension, top_size, dim_out)
        low, high = 1 << EXP_BITS, exp_lower(epsilon)
        weights = (
            count * (high if v >= threshold else low) for v, count in enumerate(counts, start=first)
        )
        return cls(first, threshold, low, high, list(accumulate(weights)))

    @property
    def total(self) -> int:
        """Sum of all weights."""
        return self.cumulative[-1]

    def sample(self, rng: RandomSource) -> int:
        """Draw v, exactly: one uniform integer below the total weight."""
        return self.first + bisect_right(self.cumulative, rng.below(self.total))

    def probability(self, v: int) -> Fraction:
        """Return P(v), exactly."""
        at = v - self.first
        if not 0 <= at < len(self.cumulative):
            return Fraction(0)
        before = self.cumulative[at - 1] if at else 0
        return Fraction(self.cumulative[at] - before, self.total)

    def subset_probability(self, v: int) -> Fraction:
        """Return P(J) for one subset J with v members in S, exactly."""
        return Fraction(self.high if v >= self.threshold else self.low, self.total)

    def mean(self) -> float:
        """Return E[v], correctly rounded."""
        return self.mean_above(0, 1)

    def mean_above(self, numerator: int, denominator: int) -> float:
        """Return E[v] - numerator / denominator, correctly rounded."""
        last = self.first + len(self.cumulative) - 1
        # sum of v P(v) = last - sum over v < last of P(<= v)
        moment = last * self.total - sum(self.cumulative[:-1])
        return (moment * denominator - numerator * self.total) / (self.total * denominator)
