"""k-means clusters of examples by their features, in steps that clients can share.

Clients send sums (:func:`cluster_sums`), and the server adds them up (:func:`moved`). No label is
read, but the sums show features, which label privacy does not protect. Where features must stay on
the client, take centers from public data.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float32]

_BLOCK = 4_096
# Distances that are made at a time: 64 MB.
_AT_A_TIME = 1 << 23


def nearest(features: ArrayLike, centers: ArrayLike) -> NDArray[np.int64]:
    """Return the number of the nearest center of each example.

    Parameters
    ----------
    features : array_like of float, shape (n, d)
    centers : array_like of float, shape (n_clusters, d)

    Returns
    -------
    ndarray of int64, shape (n,)
        Ties go to the lower number.

    Raises
    ------
    ValueError
        If the shapes do not fit or a number is not finite.
    """
    points = _matrix("features", features, np.float64)
    middles = _matrix("centers", centers, np.float64)
    if not len(middles) or points.shape[1] != middles.shape[1]:
        raise ValueError(f"centers must have shape (n, {points.shape[1]}), got {middles.shape}")
    middles, points = centred(middles, points)
    found = np.empty(len(points), dtype=np.int64)
    for block, distances in _distances(points, middles, _BLOCK):
        found[block] = np.argmin(distances, axis=1)
    return found


def cluster_sums(
    features: ArrayLike, centers: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the sum of the features and the number of examples of each cluster.

    Returns
    -------
    tuple of ndarrays, shapes (n_clusters, d) and (n_clusters,)
        Of float64 and int64.
    """
    points = _matrix("features", features, np.float32)
    middles = _matrix("centers", centers, np.float32)
    members, centers = nearest(points, middles), range(len(middles))
    sums = np.array([points[members == one].sum(axis=0, dtype=np.float64) for one in centers])
    return sums, np.bincount(members, minlength=len(middles)).astype(np.int64)


def moved(centers: ArrayLike, sums: ArrayLike, counts: ArrayLike) -> Floats:
    """Return the means of the clusters; a cluster without examples keeps its center.

    Parameters
    ----------
    centers : array_like of float, shape (n_clusters, d)
    sums, counts : array_like
        Of :func:`cluster_sums`, added up over clients.
    """
    middles, number = _matrix("centers", centers, np.float32), np.asarray(counts)[:, np.newaxis]
    means = np.asarray(sums) / np.maximum(number, 1)
    return np.where(number > 0, means, middles).astype(np.float32)


def nearest_examples(features: ArrayLike, count: int) -> NDArray[np.int32]:
    """Return for each example the numbers of the others that are nearest to it.

    All pairs are compared: 60,000 examples of 200 features take a minute and a half.

    Parameters
    ----------
    features : array_like of float, shape (n, d)
    count : int
        In [1, n).

    Returns
    -------
    ndarray of int32, shape (n, count)
        In no order, without the example itself.

    Raises
    ------
    ValueError
        If the features are no matrix of finite numbers, or ``count`` is outside its interval.
    """
    points = _matrix("features", features, np.float64)
    if not 1 <= count < len(points):
        raise ValueError(f"count must be in [1, {len(points)}), got {count}")
    (points,) = centred(points)
    found = np.empty((len(points), count), dtype=np.int32)
    for block, distances in _distances(points, points, max(_AT_A_TIME // len(points), 1)):
        rows = np.arange(len(distances))
        distances[rows, block.start + rows] = np.inf
        found[block] = np.argpartition(distances, count - 1)[:, :count]
    return found


def _matrix(name: str, values: ArrayLike, kind: type[np.floating[Any]]) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # what becomes infinite is refused
        found = np.asarray(values, dtype=kind)
    if found.ndim != 2 or not np.isfinite(found).all():
        raise ValueError(f"{name} must be a matrix of finite numbers, got shape {found.shape}")
    return found


def _distances(
    points: NDArray[np.float64], others: NDArray[np.float64], size: int
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield blocks, and half of the square distances up to a constant per point."""
    squares = np.einsum("ij,ij->i", others, others) / 2
    for start in range(0, len(points), size):
        block = slice(start, min(start + size, len(points)))
        # |x - y|^2 / 2 less |x|^2 / 2, which is the same for all y
        yield block, squares - points[block] @ others.T


def centred(
    points: NDArray[np.float64], *others: NDArray[np.float64]
) -> tuple[NDArray[np.float64], ...]:
    """Return float64 points with medians of 0, and others moved alike, scaled into [-1, 1].

    Far from the origin square distances would lose small differences. A mean would follow one
    outlier.
    """
    moved = np.concatenate((points, *others))
    moved /= np.abs(moved).max(initial=0.0) or 1.0  # first of all, so that no difference overflows
    moved -= np.median(moved[: len(points)], axis=0)
    moved /= np.abs(moved).max(initial=0.0) or 1.0
    return tuple(np.split(moved, np.cumsum([len(points), *map(len, others)])[:-1]))
