"""Exact amounts of privacy: epsilon and delta as integers, so that sums are exact.

Epsilon is counted in units of 1e-12 and delta in units of 1e-18, both as 64-bit integers.
A cost is rounded **up** to the next unit and a limit **down**: sums of integers add no
error of their own, so a total never understates its terms.

A floating-point number means the shortest decimal that names it: ``0.1`` is one tenth, not
the binary fraction 5.6e-18 above it. Otherwise eighty releases of 0.1 would not fit in a
limit of 8, though that is what everyone wrote. The two differ by less than one part in
10^15, which is below the rounding of any mechanism that computes with such numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from flower_ldp.privacy import PrivacySpent, Unit, as_fraction

EPSILON_UNITS = 10**12
"""Units of epsilon in one: the smallest amount that is told apart is 1e-12."""
DELTA_UNITS = 10**18
"""Units of delta in one."""
MOST = 2**63 - 1
"""Largest count of units: an epsilon of about 9.2 million, a delta of about 9.2."""


def _exact(name: str, value: float) -> Fraction:
    """Return the decimal that a number means; refuse what is no amount."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    if value < 0:
        raise ValueError(f"{name} must be at least 0, got {value}")
    return Fraction(value) if isinstance(value, int) else as_fraction(value)


def _decimal(units: int, per_one: int) -> str:
    whole, part = divmod(units, per_one)
    digits = str(part).zfill(len(str(per_one)) - 1).rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


def _float_up(units: int, per_one: int) -> float:
    """Return the smallest float that does not understate an amount, in its own meaning."""
    value = units / per_one
    return value if _exact("amount", value) * per_one >= units else math.nextafter(value, math.inf)


@dataclass(frozen=True)
class Amount:
    """Epsilon and delta about one unit of privacy, exact.

    Parameters
    ----------
    epsilon : int
        In units of 1e-12, at least 0. A cost or a limit is below 2^63, and so is what a ledger
        lets add up.
    delta : int
        In units of 1e-18, the same.
    """

    epsilon: int = 0
    delta: int = 0

    def __post_init__(self) -> None:
        if self.epsilon < 0 or self.delta < 0:
            raise ValueError(f"an amount must be at least 0, got {self.epsilon}, {self.delta}")

    def bounded(self) -> Amount:
        """Return the amount; raise ValueError if it is too large to be represented."""
        for name, per_one in (("epsilon", EPSILON_UNITS), ("delta", DELTA_UNITS)):
            units = getattr(self, name)
            if units > MOST:  # the constructor refuses what is below 0
                most, got = MOST / per_one, units / per_one
                raise ValueError(f"{name} must be in [0, {most:g}], got {got:g}")
        return self

    @classmethod
    def cost(cls, epsilon: float, delta: float = 0.0, count: int = 1) -> Amount:
        """Return what ``count`` releases cost, each rounded up.

        Raises
        ------
        ValueError
            If a number is infinite, NaN, negative or too large to be represented.
        """
        return cls(
            count * math.ceil(_exact("epsilon", epsilon) * EPSILON_UNITS),
            count * math.ceil(_exact("delta", delta) * DELTA_UNITS),
        ).bounded()

    @classmethod
    def allowance(cls, epsilon: float, delta: float = 0.0) -> Amount:
        """Return a limit, rounded down; raises as :meth:`cost` does."""
        return cls(
            math.floor(_exact("epsilon", epsilon) * EPSILON_UNITS),
            math.floor(_exact("delta", delta) * DELTA_UNITS),
        ).bounded()

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.epsilon + other.epsilon, self.delta + other.delta)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.epsilon - other.epsilon, self.delta - other.delta)

    @property
    def epsilon_text(self) -> str:
        """Epsilon as an exact decimal."""
        return _decimal(self.epsilon, EPSILON_UNITS)

    @property
    def delta_text(self) -> str:
        """Delta as an exact decimal."""
        return _decimal(self.delta, DELTA_UNITS)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon_text}" + (f", delta {self.delta_text}" if self.delta else "")

    def spent(self, unit: Unit) -> PrivacySpent:
        """Return the amount in floating point, never below the exact one."""
        return PrivacySpent(
            unit, _float_up(self.epsilon, EPSILON_UNITS), _float_up(self.delta, DELTA_UNITS)
        )
