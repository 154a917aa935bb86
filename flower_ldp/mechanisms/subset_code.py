"""A canonical code of fixed length for h-subsets of {0, ..., d-1}.

Elias-Fano (Elias 1974, Fano 1971) on k_i = J_i - i, in [0, D] with D = d - h, with the high parts
as a bitmap, *plain* or *ranked*, as (d, h) decides: docs/wire.md. Every code has at most 1.05 log2
C(d, h) / 8 + 12 bytes. Each subset has exactly one code; all else is refused.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError
from flower_ldp.mechanisms.random import Ints
from flower_ldp.mechanisms.signds_size import MAX_DIM_OUT, MAX_DIMENSION
from flower_ldp.parameter_bounds import check_in

_BLOCK = 320


@dataclass(frozen=True)
class _Layout:
    """Where the bits lie: ``h * low_bits`` low, ``high_bits`` high; lowest bit always first."""

    low_bits: int
    bitmap_bits: int
    high_bits: int
    ranked: bool
    n_bits: int
    n_bytes: int


def encoded_length(d: int, h: int) -> int:
    """Return the number of bytes of every code of an h-subset of ``range(d)``.

    Raises
    ------
    ValueError
        If ``d`` is not in [1, 2**32 - 1], or ``h`` not in [1, min(d, 4096)].
    """
    return _layout(d, h).n_bytes


def encode(indices: Ints | NDArray[np.uint32], d: int) -> bytes:
    """Encode strictly increasing integers of ``range(d)``; raise ValueError for others."""
    if indices.dtype not in (np.int64, np.uint32) or indices.ndim != 1:
        got = f"{indices.shape} of {indices.dtype}"
        raise ValueError(f"indices must be (h,) of int64 or uint32, got {got}")
    layout, values = _layout(d, indices.size), indices.astype(np.int64)
    if (values[1:] <= values[:-1]).any():
        raise ValueError("indices must increase strictly")
    if values[0] < 0 or values[-1] >= d:
        raise ValueError(f"indices must be in [0, {d}), got {values[0]} to {values[-1]}")
    steps = np.arange(values.size, dtype=np.int64)
    gaps = values - steps
    ones = (gaps >> layout.low_bits) + steps
    bits = np.zeros(layout.n_bits, dtype=np.uint8)
    n_low = values.size * layout.low_bits
    bits[:n_low] = ((gaps[:, None] >> np.arange(layout.low_bits)) & 1).reshape(-1)
    if layout.ranked:
        rank = _rank(ones, layout.bitmap_bits).to_bytes(layout.n_bytes, "little")
        bits[n_low:] = _unpack(rank, layout.high_bits)
    else:
        bits[n_low + ones] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def decode(data: bytes, d: int, h: int) -> Ints:
    """Decode an h-subset of ``range(d)`` into strictly increasing int64 indices.

    Memory is in proportion to ``encoded_length(d, h)``, and once 3.5 MB if the code is ranked.

    Raises
    ------
    WireError
        ``"length"``; ``"padding"`` for a bit behind the last one; ``"range"`` for a rank, a count
        of ones or an index outside its range; ``"order"`` for indices that do not increase.
    ValueError
        If ``d`` or ``h`` is outside its interval.
    """
    layout = _layout(d, h)
    if len(data) != layout.n_bytes:
        raise WireError("length", f"{len(data)} bytes, expected {layout.n_bytes}")
    if layout.n_bits % 8 and data[-1] >> (layout.n_bits % 8):
        raise WireError("padding", "a bit after the last one is set")
    bits = _unpack(data, layout.n_bits)
    n_low = h * layout.low_bits
    if layout.ranked:
        rank = int.from_bytes(np.packbits(bits[n_low:], bitorder="little").tobytes(), "little")
        ones = _unrank(rank, layout.bitmap_bits, h)
    else:
        ones = bits[n_low:].nonzero()[0].astype(np.int64)
    if ones.size != h:
        raise WireError("range", f"{ones.size} ones in the bitmap for {h} indices")
    steps = np.arange(h, dtype=np.int64)
    weights = 1 << np.arange(layout.low_bits, dtype=np.int64)
    low = bits[:n_low].reshape(h, layout.low_bits) @ weights
    indices: Ints = ((ones - steps) << layout.low_bits) + low + steps
    if (indices[1:] <= indices[:-1]).any():
        raise WireError("order", "the indices do not increase strictly")
    if indices[-1] >= d:
        raise WireError("range", f"index {indices[-1]} is not below {d}")
    return indices


def _unpack(data: bytes, n_bits: int) -> NDArray[np.uint8]:
    return np.unpackbits(np.frombuffer(data, np.uint8), count=n_bits, bitorder="little")


@lru_cache(maxsize=64)
def _layout(d: int, h: int) -> _Layout:
    """Choose the way of coding, in integers alone so that both ends choose alike.

    Plain if short enough, else ranked with the most low bits, which decodes fastest.
    """
    check_in(f"[1, {MAX_DIMENSION}]", "d", d)
    check_in(f"[1, {min(d, MAX_DIM_OUT)}]", "h", h)
    spread = d - h
    # At most 1.05 log2 C(d, h) + 8 * 12 bits, after the padding to whole bytes.
    budget = 21 * (math.comb(d, h).bit_length() - 1) // 20 + 8 * 12 - 7
    best = max((spread // h).bit_length() - 1, 0)
    for ranked, low_bits in ((False, best), *((True, i) for i in range(best, -1, -1))):
        bitmap_bits = h + (spread >> low_bits)
        high_bits = _rank_bits(bitmap_bits, h) if ranked else bitmap_bits
        n_bits = h * low_bits + high_bits
        if n_bits <= budget:
            return _Layout(low_bits, bitmap_bits, high_bits, ranked, n_bits, -(-n_bits // 8))
    raise AssertionError(f"no code within the bound for d = {d}, h = {h}")


def _rank_bits(n: int, h: int) -> int:
    n_counts = -(-n // _BLOCK) - 1
    most = min(_BLOCK, h, n - h) + 1
    values: int = math.comb(n, h) * most**n_counts
    return (values - 1).bit_length()


def _counts(width: int, rest: int, left: int) -> range:
    return range(max(0, left - rest), min(width, left) + 1)


def _rank(ones: Ints, n: int) -> int:
    """Return the integer for the n-bit bitmap with ones at the positions ``ones``.

    Its digits, least significant first, are count and rank of each block in turn.
    """
    binomials = _binomials()
    value, left, stop = 0, 0, n
    for start in reversed(range(0, n, _BLOCK)):
        block: list[int] = (ones[(ones >= start) & (ones < stop)] - start).tolist()
        left += len(block)
        rank = sum(binomials[i][position] for i, position in enumerate(block, 1))
        counts = _counts(stop - start, n - stop, left)
        value = value * binomials[len(block)][stop - start] + rank
        value = value * len(counts) + counts.index(len(block))
        stop = start
    return value


def _unrank(value: int, n: int, h: int) -> Ints:
    binomials = _binomials()
    ones: list[int] = []
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        counts = _counts(stop - start, n - stop, h - len(ones))
        value, digit = divmod(value, len(counts))
        value, rank = divmod(value, binomials[counts[digit]][stop - start])
        ones += [start + position for position in _unrank_block(rank, stop - start, counts[digit])]
    if value:
        raise WireError("range", "the rank is too large")
    return np.array(ones, dtype=np.int64)


def _unrank_block(rank: int, width: int, count: int) -> list[int]:
    """Return p_1 < ... < p_count with ``rank`` as the sum of C(p_i, i)."""
    positions: list[int] = []
    position = width
    for column in _binomials()[count:0:-1]:
        # The largest position with C(position, i) <= rank.
        position = bisect_right(column, rank, 0, position) - 1
        rank -= column[position]
        positions.append(position)
    return positions[::-1]


@lru_cache(maxsize=1)
def _binomials() -> list[list[int]]:
    columns = [[1] * (_BLOCK + 1)]
    for _ in range(_BLOCK):
        # C(p, i) is the sum of C(q, i-1) over q < p.
        columns.append([0, *accumulate(columns[-1][:-1])])
    return columns
