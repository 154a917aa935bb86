r"""The codewords nearest to an update, exactly as many as are wanted, and a draw among them.

Rotations that are public and cheap: a random sign for each coordinate, then Hadamard's matrix.

Hadamard's matrix of order n, a power of two, has the entry :math:`(-1)^{|i \wedge j|}` in row i
and column j, the number of bits that both have (Sylvester's order). Its rows are orthogonal, and
their length is the square root of n. Behind random signs D the rows over that length are n unit
vectors that prefer no coordinate. All inner products with a vector take n log2 n additions.

Signs are bits of SHAKE-256 of a seed and a number, so that two machines find the same ones.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.bounds import check_in
from flower_ldp.mechanisms.random import Floats, Ints, RandomSource


def favoured_of(products: Floats, size: int, offset: int) -> Ints:
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


def _nearer(products: Floats, rows: Ints) -> Ints:
    """Return the positions of rows, or of their opposites where these are nearer; in order."""
    return 2 * rows + (products[rows] < 0)


def draw(favoured: Ints, codewords: int, rng: RandomSource, *, inside: bool) -> int:
    """Return a uniform position among the favoured ones, or among all others.

    Both are drawn, so that neither time nor the random source tells which is returned.
    """
    ascending = np.sort(favoured)
    within = int(ascending[rng.below(len(ascending))])
    beside = rng.below(codewords - len(ascending))
    # The others in ascending order: as many favoured ones come before as stand at most there.
    beside += int(np.searchsorted(ascending - np.arange(len(ascending)), beside, side="right"))
    return (beside, within)[inside]


def share_of_offsets(products: Floats, size: int, position: int) -> int:
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


#: Largest order; a vector of doubles of it takes 128 MiB.
MAX_ORDER = 1 << 24
# Steps that span no more than this are done in one product with a small matrix.
_SMALL = 64


def order_for(dimension: int) -> int:
    """Return the least power of two that is at least ``dimension``.

    Raises
    ------
    ValueError
        If ``dimension`` is outside [1, 2^24].
    """
    check_in(f"[1, {MAX_ORDER}]", "dimension", dimension)
    return 1 << (dimension - 1).bit_length()


def signs(seed: int, number: int, order: int) -> NDArray[np.int8]:
    """Return the signs D of one rotation.

    Parameters
    ----------
    seed : int
        Public; in [0, 2^64).
    number : int
        Which rotation of this seed; in [0, 2^32).
    order : int
        n.

    Returns
    -------
    ndarray of int8, shape (n,)
        1 or -1.
    """
    name = b"flower-ldp rotation" + seed.to_bytes(8, "big") + number.to_bytes(4, "big")
    stream = np.frombuffer(hashlib.shake_256(name).digest(-(-order // 8)), dtype=np.uint8)
    bits = np.unpackbits(stream, count=order)
    return (1 - 2 * bits.astype(np.int8)).astype(np.int8)


def transform(vector: NDArray[Any]) -> Floats:
    """Return Hadamard's matrix times a vector, or times each of several.

    Parameters
    ----------
    vector : ndarray, shape (n,) or (many, n)
        n a power of two; read, not changed.

    Returns
    -------
    ndarray of float64, shape as given
        Not divided by anything: twice transformed is n times the vector. Of integers whose
        magnitudes add up to less than 2^53 it is exact.
    """
    found = np.array(vector, dtype=np.float64, order="C")
    span, order = 1, found.shape[-1]
    while span < order:
        width = min(_SMALL, order // span)
        pieces = found.reshape(-1, width, span)
        # H of order `width` across the middle axis is `width`'s share of all steps.
        found = np.matmul(_matrix(width), pieces)
        span *= width
    return found.reshape(np.shape(vector))


@lru_cache(maxsize=8)
def _matrix(order: int) -> Floats:
    """Return Hadamard's matrix, after Sylvester."""
    found = np.ones((1, 1))
    while len(found) < order:
        found = np.block([[found, found], [found, -found]])
    return found
