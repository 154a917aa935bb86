r"""Exact noise on integers: discrete Laplace, and normal in fixed point.

**Discrete Laplace** with rate :math:`\alpha` (Inusah and Kozubowski 2006):

.. math:: P(X = x) = \frac{1 - q}{1 + q} q^{|x|}, \qquad q = e^{-\alpha}.

Adding X to each entry of integer vectors at L1 distance s is :math:`\alpha s`-DP (Ghosh,
Roughgarden and Sundararajan 2012).

*Sampling.* X is the exclusive or of a signed high part and a few digits, each from a table
(:class:`ExactLookup`). The tail beyond a table is drawn again and added: the law has no memory.

*Exactness.* No step uses floating point. Weights are integers in units of 2^-256 for a rate a part
in 2^100 *below* :math:`\alpha`; rounding them changes a log-ratio of neighbours by less than that
gap (docs/laplace.md). Hence :math:`P(x) \le e^\alpha P(x \pm 1)` holds for the sampler itself.

**Normal noise** is :math:`\lfloor 2^{33} Z \rfloor` for a real standard normal Z (after Karney,
"Sampling exactly from the normal distribution", 2016). A theorem about adding a real normal number
and rounding holds for adding these integers.

*Sampling.* With s = 2^9 write :math:`s|Z| = k + w`. k comes from a table of weights
:math:`e^{-k^2 / 2s^2}`, w is uniform in [0, 1), the pair is kept with probability
:math:`e^{-\gamma}` for :math:`\gamma = w (2k + w) / 2s^2`, and the sign is a fair coin. For
:math:`e^{-\gamma}`, uniform numbers are drawn while :math:`\gamma > V_1 > V_2 > \ldots`: an even
number has this probability (von Neumann 1951). 300 bits decide what the first 24 of w and 39 of V_1
leave open.

*Exactness.* Integer arithmetic throughout. The table's weights are multiples of 2^-256 that end
18.4 standard deviations out, and ties may remain after 300 bits: the law of one draw is within
total variation 2^-240 of the exact one. Mechanisms add this to their delta.
"""

import decimal
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.random import INDEX_BITS, WEIGHT_BITS, ExactLookup, Ints, RandomSource

_GAP = Fraction((1 << 100) - 1, 1 << 100)
_FIXED_BITS = 512
_DIGITS = 200
# 2^8 values of a digit leave 0.4 % of first bits undecided.
_DIGIT_BITS = 8
# What the high part's table leaves to its tail has probability 2^-64 at most.
_TAIL_BITS = 64
_BLOCK = 1 << 17


def _power(exponent: Fraction) -> int:
    with decimal.localcontext(decimal.Context(prec=_DIGITS)):
        quotient = decimal.Decimal(exponent.numerator) / decimal.Decimal(exponent.denominator)
        return int(Fraction((-quotient).exp()) * (1 << _FIXED_BITS))


def _powers(ratio: int, count: int) -> list[int]:
    found = [1 << _FIXED_BITS]
    while len(found) < count:
        found.append(found[-1] * ratio >> _FIXED_BITS)
    return found


