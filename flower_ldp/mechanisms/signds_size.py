r"""The sizes of SignDS: the exact law of |J n S|, h and v_th, and K by what a report is worth.

The exact law of v = |J n S| in SignDS.

SignDS reports an h-subset J of d dimensions with probability proportional to
:math:`e^{\epsilon [|J \cap S| \ge v_{th}]}`, where S holds the K largest entries. Then v
has weight :math:`C(K, v)\,C(d-K, h-v)`, times :math:`e^\epsilon` from v_th on. Doubles
overflow in these weights (the client of the published implementation returns h = 79
where 238 is right), so the law is kept as Python integers, with a rational number just
below :math:`e^\epsilon` (see :mod:`flower_ldp.mechanisms.random`); a draw is one uniform
integer and a bisection, with no rounding at all.

Source: Jiang, Zhou, Grossklags, "SignDS-FL", ACM TIST 13(5), 2022, section 4.

How many dimensions a SignDS report carries (h), and how many must lie in S (v_th).

Both depend on public configuration only. With :math:`E_t(h)` the mean of v = |J n S|
under threshold t:

* **v_th** is the first t with :math:`E_t \le t`. Since
  :math:`E_{t+1} > E_t \iff t < E_t`, that t maximizes the mean. (Stopping at the first t
  that does not raise a double fails: :math:`E_t` is flat to double precision for small t.)
* **h** is the largest number such that every :math:`h' \le h` reaches
  :math:`\max_t E_t(h') \ge \rho h'`, or 1 if none does. The maximum is reached at
  :math:`\lceil \max_t E_t \rceil` and :math:`E_t` rises exactly while :math:`t < E_t`, so
  the condition holds if and only if :math:`E_t(h') \ge \rho h'` at the single
  :math:`t = \lceil \rho h' \rceil`: one tail sum per h'.

v_th is found in exact integers. For h the sums are taken in doubles, for many h' at once
(logarithms of binomials from running sums of log ratios, since ``lgamma`` loses all digits at
d = 1e9); where a double is too close to call, exact integers decide. The cost does not depend on d.

Source of the rules: Jiang, Zhou, Grossklags, "SignDS-FL", ACM TIST 13(5), 2022; the
one-sided tests and their proofs above are this package's.

How large the top set (K) and the report (h) of SignDS should be, if nobody says.

The worth of a report is how far it points along the update, in standard deviations of its
entries, for a report of length one. A report :math:`s 1_J` has length :math:`\sqrt h`; of
its h dimensions :math:`\rho h` lie in S, where the mean is r, and the others where the mean
is :math:`-r q/(1-q)`, for entries of mean 0. So with q = K/d and :math:`\rho = E[v]/h`

.. math:: c(K, h) = \sqrt h\,\frac{\rho - q}{1 - q}\,r(q), \qquad r(q) = \frac{\phi(t)}{q},

the last for normal entries of variance 1, t being their upper q-quantile.

A small S makes c large, and the mean of many reports a vector that holds the few largest
entries alone. The direction of that mean, +1 on the K largest entries and -1 on the K
smallest, has with the update the cosine :math:`a = \sqrt{2q}\,r(q)`. The sum of N reports
of one update has noise of square length N h, and a mean of length
:math:`N c \sqrt{h/d}\,/\,a`; so its own cosine with the update is

.. math:: \cos = \sqrt\nu\,\frac{c}{\sqrt{1 + \nu c^2/a^2}}, \qquad \nu = N/d:

c, times a constant, for few reports and a for many.

**The rule**: the K and h of the largest cosine at :math:`\nu` =
:data:`REPORTS_PER_WEIGHT`, with v_th as always
(:func:`flower_ldp.mechanisms.signds_size.best_threshold`) and K from
:data:`LEAST_FRACTION` d to d/4.

Everything here depends on d and epsilon: public configuration.
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


def exp_scaled_at_least(epsilon: float, a: int, b: int) -> bool:
    """Decide ``a * e**epsilon >= b`` exactly, for integers of any size.

    Equality of nonzero sides is impossible (e to a nonzero rational power is
    irrational), so raising the precision settles every case.
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


# The h in question stay below 1,000 (epsilon <= 100 caps them through Hoeffding's bound),
# log C(d, h) below 2e4, and a running sum of 1,000 such logarithms loses less than 1e-8.
_DOUBLE_MARGIN = 1e-7
_ROWS = 256


def largest_dim_out(dimension: int, top_size: int, epsilon: float, threshold_ratio: float) -> int:
    """Return h for an update of d entries.

    Parameters
    ----------
    dimension, top_size : int
        d and K; K is at most d/4, or 1.
    epsilon : float
        Per release, in (0, 100].
    threshold_ratio : float
        Least E[v] / h, in [0.5, 1].

    Returns
    -------
    int
        In [1, d].
    """
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
    """Return v_th, the first t with E_t <= t: it maximizes the mean of v.

    Parameters
    ----------
    dimension, top_size, dim_out : int
        d, K and h, with 1 <= K <= d and 1 <= h <= d.
    epsilon : float
        Per release, in (0, 100].

    Returns
    -------
    int
        In [0, h].
    """
    first, counts = hypergeometric_weights(dimension, top_size, dim_out)
    # How far v is above each t, and how far below it, both summed over the counts of v.
    above = list(accumulate(accumulate(reversed(counts)), initial=0))[-2::-1]
    below = list(accumulate(accumulate(counts), initial=0))

    def reached(i: int) -> bool:
        return exp_scaled_at_least(epsilon, -above[i], -below[i])

    return first + bisect_left(range(len(counts)), True, key=reached)


def log_binomials(n: int, terms: int) -> Floats:
    """Return log C(n, i) for i from 0 to terms - 1; minus infinity beyond n."""
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
    """Return r(q), the mean of the q largest of normal entries of mean 0 and variance 1."""
    normal = NormalDist()
    return normal.pdf(normal.inv_cdf(fraction)) / fraction


def worths(dimension: int, top_size: int, epsilon: float, dim_outs: Ints) -> Floats:
    """Return c(K, h) for each h.

    Parameters
    ----------
    dimension, top_size : int
        d and K, with 1 <= K < d.
    epsilon : float
        Per release, in (0, 100].
    dim_outs : ndarray of int, shape (n,)
        h, each in [1, d].

    Returns
    -------
    ndarray of float64, shape (n,)
    """
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
    """Return K and h whose sum of reports points farthest along the update.

    Parameters
    ----------
    dimension : int
        d, at least 1.
    epsilon : float
        Per release, in (0, 100].
    dim_out : int
        h if it is given, in [1, d]; 0 to choose it.
    least : float
        Least K / d.
    crowd : float
        nu, reports in the sum for each weight.

    Returns
    -------
    top_size : int
        K, from ``least`` d to d / 4, or 1.
    dim_out : int
        h, at most 128 if it is chosen.
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
    """Return E_t - h q for each h, and t downwards; no difference of two large numbers."""
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
