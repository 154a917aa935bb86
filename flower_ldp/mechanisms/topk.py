"""Exactly K largest entries of a vector, as a rule for membership and a place to draw from.

The set is held as a threshold tau and a cut among the entries equal to it:

    S = {i : s*u_i > s*tau}  united with  {i : u_i = tau and i < tie_cut}.

The privacy theorem of SignDS rests on |S| = K for every input. Updates hold masses of equal entries
(exact zeros), so ``tie_cut`` decides among them by position. :func:`top_set` counts the members
before it returns a set; where the fast threshold is wrong, a copy of u gives it.

The threshold of a long vector comes from Floyd and Rivest's sampled selection ("Expected time
bounds for selection", 1975): a small sample brackets tau, and one pass collects the entries
between. The sample decides the time, never the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.random import Bools, Ints, RandomSource, first_distinct, uniform_subset
from flower_ldp.parameter_bounds import check_in

# A random trial costs about as much as passing over this many entries.
_TRIAL_COST = 64
# Below one over the largest number of members, 2^32, so that no sum of so many overflows.
_SCALE = 2.0**-64


@dataclass(frozen=True, eq=False)
class TopSet:
    """The K largest entries of ``sign * values``; made by :func:`top_set`.

    ``values`` is a read-only view of u: changing the vector breaks the rule. Entries equal to
    ``threshold``, of u's type, are members below index ``tie_cut``.
    """

    values: FloatVector
    sign: int
    size: int
    threshold: Bound
    tie_cut: int

    def contains(self, indices: Ints) -> Bools:
        """Return which positions in [0, d) are members."""
        entries = self.values[indices]
        ties = (entries == self.threshold) & (indices < self.tie_cut)
        members: Bools = beats(self.sign)(entries, self.threshold) | ties
        return members

    def count(self) -> int:
        """Return the number of members, by looking at every entry.

        Members come first by value, then by lower position, so K members are the K largest.
        """
        return sum(int(np.count_nonzero(mask)) for _, _, mask in self._masks())

    def mean(self) -> float:
        """Return the mean of ``s*u`` in float64; always finite."""
        total = self._sum(1.0)
        if math.isfinite(total):
            return self.sign * total / self.size
        return self.sign * (self._sum(_SCALE) / self.size) / _SCALE

    def _sum(self, scale: float) -> float:
        sums, buffer = [], np.empty(min(_BLOCK, len(self.values)))
        with np.errstate(all="ignore"):
            for _, block, mask in self._masks():
                # A product with the mask costs the same however many members there are.
                wide = np.multiply(block, mask, out=buffer[: len(block)])
                sums.append(float((wide if scale == 1.0 else wide * scale).sum()))
        try:
            return math.fsum(sums) if all(map(math.isfinite, sums)) else math.inf
        except OverflowError:
            return math.inf

    def sample(self, inside: int, outside: int, rng: RandomSource) -> Ints:
        """Draw members and others without replacement, as ascending positions, which hide members.

        Raises
        ------
        ValueError
            If ``inside`` is not in [0, K] or ``outside`` not in [0, d - K].
        RuntimeError
            If the source keeps repeating itself.
        """
        counts, sides = (inside, outside), (self.size, len(self.values) - self.size)
        for name, count, side in zip(("inside", "outside"), counts, sides, strict=True):
            check_in(f"[0, {side}]", name, count)
        few = [count * _TRIAL_COST <= side for count, side in zip(counts, sides, strict=True)]
        by_trial = (counts[0] * few[0], counts[1] * few[1])
        drawn = list(first_distinct(rng, len(self.values), by_trial, sides, self.contains))
        for member, count, side, done in zip((True, False), counts, sides, few, strict=True):
            if not done:
                drawn.append(self._at_ranks(uniform_subset(rng, side, count), member))
        return np.sort(np.concatenate(drawn))

    def _at_ranks(self, ranks: Ints, member: bool) -> Ints:
        found = np.empty(len(ranks), dtype=np.int64)
        done, passed = 0, 0
        for offset, _, mask in self._masks():
            if done == len(ranks):
                break
            if not member:
                np.logical_not(mask, out=mask)
            here = int(np.count_nonzero(mask))
            end = done + int(np.searchsorted(ranks[done:], passed + here))
            if end > done:
                found[done:end] = np.flatnonzero(mask)[ranks[done:end] - passed] + offset
            done, passed = end, passed + here
        if done < len(ranks):
            raise RuntimeError("the vector changed after its top set was found")
        return found

    def _masks(self) -> Iterator[tuple[int, FloatVector, Bools]]:
        parts = (
            (beats_or_ties(self.sign), 0, self.tie_cut),
            (beats(self.sign), self.tie_cut, len(self.values)),
        )
        for comparison, start, stop in parts:
            for offset, block, mask in blocks(self.values, start, stop):
                comparison(block, self.threshold, out=mask)
                yield offset, block, mask


def top_set(values: FloatVector, size: int, sign: int) -> TopSet:
    """Return the set of exactly ``size`` largest entries of ``sign * values``.

    Zeros of either sign are equal. Vectors up to 131,072 entries, and adversarial longer ones, are
    copied.

    Parameters
    ----------
    values : ndarray of float16, float32 or float64, shape (d,)
        u; not modified.
    size : int
        K, in ``[1, d]``.
    sign : {-1, +1}
        s.

    Raises
    ------
    ValueError
        If ``values`` holds NaN or infinity.
    RuntimeError
        If no set of ``size`` members was found, as when the vector changes meanwhile.
    """
    # A plain view: subclasses redefine comparisons (masked arrays) or cost time.
    view = np.asarray(values).view()
    view.flags.writeable = False
    # The fast way first, if the vector is long; the plain one if its threshold is not right.
    for way in (_by_bracket, _by_copy) if len(view) > _COPY_LENGTH else (_by_copy,):
        threshold = way(view, size, sign)
        if threshold is not None:
            # The theorem rests on the number of members: each is counted, by these two lines.
            better = TopSet(view, sign, size, threshold, 0)
            tie_cut = _tie_cut(view, threshold, size - better.count())
            if tie_cut is not None:
                return replace(better, tie_cut=tie_cut)
    raise RuntimeError("the vector changed while its top set was sought")


# Up to this length a selection on a copy is the fastest.
_COPY_LENGTH = 1 << 17
_SMALLEST_SAMPLE = 1 << 13
_LARGEST_SAMPLE = 1 << 17
# Half width of the bracket, in standard deviations of a rank in the sample.
_DEVIATIONS = 3.5
# The bracket may hold one entry in this many; the list of pieces and their
# concatenation then take at most a quarter of the vector's memory.
_BRACKET_SHARE = 8


def _by_copy(values: FloatVector, size: int, sign: int) -> Bound:
    for offset, block, mask in blocks(values):
        check_finite(block, mask, offset)
    return _select(values.copy(), size - 1, sign)


def _by_bracket(values: FloatVector, size: int, sign: int) -> Bound | None:
    """Return tau by one pass, or None if too much lies in the bracket.

    If tau lies beyond an end, that end is returned, and the count of its members refutes it.
    """
    worse_end, better_end = _bracket(values, size, sign)
    scanned = _scan(values, sign, worse_end, better_end, len(values) // _BRACKET_SHARE)
    if scanned is None:
        return None
    beyond, between = scanned
    if size <= beyond:
        return better_end
    if size > beyond + len(between):
        return worse_end
    return _select(between, size - beyond - 1, sign)


def _bracket(values: FloatVector, size: int, sign: int) -> tuple[Bound, Bound]:
    """Return two values, worse and better, that probably enclose tau.

    Positions are shifted by multiples of the golden ratio (40503 / 2**16), against periods of u.
    """
    length = len(values)
    count = min(_LARGEST_SAMPLE, max(_SMALLEST_SAMPLE, length // 64))
    ordinal = np.arange(count, dtype=np.int64)
    shift = ((ordinal * 40503 & 0xFFFF) * (length // count)) >> 16
    sample = values[ordinal * length // count + shift]
    rank = count * (size / length)
    slack = _DEVIATIONS * math.sqrt(rank * (1.0 - size / length)) + 8.0
    better_rank, worse_rank = math.floor(rank - slack), math.ceil(rank + slack)
    # One rank at a time: numpy's vectorized selection takes no list of ranks.
    worse_end = _select(sample, worse_rank, sign) if worse_rank < count else -math.inf * sign
    better_end = _select(sample, better_rank, sign) if better_rank >= 0 else math.inf * sign
    return worse_end, better_end


def _select(sample: FloatVector, rank: int, sign: int) -> Bound:
    place = len(sample) - 1 - rank if sign > 0 else rank
    sample.partition(place)
    found: Bound = sample[place]
    return found


def _scan(
    values: FloatVector, sign: int, worse_end: Bound, better_end: Bound, limit: int
) -> tuple[int, FloatVector] | None:
    """Count the entries at or beyond the better end; collect those strictly between.

    None if more than ``limit`` would be collected. Every entry is checked to be finite.
    """
    strict, at_least = beats(sign), beats_or_ties(sign)
    beyond, collected = 0, 0
    pieces = [np.empty(0, dtype=values.dtype)]
    for offset, block, mask in blocks(values):
        check_finite(block, mask, offset)
        at_least(block, better_end, out=mask)
        beyond += int(np.count_nonzero(mask))
        inner = strict(block, worse_end)
        np.greater(inner, mask, out=inner)  # none of one that the ends share
        piece = block.compress(inner)
        collected += len(piece)
        if collected > limit:
            return None
        pieces.append(piece)
    return beyond, np.concatenate(pieces)


def _tie_cut(values: FloatVector, threshold: Bound, wanted: int) -> int | None:
    if wanted < 1:
        return None if wanted else 0
    for offset, block, mask in blocks(values):
        np.equal(block, threshold, out=mask)
        here = int(np.count_nonzero(mask))
        if wanted <= here:
            return offset + int(np.flatnonzero(mask)[wanted - 1]) + 1
        wanted -= here
    return None


FloatVector: TypeAlias = NDArray[np.floating[Any]]
#: What entries are compared with: of their own type, so that no conversion can flush it to zero.
Bound: TypeAlias = float | np.floating[Any]

_BLOCK = 1 << 17
_SMALLEST_BLOCK = 1 << 13


def beats(sign: int) -> np.ufunc:
    """Return the comparison "is better"."""
    return np.greater if sign > 0 else np.less


def beats_or_ties(sign: int) -> np.ufunc:
    """Return the comparison "is at least as good"."""
    return np.greater_equal if sign > 0 else np.less_equal


def blocks(
    values: FloatVector, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, FloatVector, Bools]]:
    """Yield offset, contiguous block of ``values[start:stop]`` and a scratch mask of its length.

    float16 is widened to float32. A block is read-only, and valid until the next one.
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


def check_finite(block: FloatVector, mask: Bools, offset: int) -> None:
    """Raise ValueError with the position of the first NaN or infinity."""
    np.isfinite(block, out=mask)
    if not mask.all():
        position = offset + int(mask.argmin())
        raise ValueError(f"values must be finite, got NaN or infinity at position {position}")
