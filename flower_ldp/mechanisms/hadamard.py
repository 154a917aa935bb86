r"""Public rotations: a random sign for each coordinate, then Hadamard's matrix (docs/part.md).

Behind random signs D, rows of Hadamard's matrix of order n in Sylvester's order, over
:math:`\sqrt n`, are n orthogonal unit vectors. Signs are bits of SHAKE-256 of a seed and a number,
so that two machines find the same ones.

**Subspace.** A mechanism randomizes S u in place of the update u. S is k rows, chosen by the seed,
of an orthogonal matrix of order d, which rotates windows of consecutive coordinates. :math:`S S^T =
I` up to the rounding of doubles.

**Privacy.** S depends on nothing private. A mechanism's theorem holds for any two vectors, so for
any two updates behind S: epsilon is unchanged, whoever chose the seed.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.random import Bools, Floats, Ints, RandomSource
from flower_ldp.parameter_bounds import Bounded, Checked, check_in


def favoured_of(products: Floats, size: int, offset: int) -> Ints:
    """Return the positions of the K nearest codewords: 2i is row i, 2i + 1 is its opposite.

    Magnitudes order them, as K is at most n; 0 belongs to a row and its opposite alike.
    """
    magnitudes = np.abs(products)
    threshold = np.partition(magnitudes, len(magnitudes) - size)[len(magnitudes) - size]
    above = _nearer(products, np.flatnonzero(magnitudes > threshold))
    at_edge = np.flatnonzero(magnitudes == threshold)
    if threshold > 0:
        ties = _nearer(products, at_edge)
    else:
        ties = (2 * at_edge[:, None] + np.arange(2)).ravel()
    first = int(np.searchsorted(ties, offset))
    chosen = ties[(first + np.arange(size - len(above))) % len(ties)]
    return np.concatenate([above, chosen])


def _nearer(products: Floats, rows: Ints) -> Ints:
    return 2 * rows + (products[rows] < 0)


def draw(favoured: Ints, codewords: int, rng: RandomSource, *, inside: bool) -> int:
    """Return a uniform position among the favoured ones, or among all others.

    Both are drawn, so that neither time nor the random source shows which.
    """
    ascending = np.sort(favoured)
    within = int(ascending[rng.below(len(ascending))])
    beside = rng.below(codewords - len(ascending))
    # The others in ascending order: as many favoured ones come before as stand at most there.
    beside += int(np.searchsorted(ascending - np.arange(len(ascending)), beside, side="right"))
    return (beside, within)[inside]


def share_of_offsets(products: Floats, size: int, position: int) -> int:
    """Return for how many of the M offsets a codeword is favoured."""
    both = [value for product in products.tolist() for value in (product, -product)]
    ranked = sorted(both, reverse=True)
    threshold = ranked[size - 1]
    if both[position] != threshold:
        return len(both) if both[position] > threshold else 0
    ties = [place for place, value in enumerate(both) if value == threshold]
    left = size - sum(value > threshold for value in both)
    place = ties.index(position)
    # Favoured if the first tie from the offset on is this one, or one of the left - 1 before it.
    gaps = [(ties[i] - ties[i - 1]) % len(both) or len(both) for i in range(len(ties))]
    return sum(gaps[(place - step) % len(ties)] for step in range(left))


#: Largest order; a vector of doubles of it takes 128 MiB.
MAX_ORDER = 1 << 24
# Steps that span no more than this are done in one product with a small matrix.
_SMALL = 64


def order_for(dimension: int) -> int:
    """Return the least power of two from ``dimension``, in [1, 2^24], on."""
    check_in(f"[1, {MAX_ORDER}]", "dimension", dimension)
    return 1 << (dimension - 1).bit_length()


def signs(seed: int, number: int, order: int) -> NDArray[np.int8]:
    """Return the signs D, int8, of one rotation of a seed."""
    name = b"flower-ldp rotation" + seed.to_bytes(8, "big") + number.to_bytes(4, "big")
    stream = np.frombuffer(hashlib.shake_256(name).digest(-(-order // 8)), dtype=np.uint8)
    bits = np.unpackbits(stream, count=order)
    return (1 - 2 * bits.astype(np.int8)).astype(np.int8)


def transform(vector: NDArray[Any]) -> Floats:
    """Return Hadamard's matrix times a vector, or times each row of several, as float64.

    Undivided: applied twice it is n times the vector. Exact for integers whose magnitudes add up to
    less than 2^53.
    """
    found = np.array(vector, dtype=np.float64, order="C")
    span, order = 1, found.shape[-1]
    while span < order:
        width = min(_SMALL, order // span)
        pieces = found.reshape(-1, width, span)
        # H of order `width` across the middle axis is `width`'s share of all steps.
        found = np.matmul(_matrix(width), pieces)
        span *= width
    return found.reshape(np.shape(vector))


@lru_cache(maxsize=8)
def _matrix(order: int) -> Floats:
    found = np.ones((1, 1))
    while len(found) < order:
        found = np.block([[found, found], [found, -found]])
    return found


MOST_WEIGHTS = 2**32 - 1
#: Windows' signs have numbers from here on. Those of a code's (codeword.py) are below 4096.
_FIRST_NUMBER = 2**31


@dataclass(frozen=True)
class Subspace(Checked):
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

    dimension: Annotated[int, Bounded("[1, 4194304]")]
    seed: Annotated[int, Bounded("[0, 2^63)")] = 0

    def check(self, weights: int) -> None:
        """Raise ValueError unless a model of so many weights has it."""
        if not self.dimension <= weights <= MOST_WEIGHTS:
            needed = f"{self.dimension} to {MOST_WEIGHTS} weights"
            raise ValueError(f"the subspace needs a model of {needed}, got {weights}")

    def project(self, update: NDArray[Any]) -> Floats:
        """Return S u, float64 of shape (k,), for an update of floats, shape (d,).

        It is finite for finite numbers within float32.

        Raises
        ------
        ValueError
            If the update is no vector, or has fewer than k entries.
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
        """Return S transposed times a step of shape (k,): float64 of shape (d,), d of ``weights``.

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
        weights = len(vector)
        order = min(MAX_ORDER, 1 << (weights.bit_length() - 1))
        for number in range(-(-weights // order)):
            start = min(number * order, weights - order)
            flips = signs(self.seed, _FIRST_NUMBER + number, order)
            yield flips, vector[start : start + order]

    def _rows(self, weights: int) -> Ints:
        """Return which k rows are S, in ascending order.

        The first k different words of SHAKE-256 modulo d; for k above d/2, all but the first d - k.
        """
        left_out = weights - self.dimension
        named = _first_named(self.seed, min(self.dimension, left_out), weights)
        return np.flatnonzero(named if self.dimension <= left_out else ~named)


def _first_named(seed: int, count: int, weights: int) -> Bools:
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
