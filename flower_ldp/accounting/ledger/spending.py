"""What was spent about each unit of privacy as people read it, and all releases once more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.books import (
    CONDITIONAL,
    COUNTED,
    DIRECT,
    SILENT,
    WAIVED,
    Book,
    ExactEvent,
    Place,
)
from flower_ldp.accounting.ledger.types import Entry
from flower_ldp.privacy import PrivacyEvent, Unbounded, Unit


@dataclass(frozen=True)
class UnitSpending:
    """What was spent about one unit of privacy.

    Parameters
    ----------
    unit : Unit
        The unit.
    direct : Amount
        Promised for the unit itself.
    in_all : Amount
        Promised for the unit and for coarser ones: all that is bounded. Zero if nothing was
        promised: then nothing is bounded, see ``promised``.
    counted : Amount
        What limits count: conditional claims beside ``in_all``.
    under : mapping of str to Amount
        Conditional claims, in all, by the mechanism's name.
    beyond : Unbounded
        Releases that ``in_all`` says nothing about.
    waived : int
        Releases that the owner declared post-processing for this unit.
    """

    unit: Unit
    direct: Amount
    in_all: Amount
    counted: Amount
    under: Mapping[str, Amount]
    beyond: Unbounded
    waived: int

    @property
    def promised(self) -> bool:
        """Whether anything was promised for the unit without a condition."""
        return self.in_all != Amount()


def spending(book: Book) -> Iterator[UnitSpending]:
    """Yield what a book says about each unit for which there was a release."""
    for unit in Unit:
        beyond = Unbounded(book.number(unit, SILENT), book.number(unit, CONDITIONAL))
        in_all, waived = book.amount(unit), book.number(unit, WAIVED)
        if in_all != Amount() or beyond or waived:
            yield UnitSpending(
                unit,
                book.amount(unit, DIRECT),
                in_all,
                book.amount(unit, COUNTED),
                book.conditional(unit),
                beyond,
                waived,
            )


@dataclass
class Releases:
    """What was released of one data set: of all of it, and by layout and part."""

    whole: Counter[ExactEvent] = field(default_factory=Counter)
    parts: dict[str, dict[str, Counter[ExactEvent]]] = field(default_factory=dict)

    def add(self, place: Place, events: tuple[ExactEvent, ...]) -> None:
        """Count the events of an entry."""
        counts = self.whole
        if place.layout:
            layout = self.parts.setdefault(place.layout, {})
            counts = layout.setdefault(place.name, Counter())
        for event in events:
            counts[event] += event.count

    def towards(self, unit: Unit) -> list[PrivacyEvent]:
        """Return releases that tell at least as much about a unit as those that were made.

        A client has data in every part. A record is in one part of each layout, and of each
        kind of release it is in at most as many as the part with the most.
        """
        found = +self.whole
        for layout in self.parts.values():
            most: Counter[ExactEvent] = Counter()
            for counts in layout.values():
                most = most + counts if unit is Unit.CLIENT else most | counts
            found += most
        events = []
        for event, count in found.items():
            own = Unit(event.unit)
            spent = event.cost.spent(own)
            one = PrivacyEvent(event.mechanism, spent.epsilon, spent.delta, own, count)
            if unit in own.within and unit.value not in event.waived and not one.is_conditional:
                events.append(one)
        return events


def releases_by_account(entries: Iterable[Entry]) -> dict[str, Releases]:
    """Return the releases of each data set, sorted by its name: for a bound other than the sum."""
    found: dict[str, Releases] = {}
    for entry in entries:
        place = Place.of(entry.data_id)
        found.setdefault(place.account, Releases()).add(place, entry.events)
    return dict(sorted(found.items()))
