"""Threshold of exact rank in a long vector, without sorting it: candidates, to be counted.

Finds tau, the K-th best entry of a vector ``u`` of length d ("best" is largest for sign
+1, smallest for sign -1), and how many entries equal to tau belong to the best K. Two order
statistics of a small sample of u bracket tau; one pass in blocks that stay in cache
counts the entries at or beyond the better end and collects those strictly between; a
selection among these gives tau. This is the sampled selection of Floyd and Rivest,
"Expected time bounds for selection" (1975), with the ends' equals counted apart, so
that a mass of equal entries is never collected.

The sample is to decide how long this takes, never the result: when the bracket misses, or
would collect too much, the threshold comes from a selection on a copy of the vector. Nothing
here is taken on trust: whoever asks counts the entries that a cut leaves, and takes the next
cut, the one from a copy, if there are not K (:func:`flower_ldp.mechanisms.sampling.topk.top_set`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from flower_ldp.mechanisms.sampling.blocks import (
    Bound,
    FloatVector,
    beats,
    beats_or_ties,
    blocks,
    check_finite,
    count_where,
)

# Up to this length a selection on a copy is the fastest.
_COPY_LENGTH = 1 << 17
_SMALLEST_SAMPLE = 1 << 13
_LARGEST_SAMPLE = 1 << 17
# Half width of the bracket, in standard deviations of a rank in the sample.
_DEVIATIONS = 3.5
# The bracket may hold one entry in this many; the list of pieces and their
# concatenation then take at most a quarter of the vector's memory.
_BRACKET_SHARE = 8


def find_cuts(values: FloatVector, size: int, sign: int) -> Iterator[tuple[Bound, int]]:
    """Find thresholds and tie rules that should leave exactly ``size`` entries.

    Parameters
    ----------
    values : ndarray of float16, float32 or float64, shape (d,)
        The vector u.
    size : int
        K, in ``[1, d]``.
    sign : {-1, +1}
        +1 for the K largest entries, -1 for the K smallest.

    Yields
    ------
    threshold : numpy scalar
        tau, an entry of u, in its own type.
    tie_cut : int
        The best K are the entries better than tau and those equal to it at positions
        below ``tie_cut``; this is d where all equals belong.

    Raises
    ------
    ValueError
        If an entry is NaN or infinite.

    Notes
    -----
    The fast way comes first, if the vector is long and it finds a threshold; the plain way
    last, and only if it is asked for.
    """
    for way in (_by_bracket, _by_copy) if len(values) > _COPY_LENGTH else (_by_copy,):
        found = way(values, size, sign)
        if found is not None:
            threshold, better, equal = found
            wanted = size - better
            yield threshold, _tie_cut(values, threshold, wanted) if wanted < equal else len(values)


def _by_copy(values: FloatVector, size: int, sign: int) -> tuple[Bound, int, int]:
    """Return tau, the number of better entries and of equal ones, from a copy of u."""
    for offset, block, mask in blocks(values):
        check_finite(block, mask, offset)
    copy = values.copy()
    cut = len(values) - size if sign > 0 else size
    place = cut if sign > 0 else cut - 1
    copy.partition(place)
    threshold: Bound = copy[place]
    low, high = (count_where(part, np.equal, threshold) for part in (copy[:cut], copy[cut:]))
    # The chosen part holds exactly K entries, tau the worst of them.
    return threshold, size - (high if sign > 0 else low), low + high


def _by_bracket(values: FloatVector, size: int, sign: int) -> tuple[Bound, int, int] | None:
    """Return what `_by_copy` returns, by a bracket; None where the bracket fails."""
    worse_end, better_end = _bracket(values, size, sign)
    limit = len(values) // _BRACKET_SHARE
    scanned = _scan(values, sign, worse_end, better_end, limit)
    if scanned is None:
        return None
    beyond, between = scanned
    if size > beyond and worse_end == better_end:
        # One value, whose equals `beyond` holds: tau is worse than all that was looked at.
        return None
    if size <= beyond:
        # tau is the better end itself or lies beyond it.
        better = count_where(values, beats(sign), better_end)
        return (better_end, better, beyond - better) if better < size else None
    if size > beyond + len(between):
        better = beyond + len(between)
        equal = count_where(values, np.equal, worse_end)
        return (worse_end, better, equal) if size <= better + equal else None
    wanted = size - beyond
    rank = len(between) - wanted if sign > 0 else wanted - 1
    between.partition(rank)
    threshold = between[rank]
    better = beyond + int(np.count_nonzero(beats(sign)(between, threshold)))
    return threshold, better, int(np.count_nonzero(between == threshold))


def _bracket(values: FloatVector, size: int, sign: int) -> tuple[Bound, Bound]:
    """Return two values, worse and better, that should enclose tau.

    The positions are one in each of n equal ranges, shifted by a multiple of the
    golden ratio (40503 / 2**16) so that no period of the vector is in step with them.
    """
    length = len(values)
    count = min(_LARGEST_SAMPLE, max(_SMALLEST_SAMPLE, length // 64))
    ordinal = np.arange(count, dtype=np.int64)
    shift = ((ordinal * 40503 & 0xFFFF) * (length // count)) >> 16
    sample = values[ordinal * length // count + shift]
    rank = count * (size / length)
    slack = _DEVIATIONS * math.sqrt(rank * (1.0 - size / length)) + 8.0
    better_rank, worse_rank = math.floor(rank - slack), math.ceil(rank + slack)
    worse_end: Bound = -math.inf * sign
    better_end: Bound = math.inf * sign
    # One rank at a time: numpy's vectorized selection takes no list of ranks.
    if worse_rank < count:
        worse_end = _select(sample, worse_rank, sign)
    if better_rank >= 0:
        better_end = _select(sample, better_rank, sign)
    return worse_end, better_end


def _select(sample: FloatVector, rank: int, sign: int) -> Bound:
    """Return the entry with exactly ``rank`` entries before it from the best; reorders."""
    place = len(sample) - 1 - rank if sign > 0 else rank
    sample.partition(place)
    found: Bound = sample[place]
    return found


def _scan(
    values: FloatVector, sign: int, worse_end: Bound, better_end: Bound, limit: int
) -> tuple[int, FloatVector] | None:
    """Count the entries at or beyond the better end; collect those strictly between.

    Every entry is checked to be finite. None if more than ``limit`` would be collected.
    """
    strict, at_least = beats(sign), beats_or_ties(sign)
    one_point = worse_end == better_end
    beyond, collected = 0, 0
    pieces = [np.empty(0, dtype=values.dtype)]
    second = np.empty(0, dtype=np.bool_)
    for offset, block, mask in blocks(values):
        check_finite(block, mask, offset)
        at_least(block, better_end, out=mask)
        beyond += int(np.count_nonzero(mask))
        if one_point:
            continue
        if len(second) < len(block):
            second = np.empty(len(block), dtype=np.bool_)
        inner = second[: len(block)]
        strict(block, worse_end, out=inner)
        np.logical_xor(inner, mask, out=inner)
        piece = block.compress(inner)
        collected += len(piece)
        if collected > limit:
            return None
        pieces.append(piece)
    return beyond, np.concatenate(pieces)


def _tie_cut(values: FloatVector, threshold: Bound, wanted: int) -> int:
    """Return the position behind the first ``wanted`` entries that equal ``threshold``."""
    if wanted < 1:
        return 0
    for offset, block, mask in blocks(values):
        np.equal(block, threshold, out=mask)
        here = int(np.count_nonzero(mask))
        if wanted <= here:
            return offset + int(np.flatnonzero(mask)[wanted - 1]) + 1
        wanted -= here
    return len(values)
