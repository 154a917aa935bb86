"""Clusters of examples by their features: k-means in steps that a federation can take.

Each step is a sum over examples (:func:`cluster_sums`), so clients send sums and the server
adds them up (:func:`moved`). Label privacy covers none of this, since no label is read; but
the sums are computed from features, which label privacy does not protect. Where features
must stay on the client, take centers from public data.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.labels.points import centred, finite_matrix

Floats = NDArray[np.float32]

_BLOCK = 4_096


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
    points, middles = finite_matrix("features", features), finite_matrix("centers", centers)
    if not len(middles) or points.shape[1] != middles.shape[1]:
        raise ValueError(f"centers must have shape (n, {points.shape[1]}), got {middles.shape}")
    middles, points = centred(middles, points)
    squares = np.einsum("ij,ij->i", middles, middles) / 2
    found = np.empty(len(points), dtype=np.int64)
    for start in range(0, len(points), _BLOCK):
        block = points[start : start + _BLOCK]
        # |x - c|^2 / 2 less |x|^2 / 2, which is the same for all centers
        found[start : start + _BLOCK] = np.argmin(squares - block @ middles.T, axis=1)
    return found


def cluster_sums(
    features: ArrayLike, centers: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the sum of the features and the number of examples of each cluster.

    Returns
    -------
    tuple of ndarrays, shapes (n_clusters, d) and (n_clusters,)
    """
    points, middles = _matrix("features", features), _matrix("centers", centers)
    members = nearest(points, middles)
    order = np.argsort(members, kind="stable")
    counts = np.bincount(members, minlength=len(middles))
    sums = np.zeros(middles.shape)
    held = np.flatnonzero(counts)
    if len(held):
        starts = np.cumsum(counts)[held] - counts[held]
        sums[held] = np.add.reduceat(points[order].astype(np.float64), starts, axis=0)
    return sums, counts.astype(np.int64)


def moved(centers: ArrayLike, sums: ArrayLike, counts: ArrayLike) -> Floats:
    """Return the means of the clusters; a cluster without examples keeps its center.

    Parameters
    ----------
    centers : array_like of float, shape (n_clusters, d)
    sums, counts : array_like
        Of :func:`cluster_sums`, or added up over clients.
    """
    middles, number = _matrix("centers", centers), np.asarray(counts)[:, np.newaxis]
    return np.where(number > 0, np.asarray(sums) / np.maximum(number, 1), middles).astype(
        np.float32
    )


def _matrix(name: str, values: ArrayLike) -> Floats:
    with np.errstate(over="ignore"):  # what becomes infinite is refused
        found = np.asarray(values, dtype=np.float32)
    if found.ndim != 2 or not np.isfinite(found).all():
        raise ValueError(f"{name} must be a matrix of finite numbers, got shape {found.shape}")
    return found
