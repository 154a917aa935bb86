r"""How large the top set (K) and the report (h) of SignDS should be, if nobody says.

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
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.signds_size import log_binomials

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


def worths(
    dimension: int, top_size: int, epsilon: float, dim_outs: NDArray[np.int64]
) -> NDArray[np.float64]:
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
    excess = _largest_excess(dimension, top_size, epsilon, dim_outs)
    result: NDArray[np.float64] = excess / np.sqrt(dim_outs) / (1.0 - q) * mean_of_top(q)
    return result


def cosines(
    dimension: int, top_size: int, epsilon: float, dim_outs: NDArray[np.int64], crowd: float
) -> NDArray[np.float64]:
    """Return the cosine of a sum of reports with their update, over sqrt(nu), for each h.

    Parameters
    ----------
    dimension, top_size, epsilon, dim_outs
        As in :func:`worths`.
    crowd : float
        nu, reports in the sum for each weight; with 0 this is c itself.

    Returns
    -------
    ndarray of float64, shape (n,)
    """
    c = worths(dimension, top_size, epsilon, dim_outs)
    q = top_size / dimension
    limit = 2.0 * q * mean_of_top(q) ** 2
    result: NDArray[np.float64] = c / np.sqrt(1.0 + crowd * c**2 / limit)
    return result


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
    last = min(dimension, _LARGEST_DIM_OUT)
    sizes = np.array([dim_out]) if dim_out else np.arange(1, last + 1)
    epsilon = max(epsilon, _SMALL_EPSILON)
    best, chosen = 0.0, (smallest, dim_out or 1)  # if all are worth nothing, as with h = d
    for top_size in sorted(grid):
        found = cosines(dimension, top_size, epsilon, sizes, crowd)
        first = int(np.argmax(found > found.max() * (1.0 - _MARGIN)))
        if found[first] > best * (1.0 + _MARGIN):
            best, chosen = float(found[first]), (top_size, int(sizes[first]))
    return chosen


def _largest_excess(
    dimension: int, top_size: int, epsilon: float, dim_outs: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return max_t E_t - h q for each h, in doubles; no difference of two large numbers."""
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
    excess = gain * (above_v - means * above) / (1.0 + gain * above)
    result: NDArray[np.float64] = excess.max(axis=1)
    return result