def _normalized(weights: list[int]) -> list[int]:
    """Scale weights to a sum of 2^256; the first takes the roundings."""
    total = sum(weights)
    scaled = [(weight << WEIGHT_BITS) // total for weight in weights]
    scaled[0] += (1 << WEIGHT_BITS) - sum(scaled)
    return scaled


@dataclass(frozen=True)
class DiscreteLaplace:
    """Integer noise whose probability falls by a factor e^rate a step.

    Parameters
    ----------
    rate : Fraction
        In [2^-48, 32]; ValueError otherwise. The standard deviation is about sqrt(2) / rate steps.

    Examples
    --------
    >>> noise = DiscreteLaplace(Fraction(1, 1000)).sample(5, RandomSource.from_os())
    >>> noise.dtype, noise.shape
    (dtype('int64'), (5,))
    """

    rate: Fraction

    def __post_init__(self) -> None:
        # The rates that the weights' precision is made for.
        if not Fraction(1, 1 << 48) <= self.rate <= 32:
            kept = "grid_bits must keep the rate, epsilon per step, in [2^-48, 32]"
            raise ValueError(f"{kept}, got {float(self.rate):g}")

    @property
    def farthest(self) -> int:
        """64 noise scales, rounded up: noise is beyond it with a chance of at most e^-64.

        With q = e^-rate and this bound m: 2 q^(m + 1) / (1 + q) <= q^m <= e^-64.
        """
        return math.ceil(64 / self.rate)

    @cached_property
    def _low_bits(self) -> int:
        """w; the high part falls by e^-1/4 or more a step."""
        return max(0, math.floor(1 / self.rate).bit_length() - 2)

    @cached_property
    def _shifts(self) -> tuple[int, ...]:
        count = -(-self._low_bits // _DIGIT_BITS)
        return tuple(self._low_bits * i // count for i in range(count + 1)) if count else (0,)

    @cached_property
    def _span(self) -> int:
        step = float(self.rate) * (1 << self._low_bits)
        return math.ceil(_TAIL_BITS * math.log(2) / step)

    @cached_property
    def _high(self) -> ExactLookup:
        """Law of sign and high part: 0 to span - 1 and "more", then the same if negative."""
        rate = self.rate * _GAP
        ratio, step = _power(rate * (1 << self._low_bits)), _power(rate)
        powers = _powers(ratio, self._span + 1)
        rest = (1 << _FIXED_BITS) - ratio
        side = [power * rest >> _FIXED_BITS for power in powers[:-1]] + [powers[-1]]
        return ExactLookup(_normalized(side + [weight * step >> _FIXED_BITS for weight in side]))

    @cached_property
    def _digits(self) -> tuple[ExactLookup, ...]:
        laws = []
        for low, high in zip(self._shifts, self._shifts[1:], strict=False):
            ratio = _power(self.rate * _GAP * (1 << low))
            laws.append(ExactLookup(_normalized(_powers(ratio, 1 << (high - low)))))
        return tuple(laws)

    @cached_property
    def _values(self) -> tuple[Ints, ...]:
        side = np.arange(self._span + 1, dtype=np.int64) << self._low_bits
        digits = zip(self._digits, self._shifts, strict=False)
        low = (np.arange(len(law.weights), dtype=np.int64) << shift for law, shift in digits)
        return (np.concatenate([side, ~side]), *low)

    @cached_property
    def _limit(self) -> int:
        return 1 << ((self._span + 1) << self._low_bits).bit_length()

    @cached_property
    def _tables(self) -> tuple[NDArray[np.signedinteger[Any]], ...]:
        """Tables by first bits; an undecided entry sets a bit of its own above the limit."""
        laws = (self._high, *self._digits)
        dtype = np.int32 if self._limit << len(laws) < 1 << 31 else np.int64
        undecided = (self._limit << i for i in range(len(laws)))
        tables = map(ExactLookup.table, laws, self._values, undecided)
        return tuple(table.astype(dtype) for table in tables)

    def sample(self, size: int, rng: RandomSource) -> Ints:
        """Return ``size`` independent draws, int64."""
        noise = np.empty(size, dtype=np.int64)
        for start in range(0, size, _BLOCK):
            block = noise[start : start + _BLOCK]
            block[:] = self._sample_block(len(block), rng)
        return noise

    def _sample_block(self, size: int, rng: RandomSource) -> NDArray[np.signedinteger[Any]]:
        tables = self._tables
        words = -(-size * len(tables) * INDEX_BITS // 64)
        indices = rng.words(words).view(np.uint16)[: size * len(tables)].reshape(-1, size)
        noise: NDArray[np.signedinteger[Any]] = tables[0].take(indices[0])
        for table, index in zip(tables[1:], indices[1:], strict=True):
            noise ^= table.take(index)
        # An undecided entry leaves the interval [-limit, limit), whatever it meets.
        unsigned = (noise + noise.dtype.type(self._limit)).view(f"u{noise.itemsize}")
        (open_positions,) = np.nonzero(unsigned >= unsigned.dtype.type(2 * self._limit))
        if len(open_positions):
            noise[open_positions] = self._settle(indices[:, open_positions], rng)
        return noise

    def _settle(self, indices: NDArray[np.uint16], rng: RandomSource) -> Ints:
        outcomes = self._high.settle(indices[0], rng)
        noise = self._values[0][outcomes]
        for i in np.flatnonzero(outcomes % (self._span + 1) == self._span):
            noise[i] = self._beyond(negative=bool(outcomes[i] > self._span), rng=rng)
        for law, values, index in zip(self._digits, self._values[1:], indices[1:], strict=True):
            noise ^= values[law.settle(index, rng)]
        return noise

    def _beyond(self, *, negative: bool, rng: RandomSource) -> int:
        span, high = self._span, 0
        while True:
            high += span
            side, part = divmod(self._high.draw(rng), span + 1)
            while side != negative:
                side, part = divmod(self._high.draw(rng), span + 1)
            if part < span:
                magnitude = (high + part) << self._low_bits
                return ~magnitude if negative else magnitude

    def probability(self, x: int) -> Fraction:
        """Return P(X = x) of the sampler as built, exactly."""
        side, magnitude = (1, ~x) if x < 0 else (0, x)
        weights = self._high.weights[side * (self._span + 1) :][: self._span + 1]
        laps, part = divmod(magnitude >> self._low_bits, self._span)
        found = Fraction(weights[part], 1 << WEIGHT_BITS)
        found *= Fraction(weights[-1], sum(weights)) ** laps
        for law, low in zip(self._digits, self._shifts, strict=False):
            digit = (magnitude & ((1 << self._low_bits) - 1)) >> low
            found *= Fraction(law.weights[digit % len(law.weights)], 1 << WEIGHT_BITS)
        return found

    def log_prob(self, x: int) -> float:
        """Return log P(X = x); roundings are below 2^-96 of the rate."""
        rate = float(self.rate)
        return math.log(math.tanh(rate / 2)) - rate * abs(x)

    @property
    def standard_deviation(self) -> float:
        """In steps, sqrt(2 q) / (1 - q)."""
        return 1.0 / (math.sqrt(2.0) * math.sinh(float(self.rate) / 2))


#: The standard deviation is 2**33.
DEVIATION_BITS = 33
#: Total variation between the law of one draw and the exact one, as a power of two.
VARIATION_BITS = -240

_COARSE_BITS = 9
_FINE_BITS = DEVIATION_BITS - _COARSE_BITS
_CHAIN_BITS = 64 - 1 - _FINE_BITS
#: gamma has 2 * _FINE_BITS + this many bits behind the point.
_GAMMA_BITS = 2 * _COARSE_BITS + 1
_FURTHER_BITS = 300
_NORMAL_BLOCK = 1 << 15
# 18.4 standard deviations: the tail beyond has probability 2^-247.
_ENTRIES = 18 * (1 << _COARSE_BITS) + 205

#: No draw is further from zero than this.
LARGEST = _ENTRIES << _FINE_BITS


@lru_cache(maxsize=1)
def coarse_law() -> ExactLookup:
    """Return the law of k.

    The quotients of neighbouring weights are the odd powers of exp(-1 / 2s^2).
    """
    one = 1 << _FIXED_BITS
    quotient = _power(Fraction(1, 1 << _GAMMA_BITS))
    square = quotient * quotient >> _FIXED_BITS
    weights = [one]
    while len(weights) < _ENTRIES:
        weights.append(weights[-1] * quotient >> _FIXED_BITS)
        quotient = quotient * square >> _FIXED_BITS
    return ExactLookup(_normalized(weights))


@lru_cache(maxsize=1)
def _table() -> Ints:
    return coarse_law().table(np.arange(_ENTRIES, dtype=np.int64), -1)


def normal(size: int, rng: RandomSource) -> Ints:
    """Return ``size`` whole parts of 2^33 Z, int64."""
    noise = np.empty(size, dtype=np.int64)
    starts = range(0, size, _NORMAL_BLOCK)
    missing = [start + _fill(noise[start : start + _NORMAL_BLOCK], rng) for start in starts]
    positions = np.concatenate(missing) if missing else np.empty(0, dtype=np.int64)
    while len(positions):
        again = np.empty(len(positions), dtype=np.int64)
        refused = _fill(again, rng)
        noise[positions] = again
        positions = positions[refused]
    return noise


def _fill(noise: Ints, rng: RandomSource) -> Ints:
    size = len(noise)
    index = rng.words(-(-size * INDEX_BITS // 64)).view(np.uint16)[:size]
    coarse = _table().take(index)
    (undecided,) = np.nonzero(coarse < 0)
    coarse[undecided] = coarse_law().settle(index[undecided], rng)

    words = rng.words(size)
    first = (words & np.uint64((1 << _CHAIN_BITS) - 1)).view(np.int64)
    words = words >> np.uint64(_CHAIN_BITS)
    fine = (words & np.uint64((1 << _FINE_BITS) - 1)).view(np.int64)
    negative = (words >> np.uint64(_FINE_BITS)).view(np.int64)

    np.left_shift(coarse, _FINE_BITS, out=noise)
    # gamma at the upper end of what the known bits of w allow, in units of 2^-67
    gamma = noise * 2
    gamma += fine
    gamma += 1
    gamma *= fine + 1
    gamma >>= 2 * _FINE_BITS + _GAMMA_BITS - _CHAIN_BITS
    (doubtful,) = np.nonzero(first <= gamma)
    noise |= fine
    # whole part of -(k + w): -1 - (whole part of k + w), the complement
    noise ^= -negative
    rows = np.stack([doubtful, coarse[doubtful], fine[doubtful], first[doubtful]], axis=1).tolist()
    return np.array([i for i, k, w, v in rows if not is_kept(k, w, v, rng)], dtype=np.int64)


def is_kept(coarse: int, fine: int, first: int, rng: RandomSource) -> bool:
    """Decide with probability exp(-gamma), given k, 24 first bits of w and 39 first bits of V_1."""
    bits = _CHAIN_BITS + _FURTHER_BITS
    w = (fine << _FURTHER_BITS) | rng.bits(_FURTHER_BITS)
    last = (first << _FURTHER_BITS) | rng.bits(_FURTHER_BITS)
    w_bits = _FINE_BITS + _FURTHER_BITS
    gamma = w * ((coarse << (w_bits + 1)) + w)
    if last << (2 * w_bits + _GAMMA_BITS - bits) >= gamma:
        return True
    length = 1
    while (following := rng.bits(bits)) < last:
        length += 1
        last = following
    return length % 2 == 0
