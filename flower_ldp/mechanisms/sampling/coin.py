"""Many exact draws at once: coins with probabilities in units of 2^-256, uniform integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.random import RandomSource

#: Probabilities are integers in units of 2^-COIN_BITS.
COIN_BITS = 256
#: Arrays are worked on in pieces of this length, which stay in the processor's cache.
BLOCK = 16_384

_HEAD_BITS = 64
_TAIL_BITS = COIN_BITS - _HEAD_BITS


def toss(weights: Sequence[int], which: NDArray[np.intp], rng: RandomSource) -> NDArray[np.bool_]:
    """Toss coin ``which[i]`` for each i, independently.

    Parameters
    ----------
    weights : sequence of int
        P(True) of each coin in units of 2^-256; in [0, 2^256).
    which : ndarray of integers, shape (n,)
        Indices into ``weights``.

    Returns
    -------
    ndarray of bool, shape (n,)
    """
    limits = np.array([weight >> _TAIL_BITS for weight in weights], dtype=np.uint64)[which]
    heads = rng.words(len(which))
    fell = heads < limits
    # The first 64 of 256 bits decide, but for ties, which the remaining ones settle.
    for i in np.flatnonzero(heads == limits):
        fell[i] = rng.bits(_TAIL_BITS) < weights[which[i]] & ((1 << _TAIL_BITS) - 1)
    return fell


def uniform(high: int | NDArray[np.int64], size: int, rng: RandomSource) -> NDArray[np.int64]:
    """Return ``size`` integers, each exactly uniform on [0, high).

    As :meth:`RandomSource.integers`, but several times faster: by multiplication and a
    rejection that almost never happens (Lemire 2019, "Fast random integer generation in an
    interval").

    Parameters
    ----------
    high : int, or ndarray of shape (size,)
        In [1, 2^32]; an array gives each integer an end of its own.
    """
    ends = np.broadcast_to(np.asarray(high, dtype=np.uint64), (size,))
    # Products below this belong to no complete set of 2^32 // high draws per integer.
    surplus = np.broadcast_to(np.uint64(1 << 32) % np.asarray(high, dtype=np.uint64), (size,))
    found = np.empty(size, dtype=np.int64)
    missing: NDArray[np.intp] | slice = slice(None)
    while size > 0:
        drawn = np.frombuffer(rng.random_bytes(4 * size), dtype="<u4")
        product = drawn.astype(np.uint64) * ends[missing]
        found[missing] = product >> np.uint64(32)
        refused = np.flatnonzero((product & np.uint64(0xFFFFFFFF)) < surplus[missing])
        missing = refused if isinstance(missing, slice) else missing[refused]
        size = len(missing)
    return found
