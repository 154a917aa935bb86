"""Running sums of the ledger: raised by each charge, and read for what a charge concerns.

A charge to all of the data raises its account. One to a part raises the part's account, the
sums of its layout and those over all layouts, so that what any record has spent in all is
known from four rows, whatever the number of parts (:mod:`flower_ldp.accounting.amounts`).

What was answered or failed beside charges is counted among the totals, under a run of its own.
At the end: what was spent as people read it, and all releases once more.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import get_args

from flower_ldp.accounting import amounts
from flower_ldp.accounting.amounts import COUNTED, Amount, Book, ExactEvent, Pair, Place
from flower_ldp.accounting.ledger import rows
from flower_ldp.accounting.ledger.charges import NO_RUN, Entry, Kind, Limit, NumberLimit
from flower_ldp.accounting.ledger.rows import DamageError, Key
from flower_ldp.bounds import check_in
from flower_ldp.errors import BudgetExhausted, quoted
from flower_ldp.privacy import PrivacyEvent, Unbounded, Unit

_RUN = "counts"
KINDS: tuple[Kind, ...] = get_args(Kind)
#: Answers that are no releases; what bounds their number bounds their sum.
_ANSWERS: tuple[Kind, ...] = ("again", "acknowledged")


def raised(before: dict[str, Book], place: Place, cost: Book) -> dict[str, Book]:
    """Return the sums of one run, or of all, that a charge to a place changes.

    Parameters
    ----------
    before : dict of str to Book
        By name of account or of sums over parts; what is missing is zero.
    place : Place
        What is charged.
    cost : Book
        Of the charge.
    """
    part = before.get(place.name, Book()) + cost
    if not place.layout:
        return {place.name: part}
    old = before.get(place.own_layout, Book())
    new = old.joined(cost, part)
    every = before.get(place.all_layouts, Book()) + (new - old)
    return {place.name: part, place.own_layout: new, place.all_layouts: every}


def names(place: Place) -> tuple[str, ...]:
    """Return the names of all sums that a charge to a place changes."""
    return (place.name, place.own_layout, place.all_layouts) if place.layout else (place.name,)


class Snapshot:
    """The sums as they stand in a transaction, each row read once.

    Parameters
    ----------
    db : Connection
        In a transaction that has not raised a sum yet.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self._totals: dict[tuple[str, str], Book] = {}

    def total(self, run: str, name: str) -> Book:
        """Return sums of a run, or with ``""`` over all runs."""
        key = (run, name)
        if key not in self._totals:
            self._totals[key] = rows.read_total(self.db, key)
        return self._totals[key]

    def check(self, place: Place) -> None:
        """Compare the sums over all runs with their copies on other pages.

        A page that went back in time shows.

        Raises
        ------
        DamageError
            If they disagree.
        """
        for name in {place.account, place.all_layouts, *names(place)}:
            if rows.read_course(self.db, name) != self.total("", name):
                raise DamageError(f"two sums of {name.strip()} disagree")

    def spent(self, run: str, place: Place) -> Book:
        """Return what records of a place have spent in all, in one run or over all.

        Of all of the data: what the client has spent, and any of its records at most. Of a
        part: what any of its records has.
        """
        found = self.total(run, place.account) + self.total(run, place.all_layouts)
        if not place.layout:
            return found
        layout, part = self.total(run, place.own_layout), self.total(run, place.name)
        return found + (part.largest() - layout.largest())

    def towards(self, limit: Limit, place: Place, run_id: int, at: int) -> Amount:
        """Return what counts towards a limit at time ``at`` (microseconds).

        A window holds what was charged at most ``window_seconds`` ago: the sum now minus the
        sum as it stood before, exact for any length, and no buckets.
        """
        if limit.scope == "window":
            return Window(self, place, at - limit.microseconds).exactly(limit.unit)
        if limit.scope == "life":
            return self.spent("", place).amount(limit.unit, COUNTED)
        # What belongs to no run may have been drawn in this one, and answers its messages.
        runs = {str(run_id), str(NO_RUN)}
        name = amounts.line(limit.unit, COUNTED)
        return _sum([self.spent(run, place).pair(name) for run in runs])

    def number(self, limit: NumberLimit, place: Place, at: int) -> int:
        """Return how many releases of an account count towards a limit at time ``at``."""
        if limit.window_seconds is None:
            return self.spent("", place).pair(amounts.RELEASES)[0]
        return Window(self, place, at - limit.microseconds).number()


def raise_all(sums: Snapshot, place: Place, run_id: str, cost: Book, at: int, entry: int) -> None:
    """Raise the sums of a run and those over all runs, and note these in the course."""
    for run in (run_id, ""):
        before = {name: sums.total(run, name) for name in names(place)}
        for name, book in raised(before, place, cost).items():
            rows.replace_total(sums.db, (run, name), book)
            if not run:
                rows.put(sums.db, "course", name, at, entry, book.text())


