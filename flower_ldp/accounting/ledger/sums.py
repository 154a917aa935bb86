"""Running sums of the ledger: raised by each charge, and read for the next.

A charge to all of the data raises its account. One to a part raises the part's account, its
layout's sums and those over all layouts, so four rows give any record's spending. Counts beside
charges stand among the totals, under a run of their own.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from flower_ldp.accounting import amounts
from flower_ldp.accounting.amounts import COUNTED, Amount, Book, ExactEvent, Pair, Place
from flower_ldp.accounting.ledger import rows
from flower_ldp.accounting.ledger.charges import NO_RUN, Entry, Kind, Limit, NumberLimit
from flower_ldp.accounting.ledger.rows import DamageError, Key
from flower_ldp.errors import BudgetExhausted, quoted
from flower_ldp.parameter_bounds import check_in
from flower_ldp.privacy import PrivacyEvent, Unbounded, Unit

_RUN = "counts"
KINDS: tuple[Kind, ...] = get_args(Kind)
#: Answers that are no releases; what bounds their number bounds their sum.
_ANSWERS: tuple[Kind, ...] = ("again", "acknowledged")


def raised(before: Mapping[Key, Book], run: str, place: Place, cost: Book) -> dict[Key, Book]:
    """Return the sums that a charge to a place changes, in a run, or over all for ``""``.

    ``before`` has the present sums, and an empty book for what was never charged.
    """
    own, of_layout, of_all = (run, place.name), (run, place.own_layout), (run, place.all_layouts)
    part = before[own] + cost
    if not place.layout:
        return {own: part}
    layout = before[of_layout].joined(cost, part)
    return {own: part, of_layout: layout, of_all: before[of_all] + (layout - before[of_layout])}


class Snapshot(dict[Key, Book]):
    """The sums of a place, each row read once, in a transaction that has not raised one yet."""

    def __init__(self, db: sqlite3.Connection, data_id: str) -> None:
        super().__init__()
        self.db, self.place = db, Place.of(data_id)

    def __missing__(self, key: Key) -> Book:
        self[key] = rows.read_total(self.db, key)
        return self[key]

    def check(self) -> None:
        """Compare the sums over all runs with their copies on other pages."""
        place = self.place
        for name in {place.account, place.name, place.own_layout, place.all_layouts}:
            if rows.read_course(self.db, name) != self["", name]:
                raise DamageError(f"two sums of {name.strip()} disagree")

    def spent(self, run: str) -> Book:
        """Return the spending of the place's records, in one run or over all for ``""``.

        Of all of the data: the client's, and the most of any record.
        """
        place = self.place
        found = self[run, place.account] + self[run, place.all_layouts]
        if not place.layout:
            return found
        return found + (self[run, place.name].largest() - self[run, place.own_layout].largest())

    def towards(self, limit: Limit, run_id: int, at: int) -> Amount:
        """Return the amount that counts towards a limit at time ``at`` (microseconds).

        A window is the sum now minus the sum as it stood before: exact for any length.
        """
        if limit.scope == "window":
            return self.exactly(limit.unit, at - limit.microseconds)
        if limit.scope == "life":
            return self.spent("").amount(limit.unit, COUNTED)
        # What belongs to no run may have been drawn in this one, and answers its messages.
        runs = {str(run_id), str(NO_RUN)}
        return sum(map(self.spent, runs), Book()).amount(limit.unit, COUNTED)

    def number(self, limit: NumberLimit, at: int) -> int:
        """Return the account's number of releases that count towards a limit at time ``at``."""
        if limit.window_seconds is None:
            return self.spent("").pair(amounts.RELEASES)[0]
        within = self._both(self.place.all_layouts, at - limit.microseconds)
        return within.pair(amounts.RELEASES)[0]

    def at_most(self, unit: Unit, start: int) -> Amount:
        """Return an upper bound on the spending since a time, in a few look-ups.

        Of parts in other layouts it counts the largest sum for life.
        """
        if unit is Unit.CLIENT:
            return self.exactly(unit, start)
        others = self["", self.place.all_layouts]
        if self.place.layout:
            others = others - self["", self.place.own_layout]
        return (self._both(self.place.name, start) + others).amount(unit, COUNTED)

    def exactly(self, unit: Unit, start: int) -> Amount:
        """Return the spending since a time; reads each part of all other layouts."""
        if unit is Unit.CLIENT:
            return self._both(self.place.all_layouts, start).amount(unit, COUNTED)
        name = amounts.line(unit, COUNTED)
        most: dict[str, Pair] = {}
        for layout, part, life in self._others():
            had, ever = most.get(layout, (0, 0)), life.pair(name)
            if amounts.larger(had, ever) != had:  # else it cannot be the largest since then either
                most[layout] = amounts.larger(had, self._since(part, start, life).pair(name))
        own = self._both(self.place.name, start).amount(unit, COUNTED)
        return sum((Amount(*pair) for pair in most.values()), own)

    def _both(self, other: str, start: int) -> Book:
        """Return the account's spending since a time, and other sums that are not the account's."""
        ends = {self.place.account, other}
        return sum((self._since(one, start, self["", one]) for one in ends), Book())

    def _since(self, name: str, start: int, life: Book) -> Book:
        return life - rows.read_course(self.db, name, (start, 0))

    def _others(self) -> Iterator[tuple[str, str, Book]]:
        """Yield layout, name and sums of all parts in other layouts."""
        own = self["", self.place.own_layout] if self.place.layout else Book()
        if self["", self.place.all_layouts] == own:
            return
        account = self.place.account
        # "$" comes after "#": all names that begin with the account's and "#" lie between.
        ends = ("", f"{account}#"), ("", f"{account}$")
        for (_, name), life in rows.totals_between(self.db, *ends):
            place = Place.of(name)
            if place.account == account and place.layout != self.place.layout:
                yield place.layout, name, life

    def raise_all(self, run_id: str, cost: Book, at: int, entry: int) -> None:
        """Raise the sums of a run and over all runs, and record these in the course."""
        for run in (run_id, ""):
            for key, book in raised(self, run, self.place, cost).items():
                rows.replace_total(self.db, key, book)
                if not run:
                    rows.put(self.db, "course", key[1], at, entry, book.text())


