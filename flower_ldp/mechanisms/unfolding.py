r"""How often each category is true, by maximum likelihood from k-ary responses.

A report names category j with probability :math:`q + t w_j`, where w are the true shares,
:math:`t = (e^\epsilon - 1)/(e^\epsilon + m - 1)` and :math:`q = (1 - t)/m`. With
:math:`c_j` reports of j the log-likelihood :math:`\sum_j c_j \log(q + t w_j)` is concave.

**Expectation-maximization** (iterative Bayesian unfolding; Agrawal and Aggarwal 2001) starts at
a prior and repeats

.. math:: w_j \leftarrow \frac{w_j}{N} \Big( t \frac{c_j}{q + t w_j}
          + q \sum_i \frac{c_i}{q + t w_i} \Big).

No step lowers the likelihood. After n steps it is within
:math:`N\,\mathrm{KL}(w^* \| w^{(0)})/n` of its maximum, at :math:`w^*` (Csiszar and Tusnady
1984). Stopped early it stays near its prior, which is what a private estimate must not do
unnoticed: a score would then echo the prior and not the reports.

**Closed form.** The maximum needs no iteration. By the Karush-Kuhn-Tucker conditions
:math:`w_j = \max(0, c_j/\lambda - q/t)`, and :math:`\lambda` is found by sorting, as in a
projection onto the simplex. It has no prior.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Shares = NDArray[np.float64]


def _noise_ratio(epsilon: float) -> float:
    """Return q/t, which does not depend on the number of categories."""
    return 1.0 / math.expm1(epsilon)


def _check_counts(counts: ArrayLike) -> Shares:
    found = np.asarray(counts)
    if found.ndim != 1 or len(found) < 2:
        raise ValueError(f"counts must have shape (m,) with m >= 2, got {found.shape}")
    if found.dtype.kind not in "iu" or (found < 0).any():
        raise ValueError("counts must be integers of at least 0")
    if not found.any():
        raise ValueError("counts must name at least one report")
    return found.astype(np.float64)


def maximum_likelihood(counts: ArrayLike, epsilon: float) -> Shares:
    """Return the shares that make the reports most likely, in closed form.

    Parameters
    ----------
    counts : array_like of integers, shape (m,)
        How many reports name each category.
    epsilon : float
        Of the k-ary response, per report.

    Returns
    -------
    ndarray of float64, shape (m,)
        On the simplex.

    Raises
    ------
    ValueError
        If the counts are malformed or there is no report.
    """
    found = _check_counts(counts)
    noise = _noise_ratio(epsilon)
    falling = np.sort(found)[::-1]
    scale = np.cumsum(falling) / (1.0 + noise * np.arange(1, len(found) + 1))
    kept = int((falling > noise * scale).sum())
    shares = np.maximum(found / scale[kept - 1] - noise, 0.0)
    return np.asarray(shares / shares.sum())


def unfold(
    counts: ArrayLike,
    epsilon: float,
    prior: ArrayLike,
    *,
    iterations: int = 10_000,
    tolerance: float = 1e-10,
) -> Shares:
    """Return shares by expectation-maximization from a prior.

    Parameters
    ----------
    counts : array_like of integers, shape (m,)
        How many reports name each category.
    epsilon : float
        Of the k-ary response, per report.
    prior : array_like of float, shape (m,)
        Where to start; all positive. A category of share 0 would stay there.
    iterations : int
        Most steps, at least 1. Few of them keep the estimate near the prior.
    tolerance : float
        Stop when a step raises the log-likelihood per report by less; at least 0.

    Returns
    -------
    ndarray of float64, shape (m,)
        On the simplex.

    Raises
    ------
    ValueError
        If the counts or the prior are malformed, or a parameter is outside its interval.
    """
    found, shares = _check_counts(counts), np.asarray(prior, dtype=np.float64)
    if shares.shape != found.shape or not (np.isfinite(shares) & (shares > 0)).all():
        raise ValueError(f"prior must be {len(found)} finite positive numbers")
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be at least 0, got {tolerance}")
    noise, total = _noise_ratio(epsilon), float(found.sum())
    shares = shares / shares.sum()
    before = log_likelihood(found, epsilon, shares)
    for _ in range(iterations):
        # q and t enter as their ratio: a common factor cancels.
        ratio = found / (noise + shares)
        shares = shares * (ratio + noise * ratio.sum()) / total
        shares /= shares.sum()
        now = log_likelihood(found, epsilon, shares)
        if now - before < tolerance * total:
            break
        before = now
    return np.asarray(shares)


def log_likelihood(counts: ArrayLike, epsilon: float, shares: ArrayLike) -> float:
    """Return the log-likelihood of shares, up to a constant of the counts.

    Parameters
    ----------
    counts, shares : array_like, shape (m,)
        Reports naming each category, and the shares that are judged.
    epsilon : float
        Of the k-ary response, per report.
    """
    found, judged = np.asarray(counts, dtype=np.float64), np.asarray(shares, dtype=np.float64)
    noise = _noise_ratio(epsilon)
    law = (noise + judged) / (1.0 + noise * len(judged))
    return math.fsum(found * np.log(law))
