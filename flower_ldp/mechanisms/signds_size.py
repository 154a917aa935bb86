r"""The sizes of SignDS: the exact law of |J n S|, h and v_th, and K by the value of a report.

docs/signds.md has the proofs.

**The law.** v = |J n S| has weight :math:`C(K, v)\,C(d-K, h-v)`, times :math:`e^\epsilon` from v_th
on. The law is kept as Python integers, since doubles overflow, with a rational number just below
:math:`e^\epsilon`; a draw is one uniform integer and a bisection, without rounding.

**v_th** is the first t with :math:`E_t \le t`, the mean of v under threshold t: it maximizes the
mean, and is found in exact integers. **h** is the largest number such that every :math:`h' \le h`
reaches :math:`\max_t E_t(h') \ge \rho h'`, or 1. Doubles decide, and exact integers decide close
calls. The cost does not depend on d.

**K, if it is open.** A report's value c is its inner product with an update of standard normal
entries, for a report of length one. Of q = K/d, :math:`\rho = E[v]/h`, the upper q-quantile t and
:math:`r(q) = \phi(t)/q`,

.. math:: c = \sqrt h\,\frac{\rho - q}{1 - q}\,r(q), \qquad a = \sqrt{2q}\,r(q), \qquad
    \cos = \sqrt\nu\,\frac{c}{\sqrt{1 + \nu c^2/a^2}}

for a sum of :math:`\nu d` reports, whose mean has the cosine a with the update.
The rule takes the K, from :data:`LEAST_FRACTION` d to d/4, and h of the largest cosine at
:math:`\nu` = :data:`REPORTS_PER_WEIGHT`: functions of d and epsilon alone.

Source: Jiang, Zhou, Grossklags, "SignDS-FL", ACM TIST 13(5), 2022, section 4; the rule for K is
this package's.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist

import numpy as np

from flower_ldp.mechanisms.random import EXP_BITS, Floats, Ints, RandomSource, exp_lower
from flower_ldp.privacy import as_fraction

#: Largest model: indices are unsigned 32-bit numbers.
MAX_DIMENSION = 2**32 - 1
#: Largest number of reported dimensions; exact weights of more would take seconds.
MAX_DIM_OUT = 4096


@lru_cache(maxsize=1)
def hypergeometric_weights(dimension: int, top_size: int, dim_out: int) -> tuple[int, list[int]]:
    """Return the smallest feasible v, and C(K, v) C(d-K, h-v) from it on."""
    rest = dimension - top_size
    first = max(0, dim_out - rest)
    count = math.comb(top_size, first) * math.comb(rest, dim_out - first)
    counts = [count]
    for v in range(first, min(dim_out, top_size)):
        count *= (top_size - v) * (dim_out - v)
        count //= (v + 1) * (rest - dim_out + v + 1)
        counts.append(count)
    return first, counts


def exp_scaled_at_least(epsilon: float, a: int, b: int) -> bool:
    """Decide ``a * e**epsilon >= b`` exactly, for integers of any size.

    Nonzero sides never are equal, so raising the precision settles every case.
    """
    if epsilon == 0 or a == 0:
        return a >= b
    bits = EXP_BITS
    while True:
        low = exp_lower(epsilon, bits)
        left, right, target = a * low, a * (low + 2), b << bits
        if min(left, right) >= target:
            return True
        if max(left, right) < target:
            return False
        bits *= 2


@dataclass(frozen=True)
class SelectionLaw:
    """Distribution of v, which begins at ``first``.

    ``low`` and ``high`` are weights of one subset J below the threshold and from it on;
    ``high / low`` is just below e^epsilon. ``cumulative`` has running sums of the weights of v.
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
        """Return the law for d, K, h and v_th."""
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

    @property
    def below(self) -> int:
        """Sum of the weights below the threshold."""
        at = self.threshold - self.first
        return self.cumulative[at - 1] if at > 0 else 0

    def sample(self, rng: RandomSource) -> int:
        """Draw v, exactly."""
        return self.first + bisect_right(self.cumulative, rng.below(self.total))

    def probability(self, v: int) -> Fraction:
        """Return P(v), exactly."""
        at = v - self.first
        if not 0 <= at < len(self.cumulative):
            return Fraction(0)
        before = self.cumulative[at - 1] if at else 0
        return Fraction(self.cumulative[at] - before, self.total)

    def subset_probability(self, v: int) -> Fraction:
        """Return P(J) for one J with v members in S, exactly."""
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


# The h in question stay below 1,000 (epsilon <= 100 caps them through Hoeffding's bound),
# log C(d, h) below 2e4, and a running sum of 1,000 such logarithms loses less than 1e-8.
_DOUBLE_MARGIN = 1e-7
_ROWS = 256


