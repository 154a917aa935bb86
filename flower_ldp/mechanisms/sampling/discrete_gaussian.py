r"""Normal noise in fixed point, exact and fast: the whole part of :math:`2^{33} Z`, Z normal.

No normal number is rounded to a double here. A draw is :math:`\lfloor 2^{33} Z \rfloor` for
a real number Z that has the standard normal law, found bit by bit as far as it matters
(after Karney, "Sampling exactly from the normal distribution", 2016). So whatever is true of
adding a real normal number and rounding is true of adding these integers.

**Sampling.** With s = 2^9 write :math:`s|Z| = k + w`, k whole and w in [0, 1). The density is

.. math:: e^{-(k+w)^2 / 2s^2} = e^{-k^2 / 2s^2} \cdot e^{-\gamma}, \quad
          \gamma = w (2k + w) / 2s^2.

k is drawn from a table of the first factor, w uniformly, and the pair is kept with
probability :math:`e^{-\gamma}`; then the sign is a fair coin. For that, uniform numbers
:math:`V_1, V_2, \ldots` are drawn while :math:`\gamma > V_1 > V_2 > \ldots`; the chain
has at least n members with probability :math:`\gamma^n / n!`, so it has an even number of
them with probability :math:`e^{-\gamma}` (von Neumann 1951; it needs :math:`\gamma \le 1`,
and here it is at most 0.04). The first 24 bits of w and 39 bits of V_1 show that the chain is
empty for all but a draw in a thousand. The others are settled with 300 further bits.

**Exactness.** All of this is integer arithmetic. What remains is the table's weights, whole
multiples of 2^-256 that end 18.4 standard deviations out, and ties after 300 bits: the law
of one draw is within total variation 2^-240 of the exact one
(tests/unit/mechanisms/test_gaussian_noise.py). Mechanisms add that to their delta.
"""

from __future__ import annotations

import decimal
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.lookup import INDEX_BITS, WEIGHT_BITS, ExactLookup

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
_FIXED_BITS = 512
_BLOCK = 1 << 15
# 18.4 standard deviations: the tail beyond has probability 2^-247.
_ENTRIES = 18 * (1 << _COARSE_BITS) + 205

#: No draw is further from zero than this.
LARGEST = _ENTRIES << _FINE_BITS


@lru_cache(maxsize=1)
def coarse_law() -> ExactLookup:
    """Return the law of k: weights in proportion to exp(-k^2 / 2s^2).

    A weight follows from the one before: k^2 - (k-1)^2 = 2k - 1, so the quotients are
    the odd powers of exp(-1 / 2s^2).
    """
    one = 1 << _FIXED_BITS
    with decimal.localcontext(decimal.Context(prec=200)):
        step = decimal.Decimal(-1) / (1 << _GAMMA_BITS)
        quotient = int(Fraction(step.exp()) * one)
    square = quotient * quotient >> _FIXED_BITS
    weights = [one]
    while len(weights) < _ENTRIES:
        weights.append(weights[-1] * quotient >> _FIXED_BITS)
        quotient = quotient * square >> _FIXED_BITS
    total = sum(weights)
    scaled = [(weight << WEIGHT_BITS) // total for weight in weights]
    scaled[0] += (1 << WEIGHT_BITS) - sum(scaled)
    return ExactLookup(scaled)


@lru_cache(maxsize=1)
def _table() -> NDArray[np.int64]:
    return coarse_law().table(np.arange(_ENTRIES, dtype=np.int64), -1)


def normal(size: int, rng: RandomSource) -> NDArray[np.int64]:
    """Return independent whole parts of 2^33 Z, Z standard normal.

    Parameters
    ----------
    size : int
        How many; at least 0.
    rng : RandomSource
        Source of the noise.

    Returns
    -------
    ndarray of int64, shape (size,)
        Of magnitude at most :data:`LARGEST`.
    """
    noise = np.empty(size, dtype=np.int64)
    missing = [
        start + _fill(noise[start : start + _BLOCK], rng) for start in range(0, size, _BLOCK)
    ]
    positions = np.concatenate(missing) if missing else np.empty(0, dtype=np.int64)
    while len(positions):
        again = np.empty(len(positions), dtype=np.int64)
        refused = _fill(again, rng)
        noise[positions] = again
        positions = positions[refused]
    return noise


def _fill(noise: NDArray[np.int64], rng: RandomSource) -> NDArray[np.int64]:
    """Write candidates into a block and return the positions of those that are refused."""
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
    refused = [
        i
        for i, k, w, v in zip(
            doubtful.tolist(),
            coarse[doubtful].tolist(),
            fine[doubtful].tolist(),
            first[doubtful].tolist(),
            strict=True,
        )
        if not is_kept(k, w, v, rng)
    ]
    return np.array(refused, dtype=np.int64)


def is_kept(coarse: int, fine: int, first: int, rng: RandomSource) -> bool:
    """Decide with probability exp(-gamma), given the first bits of w and of V_1.

    Parameters
    ----------
    coarse : int
        k, at least 0.
    fine : int
        First 24 bits of w.
    first : int
        First 39 bits of V_1.
    """
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
