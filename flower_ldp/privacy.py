"""Privacy events, their units and their sum.

An event says that a mechanism with a stated guarantee ran ``count`` times on data of one unit. The
epsilons of releases about the same unit add up (Dwork and Roth 2014, Theorem 3.14).

**Units are nested.** Two data sets that differ in one label differ in one example, and two that
differ in one example are two data sets of one client. A guarantee for a client therefore holds for
each of its examples, and one for an example for its label: costs of a coarser unit count towards
every finer one. The reverse does not hold: a guarantee for an example gives no figure for the
client, not even zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from enum import Enum
from fractions import Fraction
from typing import Annotated

from flower_ldp.parameter_bounds import Bounded, Checked

#: Ends the name of every mechanism whose epsilon holds under a condition only.
CONDITIONAL_SUFFIX = ":conditional"


class Unit(str, Enum):
    """The neighbouring relation of a guarantee, always replace-one."""

    CLIENT = "client"
    """All data of one client, replaced by any other data."""
    EXAMPLE = "example"
    """One example of a client's data set, replaced by another."""
    LABEL = "label"
    """The label of one example, replaced by another label."""

    @property
    def relation(self) -> str:
        """The neighbouring relation in words."""
        return f"replace-one {self.value}"

    @property
    def within(self) -> tuple[Unit, ...]:
        """The unit and all finer ones, for which its guarantees hold."""
        units = tuple(Unit)
        return units[units.index(self) :]


@dataclass(frozen=True)
class PrivacyEvent(Checked):
    """One mechanism's cost, stated without an accountant.

    Parameters
    ----------
    mechanism : str
        Name of the mechanism, for example ``"signds"``.
    epsilon : float
        Per release and per unit; finite and positive.
    delta : float
        Per release and per unit, in [0, 1).
    unit : Unit
        The difference of two neighbouring inputs.
    count : int
        Number of releases.
    rho : float, optional
        zCDP per release and per unit, but for a probability of at most 1e-18. By default it follows
        from epsilon and delta (:mod:`flower_ldp.accounting.zcdp`).
    """

    mechanism: str
    epsilon: Annotated[float, Bounded("(0, inf)")]
    delta: Annotated[float, Bounded("[0, 1)")] = 0.0
    unit: Unit = Unit.CLIENT
    count: Annotated[int, Bounded("[1, inf)")] = 1
    rho: Annotated[float | None, Bounded("(0, inf)")] = None

    @property
    def relation(self) -> str:
        """The neighbouring relation of the guarantee."""
        return self.unit.relation

    @property
    def is_conditional(self) -> bool:
        """Whether the guarantee holds under a condition only, by the mechanism's name."""
        return self.mechanism.endswith(CONDITIONAL_SUFFIX)


@dataclass(frozen=True)
class PrivacySpent:
    """A sum of guarantees about one unit, by pure composition.

    Parameters
    ----------
    unit : Unit
        The protected unit.
    epsilon, delta : float
        Totals per unit.
    """

    unit: Unit
    epsilon: float
    delta: float = 0.0

    def __str__(self) -> str:
        delta = f", delta {at_least(self.delta)}" if self.delta else ""
        return f"epsilon {at_least(self.epsilon)}{delta} per {self.unit.value}"


def as_fraction(value: float) -> Fraction:
    """Return the decimal that ``value`` prints as, exactly: 0.15 is 15/100."""
    return Fraction(repr(float(value)))


def double_at_least(exact: Fraction) -> float:
    """Return the smallest double whose printed decimal is at least ``exact``."""
    found = float(exact)
    while as_fraction(found) < exact:
        found = math.nextafter(found, math.inf)
    return found


def rounded_up(value: float, digits: int) -> float:
    """Return the smallest number of so many significant digits that is not below ``value``."""
    return float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value))))


