"""Exact comparisons and bounds with e^epsilon, for mechanisms that must not leak by rounding.

A sampler whose probabilities are doubles realises some other distribution than the
one its theorem speaks of. The samplers here draw with integer weights instead, and
replace e^epsilon by a rational number just *below* it, so that the log-ratio of two
probabilities is at most epsilon exactly and short of it by less than 2^-127.

Parameters are read as the decimals that they print as: 0.15 means 15/100, not the
binary number next to it, so that 0.15 of 20 dimensions is 3.
"""

from __future__ import annotations

import decimal
import math
from fractions import Fraction
from functools import lru_cache

from flower_ldp.privacy import as_fraction

#: Bits behind the binary point with which e^epsilon is approximated from below.
EXP_BITS = 128


def double_at_most(exact: Fraction) -> float:
    """Return the largest double, at least 0, whose printed decimal is at most ``exact``."""
    found = float(exact)
    while as_fraction(found) > exact:
        found = math.nextafter(found, 0.0)
    return found


def double_at_least(exact: Fraction) -> float:
    """Return the smallest double whose printed decimal is at least ``exact``."""
    found = float(exact)
    while as_fraction(found) < exact:
        found = math.nextafter(found, math.inf)
    return found


@lru_cache(maxsize=256)
def exp_lower(epsilon: float, bits: int = EXP_BITS) -> int:
    """Return an integer ``m`` with ``m <= e**epsilon * 2**bits < m + 2``.

    Parameters
    ----------
    epsilon : float
        Exponent, at least 0.
    bits : int
        Bits behind the binary point.
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be at least 0, got {epsilon}")
    digits = int((epsilon / math.log(2) + bits) * math.log10(2)) + 12
    context = decimal.Context(prec=digits, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
    # Decimal.exp is correctly rounded, so its predecessor is below the true value.
    below = context.next_minus(decimal.Decimal(repr(float(epsilon))).exp(context))
    scaled: Fraction = Fraction(below) * (1 << bits)
    # e^epsilon is at least 1, which the digits of a tiny epsilon do not show.
    return max(math.floor(scaled), 1 << bits)


def exp_scaled_at_least(epsilon: float, a: int, b: int) -> bool:
    """Decide ``a * e**epsilon >= b`` exactly, for integers of any size.

    Equality of nonzero sides is impossible (e to a nonzero rational power is
    irrational), so raising the precision settles every case.
    """
    if epsilon == 0 or a == 0:
        return a >= b
    if a > 0 >= b:
        return True
    if a < 0 <= b:
        return False
    bits = EXP_BITS
    while True:
        low = exp_lower(epsilon, bits)
        left, right, target = a * low, a * (low + 2), b << bits
        if min(left, right) >= target:
            return True
        if max(left, right) < target:
            return False
        bits *= 2
