r"""How many dimensions a SignDS report carries (h), and how many must lie in S (v_th).

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

The sums are taken in doubles, for many h' at once (logarithms of binomials from running
sums of log ratios, since ``lgamma`` loses all digits at d = 1e9); where a double is too
close to call, exact integers decide. The cost does not depend on d.

Source of the rules: Jiang, Zhou, Grossklags, "SignDS-FL", ACM TIST 13(5), 2022; the
one-sided tests and their proofs above are this package's.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.signds_law import MAX_DIM_OUT, TailMoments
from flower_ldp.privacy import as_fraction

# From t >= h/2 on, terms fall by a factor of three or more if K <= d/4, so that 48 of
# them leave out less than 1e-22 of the sum.
_TAIL_TERMS = 48
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
        surplus = _surplus(dimension, top_size, epsilon, sizes, thresholds) - threshold_ratio
        for h, t, value in zip(sizes.tolist(), thresholds.tolist(), surplus, strict=True):
            holds = bool(value > 0)
            if abs(value) < _DOUBLE_MARGIN:
                tails = TailMoments.of(dimension, top_size, h)
                holds = tails.mean_at_least(t, ratio * h, epsilon)
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
    excess = _mean_excess(dimension, top_size, dim_out, epsilon)
    excess[-1] = min(excess[-1], 0.0)  # v <= h, whatever the last digit of a double says
    t = int(np.argmax(excess <= 0))
    if np.abs(excess[max(t - 1, 0) : t + 1]).min() > _DOUBLE_MARGIN * dim_out:
        return t
    tails = TailMoments.of(dimension, top_size, dim_out)
    return bisect_left(
        range(dim_out), True, key=lambda t: tails.mean_at_most(t, Fraction(t), epsilon)
    )


def _mean_excess(
    dimension: int, top_size: int, dim_out: int, epsilon: float
) -> NDArray[np.float64]:
    """Return E_t - t in doubles, for t from 0 to h."""
    t = np.arange(dim_out + 1)
    log_top = log_binomials(top_size, dim_out + 1)
    log_rest = log_binomials(dimension - top_size, dim_out + 1)
    p = np.exp(log_top + log_rest[::-1] - log_binomials(dimension, dim_out + 1)[-1])
    gain = math.expm1(epsilon)
    above = np.cumsum(p[::-1])[::-1]
    above_v = np.cumsum((p * t)[::-1])[::-1]
    mean = dim_out * (top_size / dimension)
    result: NDArray[np.float64] = (mean + gain * above_v) / (1.0 + gain * above) - t
    return result


def _surplus(
    dimension: int,
    top_size: int,
    epsilon: float,
    sizes: NDArray[np.int64],
    thresholds: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return E_t(h) / h in doubles, for each h of ``sizes`` at its t."""
    terms = int(sizes[-1]) + 1
    log_top = log_binomials(top_size, terms)
    log_rest = log_binomials(dimension - top_size, terms)
    log_all = log_binomials(dimension, terms)
    v = thresholds[:, None] + np.arange(_TAIL_TERMS)
    feasible = v <= sizes[:, None]
    v = np.where(feasible, v, 0)
    log_p = log_top[v] + log_rest[sizes[:, None] - v] - log_all[sizes][:, None]
    p = np.where(feasible, np.exp(log_p), 0.0)
    gain = math.expm1(epsilon)
    means = sizes * (top_size / dimension) + gain * (p * v).sum(axis=1)
    result: NDArray[np.float64] = means / (1.0 + gain * p.sum(axis=1)) / sizes
    return result


def log_binomials(n: int, terms: int) -> NDArray[np.float64]:
    """Return log C(n, i) for i from 0 to terms - 1; minus infinity beyond n."""
    i = np.arange(min(n, terms - 1), dtype=np.float64)
    out = np.full(terms, -np.inf)
    out[0] = 0.0
    out[1 : len(i) + 1] = np.cumsum(np.log((n - i) / (i + 1)))
    return out
