"""Draws from a finite law with integer weights: one table lookup, exact nevertheless.

The unit interval is cut into pieces of lengths weight / 2^256, and a uniform number with
256 bits falls into one of them. Its first 16 bits already name the piece, but for the
few intervals of length 2^-16 that a border passes through. So a table of 65,536 entries
answers nearly always, further bits are drawn only where the answer is still open, and
the law of the outcome is that of the 256-bit number, exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.random import RandomSource

#: Weights add up to 2^256.
WEIGHT_BITS = 256
#: Bits that the table is indexed by.
INDEX_BITS = 16
_WORD_BITS = 64
_REST = WEIGHT_BITS - _WORD_BITS
_INDEX_SHIFT = np.uint64(_WORD_BITS - INDEX_BITS)


class ExactLookup:
    """A finite law, drawn from by the first bits of a uniform number.

    Parameters
    ----------
    weights : sequence of int
        Probability of each outcome in units of 2^-256; positive, and 2^256 in all.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        if min(weights) <= 0 or sum(weights) != 1 << WEIGHT_BITS:
            raise ValueError(f"weights must be positive and add up to 2^{WEIGHT_BITS}")
        self.weights = tuple(weights)
        # The upper borders of all pieces but the last.
        self._borders = list(accumulate(weights))[:-1]
        self._heads = np.array([border >> _REST for border in self._borders], dtype=np.uint64)

    def table(self, values: NDArray[np.int64], undecided: int) -> NDArray[np.int64]:
        """Return what each of the 2^16 possible first bits decides.

        Parameters
        ----------
        values : ndarray of int64, shape (number of outcomes,)
            What each outcome stands for.
        undecided : int
            What stands where further bits are needed.

        Returns
        -------
        ndarray of int64, shape (2**16,)
        """
        starts = np.arange(1 << INDEX_BITS, dtype=np.uint64) << _INDEX_SHIFT
        first = np.searchsorted(self._heads, starts, side="left")
        last = np.append(first[1:], len(self._heads))
        return np.where(first == last, values[first], undecided)

    def settle(self, index: NDArray[np.uint16], rng: RandomSource) -> NDArray[np.int64]:
        """Return the outcomes of draws whose first 16 bits are ``index``.

        The bits drawn here are the draws' own further bits: call it once for a draw.

        Parameters
        ----------
        index : ndarray of uint16, shape (m,)
            First bits, decisive or not.
        rng : RandomSource
            Source of the bits that follow.

        Returns
        -------
        ndarray of int64, shape (m,)
            Positions in ``weights``.
        """
        further = rng.words(len(index)) >> np.uint64(INDEX_BITS)
        words = (index.astype(np.uint64) << _INDEX_SHIFT) | further
        low = np.searchsorted(self._heads, words, side="left")
        outcomes = np.searchsorted(self._heads, words, side="right")
        # A word that equals the first bits of a border is settled by the remaining 192.
        for i in np.flatnonzero(low != outcomes):
            number = (int(words[i]) << _REST) | rng.bits(_REST)
            outcomes[i] = bisect_right(self._borders, number)
        return outcomes

    def draw(self, rng: RandomSource) -> int:
        """Return one outcome, a position in ``weights``."""
        return bisect_right(self._borders, rng.bits(WEIGHT_BITS))
