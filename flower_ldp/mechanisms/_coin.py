"""Many coins at once whose probabilities are multiples of 2^-256."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.random import RandomSource

#: Probabilities are integers in units of 2^-COIN_BITS.
COIN_BITS = 256

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