def largest_dim_out(dimension: int, top_size: int, epsilon: float, threshold_ratio: float) -> int:
    """Return h in [1, d] by the published rule."""
    ratio = as_fraction(threshold_ratio)
    last = min(dimension, MAX_DIM_OUT)
    for start in range(1, last + 1, _ROWS):
        sizes = np.arange(start, min(start + _ROWS, last + 1))
        thresholds = np.array([math.ceil(ratio * h) for h in sizes.tolist()])
        excesses = _excesses(dimension, top_size, epsilon, sizes)
        at_threshold = excesses[np.arange(len(sizes)), sizes[-1] - thresholds]
        surplus = at_threshold / sizes + (top_size / dimension - threshold_ratio)
        for h, t, value in zip(sizes.tolist(), thresholds.tolist(), surplus, strict=True):
            holds = bool(value > 0)
            if abs(value) < _DOUBLE_MARGIN:
                first, counts = hypergeometric_weights(dimension, top_size, h)
                p, q = ratio.numerator * h, ratio.denominator
                above = [(q * v - p) * count for v, count in enumerate(counts, start=first)]
                gained, missing = sum(above[t - first :]), -sum(above[: t - first])
                holds = exp_scaled_at_least(epsilon, gained, missing)
            if not holds:
                return max(h - 1, 1)
    return last


def best_threshold(dimension: int, top_size: int, dim_out: int, epsilon: float) -> int:
    """Return v_th in [0, h]."""
    first, counts = hypergeometric_weights(dimension, top_size, dim_out)
    # How far v is above each t, and how far below it, both summed over the counts of v.
    above = list(accumulate(accumulate(reversed(counts)), initial=0))[-2::-1]
    below = list(accumulate(accumulate(counts), initial=0))

    def reached(i: int) -> bool:
        return exp_scaled_at_least(epsilon, -above[i], -below[i])

    return first + bisect_left(range(len(counts)), True, key=reached)


def log_binomials(n: int, terms: int) -> Floats:
    """Return log C(n, i) for i below ``terms``; minus infinity beyond n."""
    i = np.arange(min(n, terms - 1), dtype=np.float64)
    out = np.full(terms, -np.inf)
    out[0] = 0.0
    out[1 : len(i) + 1] = np.cumsum(np.log((n - i) / (i + 1)))
    return out


#: Reports for each weight for which the rule is best: 100 clients of 6,400 weights.
REPORTS_PER_WEIGHT = 1 / 64
#: Least K / d that the rule tries; what it finds lies above.
LEAST_FRACTION = 0.02
# The worth is flat in h from a few dozen on (v is then close to normal): none is better later.
_LARGEST_DIM_OUT = 128
# Sizes K that are tried, in equal ratios: within a thousandth of the best.
_SIZES = 48
# Below this epsilon the worths are proportional to it, and the best sizes the same for all.
_SMALL_EPSILON = 1e-9
# A candidate must be better by more than what doubles of two machines may differ by.
_MARGIN = 1e-6


def mean_of_top(fraction: float) -> float:
    """Return r(q)."""
    normal = NormalDist()
    return normal.pdf(normal.inv_cdf(fraction)) / fraction


def worths(dimension: int, top_size: int, epsilon: float, dim_outs: Ints) -> Floats:
    """Return c(K, h), float64, for each h."""
    q = top_size / dimension
    excess = _excesses(dimension, top_size, epsilon, dim_outs).max(axis=1)
    return np.asarray(excess / np.sqrt(dim_outs) / (1.0 - q) * mean_of_top(q))


def best_sizes(
    dimension: int,
    epsilon: float,
    dim_out: int = 0,
    *,
    least: float = LEAST_FRACTION,
    crowd: float = REPORTS_PER_WEIGHT,
) -> tuple[int, int]:
    """Return the K and h of the rule, for ``dimension`` d.

    ``dim_out`` is h if given; 0 chooses one of at most 128. ``least`` is the least K / d, and
    ``crowd`` is nu.
    """
    smallest, largest = max(1, math.ceil(least * dimension)), dimension // 4
    if smallest >= largest:
        return (max(1, largest), dim_out or 1)
    ratio = largest / smallest
    grid = {round(smallest * ratio ** (i / (_SIZES - 1))) for i in range(_SIZES)}
    sizes = np.array([dim_out]) if dim_out else np.arange(1, min(dimension, _LARGEST_DIM_OUT) + 1)
    epsilon = max(epsilon, _SMALL_EPSILON)
    best, chosen = 0.0, (smallest, dim_out or 1)  # if all are worth nothing, as with h = d
    for top_size in sorted(grid):
        worth, q = worths(dimension, top_size, epsilon, sizes), top_size / dimension
        # The cosine of a sum with its update, over sqrt(nu).
        found = worth / np.sqrt(1.0 + crowd * worth**2 / (2.0 * q * mean_of_top(q) ** 2))
        first = int(np.argmax(found > found.max() * (1.0 - _MARGIN)))
        if found[first] > best * (1.0 + _MARGIN):
            best, chosen = float(found[first]), (top_size, int(sizes[first]))
    return chosen


def _excesses(dimension: int, top_size: int, epsilon: float, dim_outs: Ints) -> Floats:
    terms = int(dim_outs.max()) + 1
    v = np.arange(terms)
    rest = dim_outs[:, None] - v
    log_rest = np.where(rest >= 0, log_binomials(dimension - top_size, terms)[rest], -np.inf)
    log_all = log_binomials(dimension, terms)[dim_outs][:, None]
    p = np.exp(log_binomials(top_size, terms) + log_rest - log_all)
    above = np.cumsum(p[:, ::-1], axis=1)
    above_v = np.cumsum((p * v)[:, ::-1], axis=1)
    gain = math.expm1(epsilon)
    means = dim_outs[:, None] * (top_size / dimension)
    return np.asarray(gain * (above_v - means * above) / (1.0 + gain * above))
