"""The codewords nearest to an update, exactly as many as are wanted, and a draw among them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.random import RandomSource


def favoured_of(products: NDArray[np.float64], size: int, offset: int) -> NDArray[np.int64]:
    """Return the positions of the favoured codewords: 2i is row i, 2i + 1 is its opposite.

    Of a row and its opposite one has the inner product's magnitude, and at most n are favoured:
    so magnitudes order them. Those of 0 are the row's and its opposite's alike.
    """
    magnitudes = np.abs(products)
    threshold = np.partition(magnitudes, len(magnitudes) - size)[len(magnitudes) - size]
    above = _nearer(products, np.flatnonzero(magnitudes > threshold))
    at_edge = np.flatnonzero(magnitudes == threshold)
    if threshold > 0:
        ties = _nearer(products, at_edge)
    else:
        ties = (2 * at_edge[:, None] + np.arange(2)).ravel()
    first = int(np.searchsorted(ties, offset))
    chosen = ties[(first + np.arange(size - len(above))) % len(ties)]
    return np.concatenate([above, chosen])


def _nearer(products: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions of rows, or of their opposites where these are nearer; in order."""
    return 2 * rows + (products[rows] < 0)


def draw(favoured: NDArray[np.int64], codewords: int, rng: RandomSource, *, inside: bool) -> int:
    """Return a uniform position among the favoured ones, or among all others.

    Both are drawn, so that neither time nor the random source tells which is returned.
    """
    ascending = np.sort(favoured)
    within = int(ascending[rng.below(len(ascending))])
    beside = rng.below(codewords - len(ascending))
    # The others in ascending order: as many favoured ones come before as stand at most there.
    beside += int(np.searchsorted(ascending - np.arange(len(ascending)), beside, side="right"))
    return (beside, within)[inside]


def share_of_offsets(products: NDArray[np.float64], size: int, position: int) -> int:
    """Return for how many of the M offsets a codeword is favoured, by a stable sort."""
    both = [value for product in products.tolist() for value in (product, -product)]
    ranked = sorted(both, reverse=True)
    threshold = ranked[size - 1]
    if both[position] != threshold:
        return len(both) if both[position] > threshold else 0
    ties = [place for place, value in enumerate(both) if value == threshold]
    left = size - sum(value > threshold for value in both)
    place = ties.index(position)
    # Favoured if the first tie from the offset on is this one, or one of the left - 1 before it.
    gaps = [(ties[i] - ties[i - 1]) % len(both) or len(both) for i in range(len(ties))]
    return sum(gaps[(place - step) % len(ties)] for step in range(left))
