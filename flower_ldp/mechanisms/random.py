"""Random bits for privacy mechanisms: operating-system entropy through AES-256-CTR.

A :class:`RandomSource` takes a fresh 256-bit key from ``os.urandom``. It cannot be copied or
pickled, since two holders of one state draw the same noise; a forked child takes a new key. A
chosen seed is for tests and repeatable experiments, by :meth:`RandomSource.seeded` alone.

Integers are uniform by rejection, never by a modulus or by scaling a float. Laws have integer
weights in units of 2^-256, with a rational number just *below* e^epsilon, so the log-ratio of two
probabilities is at most epsilon exactly and short of it by less than 2^-127. Parameters are read as
the decimals that they print as: 0.15 of 20 is 3.

A draw from a finite law is by a uniform number of 256 bits. The first 16 index a table; further
bits are drawn only where a border crosses their interval.
"""

from __future__ import annotations

import decimal
import hashlib
import math
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import NoReturn, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from flower_ldp.parameter_bounds import check_in

Bools: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

_KEY_BYTES = 32
_COUNTER_BYTES = 16
# Keystream is made in pieces of this size at least: one cipher call costs about 1 us.
_BUFFER_BYTES = 4096


class RandomSource:
    """Cryptographic generator of exactly uniform integers.

    Not for several threads at once: give each thread a source.

    Examples
    --------
    >>> rng = RandomSource.from_os()
    >>> 0 <= rng.below(10) < 10
    True
    """

    __slots__ = ("_buffer", "_encryptor", "_pid", "_position", "is_seeded")

    #: Whether the stream can be repeated, and so protects nothing.
    is_seeded: bool

    def __init__(self) -> None:
        self.is_seeded = False
        self._rekey(os.urandom(_KEY_BYTES))

    @classmethod
    def from_os(cls) -> RandomSource:
        """Return a source with a fresh key from the operating system."""
        return cls()

    @classmethod
    def seeded(cls, seed: int) -> RandomSource:
        """Return a repeatable source. **Not private**: for tests and experiments only.

        Equal seeds, any integers, give equal streams on every platform.
        """
        source = cls.__new__(cls)
        source.is_seeded = True
        source._rekey(hashlib.sha256(b"flower-ldp seeded source %d" % seed).digest())
        return source

    def _rekey(self, key: bytes) -> None:
        self._pid = os.getpid()
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(_COUNTER_BYTES))).encryptor()
        self._buffer = b""
        self._position = 0

    def random_bytes(self, n: int) -> bytes:
        """Return ``n`` uniformly random bytes."""
        if n < 0:
            raise ValueError(f"n must be at least 0, got {n}")
        if not self.is_seeded and os.getpid() != self._pid:
            # A forked child would otherwise repeat its parent's noise.
            self._rekey(os.urandom(_KEY_BYTES))
        end = self._position + n
        if end > len(self._buffer):
            rest = self._buffer[self._position :]
            fresh = self._encryptor.update(bytes(max(n, _BUFFER_BYTES)))
            self._buffer = rest + fresh
            self._position, end = 0, n
        out = self._buffer[self._position : end]
        self._position = end
        return out

    def words(self, size: int) -> NDArray[np.uint64]:
        """Return ``size`` uniform 64-bit words, uint64."""
        return np.frombuffer(self.random_bytes(8 * size), dtype="<u8").astype(np.uint64, copy=False)

    def bits(self, n: int) -> int:
        """Return an integer uniform on ``[0, 2**n)``."""
        if n < 0:
            raise ValueError(f"n must be at least 0, got {n}")
        n_bytes = -(-n // 8)
        return int.from_bytes(self.random_bytes(n_bytes), "little") >> (8 * n_bytes - n)

    def below(self, n: int) -> int:
        """Return an integer exactly uniform on ``[0, n)``, for a positive ``n`` of any size.

        Raises
        ------
        ValueError
            If ``n`` is not positive.
        """
        if n <= 0:
            raise ValueError(f"n must be positive, got {n}")
        width = (n - 1).bit_length()
        while True:
            value = self.bits(width)
            if value < n:
                return value

    def integers(self, high: int, size: int) -> Ints:
        """Return int64 integers of shape (size,), exactly uniform on ``[0, high)``.

        ``high`` is in [1, 2**63].
        """
        check_in("[1, 2^63]", "high", high)
        check_in("[0, inf)", "size", size)
        if high == 1:
            return np.zeros(size, dtype=np.int64)
        shift, found = np.uint64(64 - (high - 1).bit_length()), np.empty(0, dtype=np.uint64)
        while len(found) < size:
            missing = size - len(found)
            # At least half of the candidates survive, so a few rounds are enough.
            candidates = self.words(2 * missing + 8) >> shift
            good = candidates[candidates < np.uint64(high)]
            found = np.concatenate([found, good[:missing]])
        return found.astype(np.int64)

    def sign(self) -> int:
        """Return -1 or +1, a fair coin."""
        return 1 if self.random_bytes(1)[0] & 1 else -1

    def __reduce__(self) -> NoReturn:
        # What copies and what pickles asks for this.
        raise TypeError(
            "a RandomSource cannot be copied or pickled: both would draw the same noise"
        )


#: Bits behind the binary point with which e^epsilon is approximated from below.
EXP_BITS = 128


@lru_cache(maxsize=256)
def exp_lower(epsilon: float, bits: int = EXP_BITS) -> int:
    """Return an integer ``m`` with ``m <= e**epsilon * 2**bits < m + 2``; epsilon >= 0."""
    check_in("[0, inf)", "epsilon", epsilon)
    digits = int((epsilon / math.log(2) + bits) * math.log10(2)) + 12
    context = decimal.Context(prec=digits, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
    # Decimal.exp is correctly rounded, so its predecessor is below the true value.
    below = context.next_minus(decimal.Decimal(repr(float(epsilon))).exp(context))
    scaled: Fraction = Fraction(below) * (1 << bits)
    # e^epsilon is at least 1, which the digits of a tiny epsilon do not show.
    return max(math.floor(scaled), 1 << bits)


#: Probabilities are integers in units of 2^-256; the weights of a law add up to 2^256.
COIN_BITS = WEIGHT_BITS = 256
#: Arrays are worked on in pieces of this length, which stay in the processor's cache.
BLOCK = 16_384

_HEAD_BITS = 64
_TAIL_BITS = COIN_BITS - _HEAD_BITS


def toss(weights: Sequence[int], which: NDArray[np.intp], rng: RandomSource) -> Bools:
    """Toss coin ``which[i]`` for each i; weights are P(True) in units of 2^-256."""
    limits = np.array([weight >> _TAIL_BITS for weight in weights], dtype=np.uint64)[which]
    heads = rng.words(len(which))
    fell = heads < limits
    # The first 64 of 256 bits decide, but for ties, which the remaining ones settle.
    for i in np.flatnonzero(heads == limits):
        fell[i] = rng.bits(_TAIL_BITS) < weights[which[i]] & ((1 << _TAIL_BITS) - 1)
    return fell


def uniform(high: int | Ints, size: int, rng: RandomSource) -> Ints:
    """Return ``size`` integers, each exactly uniform on [0, high), faster than ``integers``.

    By multiplication and rejection (Lemire 2019, "Fast random integer generation in an interval").
    ``high`` is in [1, 2^32], one for all or one for each.
    """
    ends = np.broadcast_to(np.asarray(high, dtype=np.uint64), (size,))
    # Products below this belong to no complete set of 2^32 // high draws per integer.
    surplus = np.broadcast_to(np.uint64(1 << 32) % np.asarray(high, dtype=np.uint64), (size,))
    found = np.empty(size, dtype=np.int64)
    missing: NDArray[np.intp] | slice = slice(None)
    while size > 0:
        drawn = np.frombuffer(rng.random_bytes(4 * size), dtype="<u4")
        product = drawn.astype(np.uint64) * ends[missing]
        found[missing] = product >> np.uint64(32)
        refused = np.flatnonzero((product & np.uint64(0xFFFFFFFF)) < surplus[missing])
        missing = refused if isinstance(missing, slice) else missing[refused]
        size = len(missing)
    return found


#: Bits that the table is indexed by.
INDEX_BITS = 16
_INDEX_SHIFT = np.uint64(_HEAD_BITS - INDEX_BITS)


class ExactLookup:
    """A finite law by the first bits of a uniform number.

    ``weights`` are positive, in units of 2^-256, with the sum 2^256.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        if min(weights) <= 0 or sum(weights) != 1 << WEIGHT_BITS:
            raise ValueError(f"weights must be positive and add up to 2^{WEIGHT_BITS}")
        self.weights = tuple(weights)
        # The upper borders of all pieces but the last.
        self._borders = list(accumulate(weights))[:-1]
        self._heads = np.array([border >> _TAIL_BITS for border in self._borders], dtype=np.uint64)

    def table(self, values: Ints, undecided: int) -> Ints:
        """Return the value for each of 2^16 first bits, or ``undecided``."""
        starts = np.arange(1 << INDEX_BITS, dtype=np.uint64) << _INDEX_SHIFT
        first = np.searchsorted(self._heads, starts, side="left")
        last = np.append(first[1:], len(self._heads))
        return np.where(first == last, values[first], undecided)

    def settle(self, index: NDArray[np.uint16], rng: RandomSource) -> Ints:
        """Return the outcomes, by position, of draws whose first 16 bits are ``index``.

        The further bits are drawn here: call it once for a draw.
        """
        further = rng.words(len(index)) >> np.uint64(INDEX_BITS)
        words = (index.astype(np.uint64) << _INDEX_SHIFT) | further
        low = np.searchsorted(self._heads, words, side="left")
        outcomes = np.searchsorted(self._heads, words, side="right")
        # A word that equals the first bits of a border is settled by the remaining 192.
        for i in np.flatnonzero(low != outcomes):
            number = (int(words[i]) << _TAIL_BITS) | rng.bits(_TAIL_BITS)
            outcomes[i] = bisect_right(self._borders, number)
        return outcomes

    def draw(self, rng: RandomSource) -> int:
        """Return one outcome, a position in ``weights``."""
        return bisect_right(self._borders, rng.bits(WEIGHT_BITS))


_LARGEST_BATCH = 1 << 20
# A batch aims at more than what is missing, or is a million trials: a working source
# never needs this many.
_MOST_BATCHES = 10_000


def uniform_subset(rng: RandomSource, high: int, count: int) -> Ints:
    """Return ``count`` distinct integers of ``[0, high)``, a uniform subset, in ascending order.

    RuntimeError if the source keeps repeating itself. Beyond half of the range it makes a mask of
    ``high`` bytes.
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
    is_member: Callable[[Ints], Bools],
) -> tuple[Ints, Ints]:
    """Return the first distinct members, and others, of a uniform stream on ``[0, high)``.

    By symmetry each is a uniform choice of its side, independent of the other; int64, in the order
    of the stream. ``counts`` of members and others are drawn, of ``sides`` in the range. Counts
    above half of a side make it slow. RuntimeError if the source keeps repeating itself.
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


def _all(indices: Ints) -> Bools:
    return np.ones(len(indices), dtype=np.bool_)
