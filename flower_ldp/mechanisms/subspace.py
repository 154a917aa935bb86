r"""A public subspace: k numbers that stand for the d weights of a model, for any mechanism.

What a private report tells of an update is fixed by epsilon, and is spread over as many numbers
as the update has. So a run may agree on a subspace of k < d dimensions and move in no other
direction: a client projects its update, u becomes S u, and randomizes these k numbers; the server
steps in them and moves the model by :math:`S^T` times the step.

S is k rows of an orthogonal matrix Q of order d. Q is a product of rotations of *windows* of n
consecutive coordinates, n the largest power of two that is at most d, or 2^24 if that is less. The
first window begins at 0, each further one n later, and the last one is moved back so that it ends
at d. A window is rotated by public random signs, then Hadamard's matrix over the square root of n
(:mod:`flower_ldp.mechanisms.sampling.nearest`); windows in ascending order. The seed also chooses
the k rows. Nothing is filled up with zeros, so for every d and k the rows of S are orthonormal:
:math:`S S^T = I` up to the rounding of doubles, and :math:`S^T S` is the projection onto the
subspace. Over seeds its mean is k/d times the identity: S u has about the length
:math:`\sqrt{k / d}\,|u|`.

**Privacy.** S depends on nothing private, and a mechanism's theorem holds for any two vectors that
come in, so for any two updates behind S: epsilon is unchanged, whoever chose the seed.

**Cost.** About 2 d log2 n additions and five vectors of d doubles, for :math:`S` and :math:`S^T`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.bounds import Bounded, check_fields
from flower_ldp.mechanisms.random import Bools, Floats, Ints
from flower_ldp.mechanisms.sampling.nearest import MAX_ORDER, signs, transform

#: Most dimensions of a subspace.
MOST_DIMENSION = 1 << 22
#: Most weights of a model.
MOST_WEIGHTS = 2**32 - 1
#: Windows' signs have numbers from here on. Those of a code's (codeword.py) are below 4096.
_FIRST_NUMBER = 2**31


@dataclass(frozen=True)
class Subspace:
    """A public subspace of a model's weights, fixed for a run.

    Parameters
    ----------
    dimension : int
        k, in [1, 2^22], and at most d for a model of d weights.
    seed : int
        Of the signs and of the rows, public; in [0, 2^63).

    Raises
    ------
    ValueError
        If a parameter is outside its interval.

    Examples
    --------
    >>> import numpy as np
    >>> small = Subspace(dimension=3, seed=1)
    >>> step = np.array([1.0, 2.0, 3.0])
    >>> small.project(small.lift(step, 1_000)).round(12).tolist()
    [1.0, 2.0, 3.0]
    """

    dimension: Annotated[int, Bounded(f"[1, {MOST_DIMENSION}]")]
    seed: Annotated[int, Bounded("[0, 2^63)")] = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self, weights: int) -> None:
        """Raise ValueError unless a model of so many weights has such a subspace."""
        if not self.dimension <= weights <= MOST_WEIGHTS:
            needed = f"{self.dimension} to {MOST_WEIGHTS} weights"
            raise ValueError(f"the subspace needs a model of {needed}, got {weights}")

    def project(self, update: NDArray[Any]) -> Floats:
        """Return S u.

        Parameters
        ----------
        update : ndarray of floats, shape (d,)
            Read, not changed. Of finite numbers within float32 the result is finite.

        Returns
        -------
        ndarray of float64, shape (k,)

        Raises
        ------
        ValueError
            If it is no vector, or has fewer than k entries.
        """
        if update.ndim != 1:
            raise ValueError(f"update must be a vector, got shape {update.shape}")
        self.check(len(update))
        turned = np.array(update, dtype=np.float64)
        for flips, window in self._windows(turned):
            window[:] = transform(window * flips)
            window /= math.sqrt(len(window))
        return turned[self._rows(len(turned))]

    def lift(self, step: NDArray[Any], weights: int) -> Floats:
        """Return the transpose of S times a step: of the step's length, in the subspace.

        Parameters
        ----------
        step : ndarray of floats, shape (k,)
            Read, not changed.
        weights : int
            d.

        Returns
        -------
        ndarray of float64, shape (d,)

        Raises
        ------
        ValueError
            If the step has another shape, or d is less than k.
        """
        if step.shape != (self.dimension,):
            raise ValueError(f"step must have shape ({self.dimension},), got {step.shape}")
        self.check(weights)
        turned = np.zeros(weights)
        turned[self._rows(weights)] = step
        for flips, window in reversed(list(self._windows(turned))):
            window[:] = transform(window)
            window *= flips
            window /= math.sqrt(len(window))
        return turned

    def _windows(self, vector: Floats) -> Iterator[tuple[NDArray[np.int8], Floats]]:
        """Yield the signs of each window, and a view of it."""
        weights = len(vector)
        order = min(MAX_ORDER, 1 << (weights.bit_length() - 1))
        for number in range(-(-weights // order)):
            start = min(number * order, weights - order)
            flips = signs(self.seed, _FIRST_NUMBER + number, order)
            yield flips, vector[start : start + order]

    def _rows(self, weights: int) -> Ints:
        """Return which k rows of Q are S, in ascending order.

        Those that the seed names first, by words of SHAKE-256 modulo d; or, if k is more than
        half of d, all but the d - k that it names first.
        """
        left_out = weights - self.dimension
        named = _first_named(self.seed, min(self.dimension, left_out), weights)
        return np.flatnonzero(named if self.dimension <= left_out else ~named)


def _first_named(seed: int, count: int, weights: int) -> Bools:
    """Return which are the first ``count`` different numbers of a stream below ``weights``.

    ``count`` is at most half of ``weights``.
    """
    name = hashlib.shake_256(b"flower-ldp subspace" + seed.to_bytes(8, "big"))
    words = np.frombuffer(name.digest(8 * count), dtype=">u8")
    named = np.zeros(weights, dtype=np.bool_)
    position, missing = 0, count
    while missing:
        # As many words as numbers are missing name no number too many.
        if position + missing > len(words):
            words = np.frombuffer(name.digest(16 * len(words)), dtype=">u8")
        named[words[position : position + missing] % np.uint64(weights)] = True
        position += missing
        missing = count - int(np.count_nonzero(named))
    return named
