"""Passes over a long vector in blocks that stay in cache.

The comparisons of a pass write to one small mask, so a pass costs one reading of the
vector and next to no memory, whatever the vector's dtype and layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatVector: TypeAlias = NDArray[np.floating[Any]]
Mask: TypeAlias = NDArray[np.bool_]
#: What entries are compared with: of their own type, so that no conversion can flush it to zero.
Bound: TypeAlias = float | np.floating[Any]

_BLOCK = 1 << 17
_SMALLEST_BLOCK = 1 << 13


def beats(sign: int) -> np.ufunc:
    """Return the strict comparison "is better": greater for +1, less for -1."""
    return np.greater if sign > 0 else np.less


def beats_or_ties(sign: int) -> np.ufunc:
    """Return the comparison "is at least as good": greater_equal for +1, else less_equal."""
    return np.greater_equal if sign > 0 else np.less_equal


def blocks(
    values: FloatVector, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, FloatVector, Mask]]:
    """Cut ``values[start:stop]`` into blocks fit for fast comparisons.

    Parameters
    ----------
    values : ndarray of float16, float32 or float64, shape (d,)
        Contiguous or not, in any byte order; not modified.
    start, stop : int
        Range of positions; the end by default.

    Yields
    ------
    offset : int
        Position of the block's first entry in ``values``.
    block : ndarray of float32 or float64
        Contiguous and in native byte order. float16 is widened, which is exact and
        many times faster to compare. Not to be written to, and valid only until the
        next block: it is either a part of ``values`` or a buffer.
    mask : ndarray of bool
        Scratch space of the block's length, uninitialized.
    """
    stop = len(values) if stop is None else stop
    if stop <= start:
        return
    # A quarter of the vector keeps buffers small beside a short vector.
    length = min(_BLOCK, max(_SMALLEST_BLOCK, len(values) // 4), stop - start)
    mask = np.empty(length, dtype=np.bool_)
    dtype = np.dtype(np.float64 if values.dtype.itemsize == 8 else np.float32)
    direct = values.dtype == dtype and values.flags.c_contiguous and values.flags.aligned
    buffer = None if direct else np.empty(length, dtype=dtype)
    for offset in range(start, stop, length):
        block = values[offset : min(offset + length, stop)]
        if buffer is not None:
            np.copyto(buffer[: len(block)], block)
            block = buffer[: len(block)]
        yield offset, block, mask[: len(block)]


def check_finite(block: FloatVector, mask: Mask, offset: int) -> None:
    """Raise unless every entry of a block is finite.

    Parameters
    ----------
    block : ndarray of float
        Entries to check.
    mask : ndarray of bool
        Scratch space of the same length.
    offset : int
        Position of the block's first entry, for the message.

    Raises
    ------
    ValueError
        If an entry is NaN or infinite; the text names the first such position.
    """
    np.isfinite(block, out=mask)
    if not mask.all():
        position = offset + int(mask.argmin())
        raise ValueError(f"values must be finite, got NaN or infinity at position {position}")


def count_where(values: FloatVector, comparison: np.ufunc, bound: Bound) -> int:
    """Return the number of entries for which ``comparison(entry, bound)`` holds."""
    total = 0
    for _, block, mask in blocks(values):
        comparison(block, bound, out=mask)
        total += int(np.count_nonzero(mask))
    return total
