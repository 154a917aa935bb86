"""Cases of added noise: Laplace on rows and on a scalar, normal noise on an update.

The worst pair is as far apart as inputs can be, and the score is, or grows with, the logarithm
of the ratio of probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.cases import Case, Contrast, claim
from flower_ldp.mechanisms import BoundedMean, Gaussian, Laplace
from flower_ldp.mechanisms.random import RandomSource

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
# Entries of the update: noise is alike in all directions, so more would show nothing more.
_GAUSSIAN_DIMENSION = 8


def laplace(mechanism: Laplace) -> Case:
    """Return the case of Laplace noise on one row: two rows that are certain of their class."""
    ends = [np.eye(mechanism.classes)[[i]] for i in range(mechanism.classes)]
    centres = np.eye(mechanism.classes, dtype=np.int64)[:2] * mechanism.steps

    @lru_cache(maxsize=2)
    def batch(count: int) -> Laplace:
        return Laplace(mechanism.epsilon, mechanism.classes, count, mechanism.grid_bits)

    def draw_many(value: Floats, count: int, rng: RandomSource) -> Integers:
        return batch(count).randomize(np.repeat(value, count, axis=0), rng)

    def ratio(reports: Sequence[Any]) -> Floats:
        found = np.asarray(reports).reshape(-1, mechanism.classes)
        first, second = (np.abs(found - centre).sum(axis=1) for centre in centres)
        return np.asarray((second - first) / (2 * mechanism.steps))

    return Case(
        f"laplace (epsilon {mechanism.epsilon:g}, k {mechanism.classes})",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (Contrast("two one-hot rows", (ends[0], ends[1]), ratio, "log-ratio / epsilon"),),
        list(zip(ends, ends[1:] + ends[:1], strict=True))[:16],
        draws=200_000,
        draw_many=draw_many,
    )


def bounded_mean(mechanism: BoundedMean) -> Case:
    """Return the case of a scalar metric: its two bounds."""

    def ratio(reports: Sequence[Any]) -> Floats:
        found = np.asarray(reports)
        return np.asarray((np.abs(found - mechanism.steps) - np.abs(found)) / mechanism.steps)

    pair = (mechanism.lower, mechanism.upper)
    return Case(
        f"bounded-mean (epsilon {mechanism.epsilon:g})",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (Contrast("the two bounds", pair, ratio, "log-ratio / epsilon"),),
        (pair, pair[::-1]),
        draws=20_000,
    )


def gaussian(mechanism: Gaussian) -> Case:
    """Return the case of normal noise: two opposite updates of the clipping length.

    The score is the sum of the report's entries, which grows with the log-ratio but for the
    rounding of each entry to a quarter of the noise's deviation.
    """
    update = np.full(_GAUSSIAN_DIMENSION, mechanism.clip_norm)
    epsilon, delta = claim(mechanism.events())

    def score(reports: Sequence[Any]) -> Integers:
        return np.asarray(np.stack(reports).sum(axis=1, dtype=np.int64))

    return Case(
        f"gaussian (epsilon {epsilon:g}, delta {delta:g})",
        epsilon,
        mechanism.randomize,
        (Contrast("opposite updates", (update, -update), score, "sum of the report"),),
        ((update, -update), (-update, update)),
        draws=20_000,
        delta=delta,
    )
