"""All releases of a ledger once more, by account: what a bound other than the sum needs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from flower_ldp.accounting.books import Place
from flower_ldp.accounting.ledger.charges import ExactEvent
from flower_ldp.accounting.ledger.ledger import Ledger
from flower_ldp.privacy import PrivacyEvent, Unit


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


def releases_by_account(ledger: Ledger) -> dict[str, Releases]:
    """Return the releases of each data set, sorted by its name; reads all entries."""
    found: dict[str, Releases] = {}
    for entry in ledger.entries():
        place = Place.of(entry.data_id)
        found.setdefault(place.account, Releases()).add(place, entry.events)
    return dict(sorted(found.items()))
