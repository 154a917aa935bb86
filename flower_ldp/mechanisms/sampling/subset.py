"""Uniform subsets of a range of integers, drawn without a list of the range.

The first distinct values of a uniform stream are, by symmetry, a uniform subset; so
are the first distinct ones among those that pass a test, of the integers that pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.random import RandomSource

Mask: TypeAlias = NDArray[np.bool_]

_LARGEST_BATCH = 1 << 20
# A batch aims at more than what is missing, or is a million trials: a working source
# never needs this many.
_MOST_BATCHES = 10_000


def uniform_subset(rng: RandomSource, high: int, count: int) -> NDArray[np.int64]:
    """Return a uniform subset of ``[0, high)`` of a given size.

    Parameters
    ----------
    rng : RandomSource
        Source of the draws.
    high : int
        Exclusive upper end.
    count : int
        How many, in ``[0, high]``. Past one half of the range a mask of ``high`` bytes
        is made.

    Returns
    -------
    ndarray of int64, shape (count,)
        Distinct integers, in ascending order.

    Raises
    ------
    RuntimeError
        If the source keeps repeating itself.
    """
    if 2 * count <= high:
        return np.sort(first_distinct(rng, high, (count, 0), (high, 0), _all)[0])
    # Drawing what is left out keeps the number of repeats down.
    kept = np.ones(high, dtype=np.bool_)
    kept[first_distinct(rng, high, (high - count, 0), (high, 0), _all)[0]] = False
    return np.flatnonzero(kept)


def first_distinct(
    rng: RandomSource,
    high: int,
    counts: tuple[int, int],
    sides: tuple[int, int],
    is_member: Callable[[NDArray[np.int64]], Mask],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first distinct members, and others, of a uniform stream on ``[0, high)``.

    One stream serves both: given which of its values are members, these are uniform on
    the members and the rest on the others, all independent.

    Parameters
    ----------
    rng : RandomSource
        Source of the stream.
    high : int
        Exclusive upper end.
    counts : (int, int)
        How many members and how many others; meant for at most half of each side, past
        which repeats make it slow.
    sides : (int, int)
        How many members and others the range holds, at least ``counts``.
    is_member : callable
        Membership of an array of integers.

    Returns
    -------
    members, others : ndarray of int64
        Distinct integers in the order of the stream, a uniform choice of each side.

    Raises
    ------
    RuntimeError
        If the source keeps repeating itself.
    """
    pools = [np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)]
    for _ in range(_MOST_BATCHES):
        missing = [count - len(pool) for count, pool in zip(counts, pools, strict=True)]
        if max(missing) <= 0:
            # The stream's order matters here: the smallest of a batch are not uniform.
            return pools[0][: counts[0]], pools[1][: counts[1]]
        aims = [m + m // 8 + 3 * math.isqrt(m) + 4 if m > 0 else 0 for m in missing]
        trials = max(aim * high // max(side, 1) for aim, side in zip(aims, sides, strict=True))
        fresh = rng.integers(high, min(trials, _LARGEST_BATCH))
        inside = is_member(fresh)
        for i, part in enumerate((inside, ~inside)):
            if aims[i]:
                # Dropping by place in the stream, whatever the value, leaves it uniform.
                stream = np.concatenate([pools[i], fresh[part][: aims[i]]])
                first = np.unique(stream, return_index=True)[1]
                pools[i] = stream[np.sort(first)]
    raise RuntimeError("the random source keeps repeating itself")


def _all(indices: NDArray[np.int64]) -> Mask:
    return np.ones(len(indices), dtype=np.bool_)
