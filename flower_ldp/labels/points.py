"""Features as points between which distances are told: finite, in doubles, about their middle.

A square distance is found as :math:`|x|^2 + |y|^2 - 2 x y`. In single precision, or far from the
origin (years, coordinates, pixels of 0 to 255 with small differences), what is subtracted is all
that there is, and the nearest are any. So points are moved to their middle and divided by their
largest entry first: neither changes which distances are smaller.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def finite_matrix(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Return values as a matrix of doubles.

    Raises
    ------
    ValueError
        If they are no matrix of finite numbers.
    """
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 2 or not np.isfinite(found).all():
        raise ValueError(f"{name} must be a matrix of finite numbers, got shape {found.shape}")
    return found


def centred(
    points: NDArray[np.float64], *others: NDArray[np.float64]
) -> tuple[NDArray[np.float64], ...]:
    """Return points, and others with them, moved and scaled alike.

    Parameters
    ----------
    points : ndarray of float64, shape (m, d), m at least 1
        Their medians become 0: means would be far off with one point that is.
    *others : ndarrays of float64, shapes (n, d)

    Returns
    -------
    tuple of ndarrays of float64
        Of the same shapes; no entry is above 1.
    """
    sets = (points, *others)
    unit = max(_largest(one) for one in sets) or 1.0
    moved = [one / unit for one in sets]  # first of all, so that no difference overflows
    middle = np.median(moved[0], axis=0)
    for one in moved:
        one -= middle
    spread = max(_largest(one) for one in moved) or 1.0
    for one in moved:
        one /= spread
    return tuple(moved)


def _largest(points: NDArray[np.float64]) -> float:
    return max(float(points.max(initial=0.0)), -float(points.min(initial=0.0)))
