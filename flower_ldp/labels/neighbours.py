r"""Priors of labels from the reports of each example's neighbours, over and over.

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
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.labels.points import centred, finite_matrix

Floats = NDArray[np.float64]

# Distances, and entries of posteriors, that are made at a time: 64 MB.
_AT_A_TIME = 1 << 23


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
) -> Floats:
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


def _posteriors(seen: Floats, priors: Floats) -> Floats:
    """Return the posteriors; of a report that its prior calls impossible, without the prior."""
    joint = seen * priors
    total = joint.sum(axis=1, keepdims=True)
    joint = np.where(total > 0, joint, seen)
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))


def _mean_of_neighbours(rows: Floats, near: NDArray[np.integer]) -> Floats:
    found = np.empty_like(rows)
    size = max(_AT_A_TIME // (near.shape[1] * rows.shape[1]), 1)
    for start in range(0, len(rows), size):
        found[start : start + size] = rows[near[start : start + size]].mean(axis=1)
    return found
