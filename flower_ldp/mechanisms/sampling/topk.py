"""Exactly K largest entries of a vector, as a rule for membership and a place to draw from.

SignDS needs to know whether an entry of the update ``u`` is among the K largest of
``s*u``, and to draw some of these and some of the rest. It does not need their order.
So the set is held as a threshold tau and a cut among the entries equal to it:

    S = {i : s*u_i > s*tau}  united with  {i : u_i = tau and i < tie_cut},

where ``tie_cut`` makes the size exactly K. The privacy theorem of the selection rests on
|S| = K for every input, and updates hold masses of equal entries (exact zeros), with
which ``s*u >= s*tau`` alone would admit more. Which of the equals belong depends on
nothing but their positions. No set is given away whose members were not counted: where the
fast way's cut leaves another number, the cut comes from a copy of u.

Drawing is by rejection of uniform positions, or, where that would take many trials, by
uniform ranks that one pass turns into positions; both are exactly uniform and neither
makes a list of S.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import quoted
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.blocks import (
    Bound,
    FloatVector,
    Mask,
    beats,
    beats_or_ties,
    blocks,
)
from flower_ldp.mechanisms.sampling.rank import find_cuts
from flower_ldp.mechanisms.sampling.subset import first_distinct, uniform_subset

# A random trial costs about as much as passing over this many entries.
_TRIAL_COST = 64
# Below one over the largest number of members, 2^32, so that no sum of so many overflows.
_SCALE = 2.0**-64


@dataclass(frozen=True, eq=False)
class TopSet:
    """The K largest entries of ``sign * values``; made by :func:`top_set`.

    Attributes
    ----------
    values : ndarray of float16, float32 or float64, shape (d,)
        The vector u: a read-only view, not a copy. Changing the vector underneath
        makes the rule wrong.
    sign : {-1, +1}
        The s in ``s*u``.
    size : int
        K, the exact number of members.
    threshold : numpy scalar
        tau, an entry of u (in the scale of u, not of ``s*u``) and of its type.
    tie_cut : int
        Entries equal to ``threshold`` are members where their index is below this.
    """

    values: FloatVector
    sign: int
    size: int
    threshold: Bound
    tie_cut: int

    def contains(self, indices: NDArray[np.int64]) -> Mask:
        """Tell which indices are members.

        Parameters
        ----------
        indices : ndarray of int, any shape
            Positions in ``[0, d)``.

        Returns
        -------
        ndarray of bool
            Of the same shape.

        Raises
        ------
        IndexError
            If an index is outside ``[0, d)``.
        """
        indices = np.asarray(indices)
        if indices.size and int(indices.min()) < 0:
            raise IndexError(f"indices must be in [0, {len(self.values)}), got a negative one")
        entries = self.values[indices]
        ties = (entries == self.threshold) & (indices < self.tie_cut)
        members: Mask = beats(self.sign)(entries, self.threshold) | ties
        return members

    def count(self) -> int:
        """Return the number of members, by looking at every entry.

        Whatever tau and ``tie_cut`` are, the members come first in the order "better first,
        among equals the lower position first". So if they are K in number, they are the K
        largest: this number proves the set.
        """
        return sum(int(np.count_nonzero(mask)) for _, _, mask in self._masks())

    def mean(self) -> float:
        """Return the mean over the set of ``s*u``, accumulated in float64.

        Finite for every vector: where a sum is beyond float64, entries are scaled down first.
        """
        total = self._sum(1.0)
        if math.isfinite(total):
            return self.sign * total / self.size
        return self.sign * (self._sum(_SCALE) / self.size) / _SCALE

    def _sum(self, scale: float) -> float:
        """Return the sum of the members times ``scale``, not finite where it overflows."""
        sums = []
        wide = np.empty(0, dtype=np.float64)
        with np.errstate(all="ignore"):
            for _, block, mask in self._masks():
                if len(wide) < len(block):
                    wide = np.empty(len(block), dtype=np.float64)
                # A product with the mask costs the same however many members there are.
                np.multiply(block, mask, out=wide[: len(block)])
                if scale != 1.0:
                    wide[: len(block)] *= scale
                sums.append(float(wide[: len(block)].sum()))
        try:
            return math.fsum(sums) if all(map(math.isfinite, sums)) else math.inf
        except OverflowError:
            return math.inf

    def sample(self, inside: int, outside: int, rng: RandomSource) -> NDArray[np.int64]:
        """Draw members and non-members, uniformly and without replacement.

        Parameters
        ----------
        inside : int
            How many members, in ``[0, K]``.
        outside : int
            How many non-members, in ``[0, d - K]``.
        rng : RandomSource
            Source of the draws. The result is exactly uniform, over all choices of
            ``inside`` members and ``outside`` others, if its integers are.

        Returns
        -------
        ndarray of int64, shape (inside + outside,)
            Distinct indices in ascending order, so that the order does not tell the
            members apart.

        Raises
        ------
        ValueError
            If a count is outside its interval.
        RuntimeError
            If the source keeps repeating itself.
        """
        counts = (operator.index(inside), operator.index(outside))
        sides = (self.size, len(self.values) - self.size)
        for name, count, side in zip(("inside", "outside"), counts, sides, strict=True):
            if not 0 <= count <= side:
                raise ValueError(f"{name} must be in [0, {side}], got {count}")
        few = [count * _TRIAL_COST <= side for count, side in zip(counts, sides, strict=True)]
        by_trial = (counts[0] * few[0], counts[1] * few[1])
        drawn = list(first_distinct(rng, len(self.values), by_trial, sides, self.contains))
        for member, count, side, done in zip((True, False), counts, sides, few, strict=True):
            if not done:
                drawn.append(self._at_ranks(uniform_subset(rng, side, count), member))
        return np.sort(np.concatenate(drawn))

    def _at_ranks(self, ranks: NDArray[np.int64], member: bool) -> NDArray[np.int64]:
        """Return the positions of the members (or others) with these ascending ranks."""
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

    def _masks(self) -> Iterator[tuple[int, FloatVector, Mask]]:
        """Yield offset, entries and membership of consecutive blocks.

        Before ``tie_cut`` equals belong and after it they do not, so one comparison
        a block is enough.
        """
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

    Among entries equal to the threshold the lowest positions belong. Zeros of either
    sign are equal.

    Parameters
    ----------
    values : ndarray of float16, float32 or float64, shape (d,)
        The vector u, contiguous or not. Not modified and not copied.
    size : int
        K, in ``[1, d]``.
    sign : {-1, +1}
        The s in ``s*u``.

    Returns
    -------
    TopSet

    Raises
    ------
    TypeError
        If ``values`` is not an array of one of these dtypes or ``size`` no integer.
    ValueError
        If ``values`` is not one-dimensional or holds NaN or infinity, or ``size`` or
        ``sign`` is outside its interval.
    RuntimeError
        If no set of ``size`` members was found, as when the vector changes meanwhile.

    Notes
    -----
    Takes four to six times as long as adding up a vector of ten million entries or
    more, and a few per cent of its memory. Vectors up to 131,072 entries, and rare or
    adversarial longer ones, take a copy.
    """
    if not isinstance(values, np.ndarray):
        raise TypeError(f"values must be a numpy array, got {type(values).__name__}")
    if values.dtype.kind != "f" or values.dtype.itemsize > 8:
        raise TypeError(f"values must be float16, float32 or float64, got {values.dtype}")
    if values.ndim != 1:
        raise ValueError(f"values must have one dimension, got shape {values.shape}")
    size = operator.index(size)
    if not 1 <= size <= len(values):
        raise ValueError(f"size must be in [1, {len(values)}], got {size}")
    if sign not in (-1, 1):
        raise ValueError(f"sign must be -1 or +1, got {quoted(sign)}")
    # A plain view: subclasses redefine comparisons (masked arrays) or cost time.
    view = np.asarray(values).view()
    view.flags.writeable = False
    for threshold, tie_cut in find_cuts(view, size, int(sign)):
        found = TopSet(view, int(sign), size, threshold, tie_cut)
        # The theorem rests on this number, so it is counted and not concluded.
        if found.count() == size:
            return found
    raise RuntimeError("the vector changed while its top set was sought")
