"""The currency of the package: privacy events, their units and their sum.

An event says that a mechanism with a stated guarantee ran ``count`` times on data of
one unit. Pure composition (Dwork and Roth 2014, Theorem 3.14): the epsilons of
releases about the same unit add up. Events of different units (a client's whole data,
one example, one label) protect different things and are never added together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Unit(str, Enum):
    """Whose change the guarantee hides: the neighbouring relation, always replace-one."""

    CLIENT = "client"
    """All data of one client, replaced by any other data."""
    EXAMPLE = "example"
    """One example of a client's data set, replaced by another."""
    LABEL = "label"
    """The label of one example, replaced by another label."""

    @property
    def relation(self) -> str:
        """The neighbouring relation in words; no other relation than replace-one occurs."""
        return f"replace-one {self.value}"


@dataclass(frozen=True)
class PrivacyEvent:
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
        What two neighbouring inputs differ in.
    count : int
        Number of releases.
    """

    mechanism: str
    epsilon: float
    delta: float = 0.0
    unit: Unit = Unit.CLIENT
    count: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ValueError(f"epsilon must be in (0, inf), got {self.epsilon}")
        if not 0 <= self.delta < 1:
            raise ValueError(f"delta must be in [0, 1), got {self.delta}")
        if not (isinstance(self.count, int) and self.count >= 1):
            raise ValueError(f"count must be an integer of at least 1, got {self.count}")

    @property
    def relation(self) -> str:
        """The neighbouring relation of the guarantee, which its unit decides."""
        return self.unit.relation


@dataclass(frozen=True)
class PrivacySpent:
    """A sum of events about one unit, by pure composition.

    Parameters
    ----------
    unit : Unit
        What the guarantee hides a change of.
    epsilon, delta : float
        Totals per unit.
    """

    unit: Unit
    epsilon: float
    delta: float = 0.0

    def __str__(self) -> str:
        delta = f", delta {self.delta:g}" if self.delta else ""
        return f"epsilon {self.epsilon:g}{delta} per {self.unit.value}"


def compose(events: Iterable[PrivacyEvent]) -> dict[Unit, PrivacySpent]:
    """Add up events by basic composition, one total per unit.

    Sums are correctly rounded (``math.fsum``), so a thousand releases of 0.1 cost 100.

    Returns
    -------
    dict of Unit to PrivacySpent
        Only units that occur.
    """
    terms: dict[Unit, list[PrivacyEvent]] = {}
    for event in events:
        terms.setdefault(event.unit, []).append(event)
    return {
        unit: PrivacySpent(
            unit,
            math.fsum(event.epsilon * event.count for event in group),
            math.fsum(event.delta * event.count for event in group),
        )
        for unit, group in terms.items()
    }


def meaning(spent: PrivacySpent) -> str:
    """Say in plain words what a total is worth.

    Pure epsilon bounds how far one unit's reports can move an observer's belief: the odds
    of any two values of its data change by a factor of at most e^epsilon. The lines drawn
    between the sentences are a convention (1 and 10), the factors are the theorem.
    """
    unit = f"{'an' if spent.unit is Unit.EXAMPLE else 'a'} {spent.unit.value}"
    if spent.epsilon <= 1:
        return f"Odds about {unit}'s data change by at most {math.exp(spent.epsilon):.2f} times."
    if spent.epsilon <= 10:
        return (
            f"Odds about {unit}'s data change by at most {math.exp(spent.epsilon):,.0f} times: "
            "a weak but real limit."
        )
    return (
        f"As a total this epsilon means nothing: odds about {unit}'s data may change by "
        f"10^{spent.epsilon / math.log(10):.0f} times. What protects here is only that so "
        "little is sent; no theorem says how much that hides."
    )