def at_least(value: float, digits: int = 6) -> str:
    """Return a bound in a few digits, rounded up."""
    if not math.isfinite(value):
        return f"{value:g}"
    # The last digits of a double are its roundings: 0.1 + 0.2 is 0.3, not 0.300001.
    return f"{rounded_up(float(f'{float(value):.14g}'), digits):.{digits}g}"


def compose(events: Iterable[PrivacyEvent]) -> dict[Unit, PrivacySpent]:
    """Add up all costs of each unit, those of coarser units included.

    Conditional claims are in no total. Sums are correctly rounded (``math.fsum``), so a thousand
    releases of 0.1 cost 100.

    Returns
    -------
    dict of Unit to PrivacySpent
        Units without a guarantee are missing: for them there is no bound.
    """
    return _sums((unit, event) for event in events for unit in event.unit.within)


def compose_directly(events: Iterable[PrivacyEvent]) -> dict[Unit, PrivacySpent]:
    """Add up the events of each unit alone, without coarser units."""
    return _sums((event.unit, event) for event in events)


def _sums(claims: Iterable[tuple[Unit, PrivacyEvent]]) -> dict[Unit, PrivacySpent]:
    terms: dict[Unit, list[PrivacyEvent]] = {}
    for unit, event in claims:
        if not event.is_conditional:
            terms.setdefault(unit, []).append(event)
    return {
        unit: PrivacySpent(
            unit,
            math.fsum(event.epsilon * event.count for event in terms[unit]),
            math.fsum(event.delta * event.count for event in terms[unit]),
        )
        for unit in Unit
        if unit in terms
    }


@dataclass(frozen=True)
class Unbounded:
    """Numbers of releases that a unit's total does not cover.

    Parameters
    ----------
    silent : int
        Releases about a finer unit.
    conditional : int
        Releases whose guarantee holds under a condition only.
    """

    silent: int = 0
    conditional: int = 0

    def __bool__(self) -> bool:
        return bool(self.silent or self.conditional)

    def __str__(self) -> str:
        parts = [
            f"{count:,} {'release promises' if count == 1 else 'releases promise'} {what}"
            for count, what in (
                (self.silent, "nothing for it"),
                (self.conditional, "something under a condition only"),
            )
            if count
        ]
        return " and ".join(parts)


def unbounded(events: Iterable[PrivacyEvent], unit: Unit) -> Unbounded:
    """Count the releases that a unit's total does not cover."""
    silent = conditional = 0
    for event in events:
        if unit not in event.unit.within:
            silent += event.count
        elif event.is_conditional:
            conditional += event.count
    return Unbounded(silent, conditional)


def meaning(spent: PrivacySpent) -> str:
    """Return in plain words what a total guarantees.

    Pure epsilon bounds the change of an observer's belief: the odds of any two values of a unit's
    data change by a factor of at most e^epsilon. With a delta only the probability of each event is
    bounded: by e^epsilon times that under any other value, plus delta. The limits between the
    sentences (1 and 10) are a convention; the factors are rounded up.
    """
    unit = f"{'an' if spent.unit is Unit.EXAMPLE else 'a'} {spent.unit.value}"
    what, plus = f"Odds about {unit}'s data change", ""
    if spent.delta >= 1:
        return f"As a total this delta means nothing: all about {unit}'s data may be told."
    if spent.delta:
        what = f"Probabilities of what {unit}'s data may show change"
        plus = f" plus {at_least(spent.delta)}"
    if spent.epsilon <= 1:
        times = math.ceil(math.exp(spent.epsilon) * 100) / 100
        return f"{what} by at most {times:.2f} times{plus}."
    if spent.epsilon <= 10:
        return (
            f"{what} by at most {math.ceil(math.exp(spent.epsilon)):,} times{plus}: a weak but "
            "real limit."
        )
    return (
        f"As a total this epsilon means nothing: odds about {unit}'s data may change by "
        f"10^{spent.epsilon / math.log(10):.0f} times. What protects here is only that so "
        "little is sent."
    )