@dataclass(frozen=True)
class Window:
    """What was spent since a time.

    Parameters
    ----------
    sums : Snapshot
        The sums now.
    place : Place
        Whose records.
    start : int
        Microseconds since 1970.
    """

    sums: Snapshot
    place: Place
    start: int

    def at_most(self, unit: Unit) -> Amount:
        """Return a bound that takes a few look-ups: exact, but for parts in other layouts.

        Of those it counts all that the largest part ever spent.
        """
        if unit is Unit.CLIENT:
            return self.exactly(unit)
        name = amounts.line(unit, COUNTED)
        others = self.sums.total("", self.place.all_layouts).pair(name)
        if self.place.layout:
            own = self.sums.total("", self.place.own_layout).pair(name)
            others = (others[0] - own[0], others[1] - own[1])
        return _sum([*self._both(self.place.name, name), others])

    def exactly(self, unit: Unit) -> Amount:
        """Return what counts; looks at each part of all other layouts, if there are any."""
        name = amounts.line(unit, COUNTED)
        if unit is Unit.CLIENT:
            return _sum(self._both(self.place.all_layouts, name))
        most: dict[str, Pair] = {}
        for layout, part, life in self._others():
            had, ever = most.get(layout, (0, 0)), life.pair(name)
            if amounts.larger(had, ever) != had:  # else it cannot be the largest since then either
                most[layout] = amounts.larger(had, self._since(part, life).pair(name))
        return _sum([*self._both(self.place.name, name), *most.values()])

    def number(self) -> int:
        """Return the number of releases, of all parts together."""
        return sum(pair[0] for pair in self._both(self.place.all_layouts, amounts.RELEASES))

    def _both(self, other: str, name: str) -> list[Pair]:
        """Return a line of the account, and that of other sums if these are not the account's."""
        return [self._since(one).pair(name) for one in {self.place.account, other}]

    def _since(self, account: str, life: Book | None = None) -> Book:
        life = life or self.sums.total("", account)
        return life - rows.read_course(self.sums.db, account, (self.start, 0))

    def _others(self) -> Iterator[tuple[str, str, Book]]:
        """Yield layout, name and sums of all parts in other layouts."""
        own = self.sums.total("", self.place.own_layout) if self.place.layout else None
        if self.sums.total("", self.place.all_layouts) == (own or Book()):
            return
        account = self.place.account
        # "$" comes after "#": all names that begin with the account's and "#" lie between.
        ends = ("", f"{account}#"), ("", f"{account}$")
        for (_, name), life in rows.totals_between(self.sums.db, *ends):
            place = Place.of(name)
            if place.account == account and place.layout != self.place.layout:
                yield place.layout, name, life


def _sum(pairs: list[Pair]) -> Amount:
    return Amount(sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs))


def count(db: sqlite3.Connection, data_id: str, kind: Kind, most: int | None) -> int:
    """Add one and return the new number.

    Raises
    ------
    BudgetExhausted
        If there would be more than ``most``; nothing was written.
    """
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
    """Return all that was counted, by key among the totals."""
    return dict(rows.totals_between(db, (_RUN, ""), (f"{_RUN}\0", "")))


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
        silent, conditional, waived = (book.number(unit, kind) for kind in amounts.NUMBERS)
        beyond, in_all = Unbounded(silent, conditional), book.amount(unit)
        if in_all != Amount() or beyond or waived:
            direct, counted = book.amount(unit, amounts.DIRECT), book.amount(unit, COUNTED)
            under = book.conditional(unit)
            yield UnitSpending(unit, direct, in_all, counted, under, beyond, waived)


@dataclass
class Releases:
    """What was released of one data set, by layout and part; without a layout of all of it."""

    parts: dict[str, dict[str, Counter[ExactEvent]]] = field(default_factory=dict)

    def add(self, place: Place, events: tuple[ExactEvent, ...]) -> None:
        """Count the events of an entry."""
        counts = self.parts.setdefault(place.layout, {}).setdefault(place.name, Counter())
        for event in events:
            counts[event] += event.count

    def towards(self, unit: Unit) -> list[PrivacyEvent]:
        """Return releases that tell at least as much about a unit as those that were made.

        A client has data in every part. A record is in one part of each layout, and of each
        kind of release it is in at most as many as the part with the most.
        """
        found: Counter[ExactEvent] = Counter()
        # All of the data first, in whatever order it was charged.
        for _, layout in sorted(self.parts.items(), key=lambda one: bool(one[0])):
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
