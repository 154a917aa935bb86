r"""Clusters of examples by their features: k-means in steps that a federation can take.

Each step is a sum over examples (:func:`cluster_sums`), so clients send sums and the server
adds them up (:func:`moved`). Label privacy covers none of this, since no label is read; but
the sums are computed from features, which label privacy does not protect. Where features
must stay on the client, take centers from public data.

Priors of labels from the reports of each example's neighbours, over and over.

Examples whose features are near each other mostly have the same label. So the prior of a label is
the mean of its neighbours' posteriors, and their posteriors are their reports' likelihood times
their own priors:

.. math:: q_i \leftarrow \frac{1}{m} \sum_{j \in N(i)} P(\cdot \mid \mathrm{report}_j, q_j)

With one group for all this is a step of expectation-maximization
(:mod:`flower_ldp.labels.priors`). Here each example has a group of its own, and what a report says
goes one neighbour further with every step: an example hears of many more reports than it has
neighbours, by way of examples that are like it.

Nothing here reads a true label, so nothing here costs privacy. Features are read as they are, and
all in one place: label privacy does not protect them.

Features as points between which distances are told: finite, in doubles, about their middle.

A square distance is found as :math:`|x|^2 + |y|^2 - 2 x y`. In single precision, or far from the
origin (years, coordinates, pixels of 0 to 255 with small differences), what is subtracted is all
that there is, and the nearest are any. So points are moved to their middle and divided by their
largest entry first: neither changes which distances are smaller.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

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


# Distances, and entries of posteriors, that are made at a time: 64 MB.
_AT_A_TIME = 1 << 23

Doubles = NDArray[np.float64]


def nearest_examples(features: ArrayLike, count: int) -> NDArray[np.int32]:
    """Return for each example the numbers of the others that are nearest to it.

    All pairs are compared: 60,000 examples of 200 features take a minute and a half. Where
    features begin, and their unit, make no difference, as long as differences are told in doubles.

    Parameters
    ----------
    features : array_like of float, shape (n, d)
    count : int
        How many others, in [1, n).

    Returns
    -------
    ndarray of int32, shape (n, count)
        In no order. An example is not its own neighbour.

    Raises
    ------
    ValueError
        If the features are no matrix of finite numbers, or ``count`` is outside its interval.
    """
    points = finite_matrix("features", features)
    if not 1 <= count < len(points):
        raise ValueError(f"count must be in [1, {len(points)}), got {count}")
    (points,) = centred(points)
    squares = np.einsum("ij,ij->i", points, points) / 2
    found = np.empty((len(points), count), dtype=np.int32)
    size = max(_AT_A_TIME // len(points), 1)
    for start in range(0, len(points), size):
        block = points[start : start + size]
        # |x - y|^2 / 2 less |x|^2 / 2, which is the same for all y
        distances = squares - block @ points.T
        rows = np.arange(len(block))
        distances[rows, start + rows] = np.inf
        found[start : start + size] = np.argpartition(distances, count - 1)[:, :count]
    return found


def priors_from_neighbours(
    likelihood: ArrayLike, neighbours: ArrayLike, *, steps: int = 60
) -> Doubles:
    """Return a prior for each example from the reports of its neighbours, and of theirs.

    Parameters
    ----------
    likelihood : array_like of float, shape (n, k)
        P(report | label y) in column y, from the mechanisms' ``likelihood``. A row may be
        multiplied by any positive number; a row of ones is an example without a report.
    neighbours : array_like of integers, shape (n, m)
        Numbers of other examples, in [0, n), as :func:`nearest_examples` finds them.
    steps : int
        At least 1. After one, a prior holds the reports of the neighbours alone; more steps bring
        in those of examples further away, and make the priors surer.

    Returns
    -------
    ndarray of float64, shape (n, k)
        Rows add up to 1.

    Raises
    ------
    ValueError
        Naming the parameter.
    """
    seen, near = np.asarray(likelihood, np.float64), np.asarray(neighbours)
    if seen.ndim != 2 or not seen.size:
        raise ValueError(f"likelihood must be a matrix, got shape {seen.shape}")
    if not (np.isfinite(seen) & (seen >= 0)).all() or not seen.any(axis=1).all():
        raise ValueError("likelihood must be finite, at least 0, and not all 0 in a row")
    if near.ndim != 2 or not near.size or len(near) != len(seen) or near.dtype.kind not in "iu":
        raise ValueError(f"neighbours must be integers, {len(seen)} rows, got shape {near.shape}")
    if not (near.min() >= 0 and near.max() < len(seen)):
        raise ValueError(f"neighbours must be in [0, {len(seen)})")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    seen = seen / seen.max(axis=1, keepdims=True)
    priors = np.full(seen.shape, 1.0 / seen.shape[1])
    for _ in range(steps):
        priors = _mean_of_neighbours(_posteriors(seen, priors), near)
    return priors


def _posteriors(seen: Doubles, priors: Doubles) -> Doubles:
    """Return the posteriors; of a report that its prior calls impossible, without the prior."""
    joint = seen * priors
    total = joint.sum(axis=1, keepdims=True)
    joint = np.where(total > 0, joint, seen)
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))


def _mean_of_neighbours(rows: Doubles, near: NDArray[np.integer]) -> Doubles:
    found = np.empty_like(rows)
    size = max(_AT_A_TIME // (near.shape[1] * rows.shape[1]), 1)
    for start in range(0, len(rows), size):
        found[start : start + size] = rows[near[start : start + size]].mean(axis=1)
    return found


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