def count(db: sqlite3.Connection, data_id: str, kind: Kind, most: int | None) -> int:
    """Add one and return the new number; BudgetExhausted above ``most``, with nothing written."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {quoted(kind)}")
    key = (_RUN, Place.of(data_id).account)
    book = rows.read_total(db, key) + Book({kind: (1, 0)})
    if most is not None:
        check_in("[0, 2^63)", "most", most, int)
        together = _ANSWERS if kind in _ANSWERS else (kind,)
        if sum(book.pair(one)[0] for one in together) > most:
            raise BudgetExhausted(
                f"{key[1]}: the limit is {most:,} ({' and '.join(together)} together)"
            )
    rows.replace_total(db, key, book)
    return book.pair(kind)[0]


def counts(db: sqlite3.Connection, data_id: str) -> dict[Kind, int]:
    """Return all numbers of an account."""
    book = rows.read_total(db, (_RUN, Place.of(data_id).account))
    return {kind: book.pair(kind)[0] for kind in KINDS}


def every_count(db: sqlite3.Connection) -> dict[Key, Book]:
    """Return all counts, by key among the totals."""
    return dict(rows.totals_between(db, (_RUN, ""), (f"{_RUN}\0", "")))


@dataclass(frozen=True)
class UnitSpending:
    """Spending about one unit of privacy.

    ``direct`` is for guarantees about the unit itself, ``in_all`` with coarser ones (zero: nothing
    is bounded), ``counted`` with conditional claims too, for limits. ``zcdp`` is that as a rho and
    its delta, in accounts by zCDP. ``under`` has these claims by mechanism, ``beyond`` the releases
    that ``in_all`` does not cover, ``waived`` those that the owner declared post-processing for
    this unit.
    """

    unit: Unit
    direct: Amount
    in_all: Amount
    counted: Amount
    zcdp: Amount
    under: Mapping[str, Amount]
    beyond: Unbounded
    waived: int

    @property
    def promised(self) -> bool:
        """Whether there is an unconditional guarantee for the unit."""
        return self.in_all != Amount()


def spending(book: Book) -> Iterator[UnitSpending]:
    """Yield a book's spending for each unit with a release."""
    for unit in Unit:
        silent, conditional, waived = (book.number(unit, kind) for kind in amounts.NUMBERS)
        beyond, in_all = Unbounded(silent, conditional), book.amount(unit)
        if in_all != Amount() or beyond or waived:
            direct, counted = book.amount(unit, amounts.DIRECT), book.amount(unit, COUNTED)
            zcdp, under = book.amount(unit, amounts.ZCDP), book.conditional(unit)
            yield UnitSpending(unit, direct, in_all, counted, zcdp, under, beyond, waived)


def releases_by_account(entries: Iterable[Entry]) -> dict[str, dict[Place, Counter[ExactEvent]]]:
    """Return the releases of each place, by account in order."""
    found: dict[str, dict[Place, Counter[ExactEvent]]] = {}
    for entry in entries:
        place = Place.of(entry.data_id)
        counts = found.setdefault(place.account, {}).setdefault(place, Counter())
        for event in entry.events:
            counts[event] += event.count
    return dict(sorted(found.items()))


def releases_towards(places: Mapping[Place, Counter[ExactEvent]], unit: Unit) -> list[PrivacyEvent]:
    """Return releases that reveal at least as much about a unit as an account's.

    A client has data in every part. A record is in one part of each layout: of each kind of release
    it is in at most as many as the part with the most.
    """
    layouts: dict[str, Counter[ExactEvent]] = {}
    for place, counts in places.items():
        most = layouts.get(place.layout, Counter())
        layouts[place.layout] = most + counts if unit is Unit.CLIENT else most | counts
    # All of the data first, in whatever order it was charged.
    found = sum((layouts[name] for name in sorted(layouts, key=bool)), Counter[ExactEvent]())
    events = []
    for event, count in found.items():
        own = Unit(event.unit)
        spent = event.cost.spent(own)
        one = PrivacyEvent(event.mechanism, spent.epsilon, spent.delta, own, count)
        if unit in own.within and unit.value not in event.waived and not one.is_conditional:
            events.append(one)
    return events
