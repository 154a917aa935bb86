"""Entries and their events: written once, read against the chain, and checked as a whole.

A message that was charged before gets the stored report, or a refusal; never a second draw.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from flower_ldp.accounting.amounts import Amount, Book, ExactEvent, Place
from flower_ldp.accounting.ledger import rows
from flower_ldp.accounting.ledger.charges import Charge, Entry, Receipt, Verification
from flower_ldp.accounting.ledger.rows import DamageError, Head, Key, Row, chain_at, digest
from flower_ldp.accounting.ledger.sums import Snapshot, every_count, raised
from flower_ldp.errors import RefusalError
from flower_ldp.refusals import REFUSED_REPEAT

#: Entries read by one statement, so that a long listing does not hold off a charge.
PAGE = 500
_COLUMNS = (
    "id, at, data_id, run_id, message_id, message_type, fingerprint, parameters, chain,"
    " (SELECT count(*) FROM report WHERE report.entry = entry.id),"
    " coalesce((SELECT number FROM releases WHERE releases.entry = entry.id), 1)"
)
_EVENTS = "SELECT entry, position, mechanism, unit, epsilon, delta, count FROM event"
_WAIVERS = "SELECT entry, position, unit FROM waiver"
_ZCDP = "SELECT entry, position, rho, delta FROM zcdp"


def _chain(before: bytes, row: Row, events: list[Row], releases: int) -> bytes:
    # Events without a waiver or rho, and one release, as ledgers of earlier versions have them:
    # what they chained stays valid.
    return digest("entry", before, *row, events, *(() if releases == 1 else (releases,)))


def _stored(event: ExactEvent) -> Row:
    fields = (event.mechanism, event.unit, event.cost.epsilon, event.cost.delta, event.count)
    waived = [list(event.waived)] if event.waived else []
    rho = [] if event.zcdp is None else [[event.zcdp.epsilon, event.zcdp.delta]]
    return (*fields, *waived, *rho)


def record(
    db: sqlite3.Connection, head: Head, charge: Charge, at: int, *, zcdp: bool = False
) -> Head:
    """Write an entry with its events and sums, by zCDP too if asked; return the new head."""
    number = head.entries + 1
    exact = charge.exact if zcdp else tuple(replace(one, zcdp=None) for one in charge.exact)
    events = [_stored(event) for event in exact]
    message = (charge.data_id, str(charge.run_id), charge.message_id, charge.message_type)
    row = (number, at, *message, charge.fingerprint, charge.parameters)
    chain = _chain(head.chain, row, events, charge.releases)
    db.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, chain))
    for position, event in enumerate(events):
        db.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?)", (number, position, *event[:5]))
        waived = [(number, position, unit) for unit in charge.exact[position].waived]
        db.executemany("INSERT INTO waiver VALUES (?, ?, ?)", waived)
        if zcdp:
            db.execute("INSERT INTO zcdp VALUES (?, ?, ?, ?)", (number, position, *event[-1]))
    if charge.releases != 1:
        db.execute("INSERT INTO releases VALUES (?, ?)", (number, charge.releases))
    head = Head(head.ledger, number, at, chain)
    book = Book.of(exact, charge.releases)
    Snapshot(db, charge.data_id).raise_all(str(charge.run_id), book, at, number)
    rows.write_head(db, head)
    return head


def has_report(
    db: sqlite3.Connection, data_id: str, beginning: bytes, *, parts: bool = False
) -> bool:
    """Return whether an entry of the data, or of its parts too, has a report with this prefix."""
    query = (
        "SELECT 1 FROM entry JOIN report ON report.entry = entry.id"
        " WHERE (data_id = ? OR (data_id > ? AND data_id < ?)) AND substr(report, 1, ?) = ? LIMIT 1"
    )
    # "$" comes after "#": all names that begin with the account's and "#" lie between.
    ends = (f"{data_id}#", f"{data_id}$") if parts else ("", "")
    return db.execute(query, (data_id, *ends, len(beginning), beginning)).fetchone() is not None


def number_of(db: sqlite3.Connection, data_id: str, run_id: int, message_id: str) -> int | None:
    """Return the number of the entry of the data, run and message, or None."""
    row = db.execute(
        "SELECT id FROM entry WHERE data_id = ? AND run_id = ? AND message_id = ?",
        (data_id, str(run_id), message_id),
    ).fetchone()
    return None if row is None else int(row[0])


def find(db: sqlite3.Connection, head: Head, charge: Charge) -> Entry | None:
    """Return the entry of the same data, run and message, or None.

    The fields are compared again: a damaged index leads to another entry, whose report must not
    leave.
    """
    asked = (charge.data_id, charge.run_id, charge.message_id)
    number = number_of(db, *asked)
    if number is None:
        return None
    entry = next(read(db, head, number, number))
    if (entry.data_id, entry.run_id, entry.message_id) != asked:
        raise DamageError(f"the index of messages leads to entry {number}, which is another")
    return entry


def read(db: sqlite3.Connection, head: Head, first: int, last: int) -> Iterator[Entry]:
    """Yield the entries from ``first`` to ``last``, each checked against the one before it."""
    before = chain_at(db, head, first - 1)
    for start in range(first, last + 1, PAGE):
        stop = min(start + PAGE, last + 1)
        between = (start, stop)
        page = db.execute(
            f"SELECT {_COLUMNS} FROM entry WHERE id >= ? AND id < ? ORDER BY id", between
        ).fetchall()
        events = _read_events(db, start, stop)
        if [row[0] for row in page] != list(events):
            raise DamageError(f"of the entries {start} to {stop - 1} some are missing")
        for row in page:
            number, chain = row[0], row[8]
            if _chain(before, row[:8], events[number], row[10]) != chain:
                raise DamageError(f"entry {number} is not what was written")
            before = chain
            exact = tuple(map(_event, events[number]))
            fields = (*row[:3], int(row[3]), *row[4:8], exact, chain, bool(row[9]), row[10])
            yield Entry(*fields)


def _event(stored: Row) -> ExactEvent:
    mechanism, unit, epsilon, delta, count, *more = stored
    waived = more.pop(0) if more and isinstance(more[0][0], str) else ()
    zcdp = Amount(*more[0]) if more else None
    return ExactEvent(mechanism, unit, Amount(epsilon, delta), count, tuple(waived), zcdp)


def _read_events(db: sqlite3.Connection, start: int, stop: int) -> dict[int, list[Row]]:
    """Return the events of entries from ``start`` to before ``stop``, as they were chained."""
    between = (start, stop)
    waived: dict[tuple[int, int], list[str]] = {}
    # Units in the order of their names, which is that of Unit and of what was chained.
    query = f"{_WAIVERS} WHERE entry >= ? AND entry < ? ORDER BY entry, position, unit"
    for number, position, unit in db.execute(query, between):
        waived.setdefault((number, position), []).append(unit)
    zcdp: dict[tuple[int, int], list[int]] = {}
    if rows.keeps_zcdp(db):
        query = f"{_ZCDP} WHERE entry >= ? AND entry < ?"
        zcdp = {(number, position): rho for number, position, *rho in db.execute(query, between)}
    events: dict[int, list[Row]] = {number: [] for number in range(*between)}
    query = f"{_EVENTS} WHERE entry >= ? AND entry < ? ORDER BY entry, position"
    for number, position, *event in db.execute(query, between):
        more = (waived.pop((number, position), None), zcdp.pop((number, position), None))
        events.setdefault(number, []).append((*event, *filter(None, more)))
    for name, lost in (("waiver", waived), ("rho", zcdp)):
        if lost:
            raise DamageError(f"there is a {name} for event {next(iter(lost))}, which is not there")
    return events


def _request(asked: Entry | Charge, events: tuple[ExactEvent, ...]) -> Row:
    plain = (replace(one, waived=(), zcdp=None) for one in events)
    return asked.fingerprint, asked.parameters, *plain


def _no_repeat(charge: Charge, why: str) -> RefusalError:
    return RefusalError(REFUSED_REPEAT, f"message {charge.message_id} {why}")


def check_same(known: Entry, charge: Charge) -> None:
    """Refuse another request; later waivers of the owner make no difference."""
    if _request(known, known.events) != _request(charge, charge.exact) or (
        charge.during is None and known.message_type != charge.message_type
    ):
        raise _no_repeat(charge, "was charged for another request")


def answer(db: sqlite3.Connection, known: Entry, charge: Charge) -> Receipt:
    """Answer for a message that was charged before."""
    check_same(known, charge)
    report = rows.read_report(db, known.number, known.chain)
    if report is None:
        why = "no report was sealed: its cost stays, and only a new message can be answered"
        raise _no_repeat(charge, f"was charged (entry {known.number}) but {why}")
    return Receipt(known.number, known.chain, report)


def unsealed(db: sqlite3.Connection, head: Head, charge: Charge) -> Receipt:
    """Return the receipt of a charge that has no report, or refuse."""
    known = find(db, head, charge)
    if known is None:
        raise _no_repeat(charge, "is not charged")
    check_same(known, charge)
    if rows.read_report(db, known.number, known.chain) is not None:
        raise _no_repeat(charge, "has a report")
    return Receipt(known.number, known.chain)


def verify(db: sqlite3.Connection) -> Verification:
    """Check everything, every sum again from the entries; DamageError names the first fault."""
    verdict = [row[0] for row in db.execute("PRAGMA integrity_check(3)").fetchall()]
    if verdict != ["ok"]:
        raise DamageError(f"SQLite's own check says: {'; '.join(map(str, verdict))}")
    head = rows.read_head(db)
    sums: defaultdict[Key, Book] = defaultdict(Book)
    # How many rows each table has to have by the entries.
    expected = Counter({"clock": 1, "releases": 0, "event": 0, "waiver": 0, "course": 0})
    if rows.keeps_zcdp(db):
        expected["zcdp"] = 0
    latest = 0
    for entry in read(db, head, 1, head.entries):
        if entry.at < latest:
            raise DamageError(f"the time of entry {entry.number} is before that of the last")
        latest = entry.at
        expected["releases"] += entry.releases != 1
        expected["event"] += len(entry.events)
        expected["waiver"] += sum(len(event.waived) for event in entry.events)
        if rho := sum(event.zcdp is not None for event in entry.events):
            expected["zcdp"] += rho
        place = Place.of(entry.data_id)
        sums |= raised(sums, str(entry.run_id), place, entry.book)
        over_all = raised(sums, "", place, entry.book)
        sums |= over_all
        for (_, name), book in over_all.items():
            expected["course"] += 1
            found = rows.point_of_course(db, name, entry.at, entry.number)
            if found != book:
                raise DamageError(f"the course at entry {entry.number} is {found}, not {book}")
    if latest != head.latest:
        raise DamageError("the head's time is not that of the last entry")
    totals = {**sums, **every_count(db)}
    _check_totals(db, totals)
    rows.read_clock(db)
    expected["total"] = len(totals) + 1
    for table, number in expected.items():
        there = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        if there != number:
            raise DamageError(f"{table} has {there} rows, its entries make {number}")
    return Verification(head.entries, _check_reports(db), len(sums), head.mark)


def _check_totals(db: sqlite3.Connection, expected: Mapping[Key, Book]) -> None:
    found = dict(rows.totals_between(db, rows.FIRST, rows.LAST))
    for key in sorted(found.keys() | expected.keys()):
        there, book = found.get(key), expected.get(key)
        if there != book:
            raise DamageError(f"the total of {key} is {there}, not {book}")


def _check_reports(db: sqlite3.Connection) -> int:
    """Check each report against its entry; return their number."""
    count = 0
    query = "SELECT report.entry, chain FROM report LEFT JOIN entry ON entry.id = report.entry"
    for number, chain in db.execute(query):
        if chain is None:
            raise DamageError(f"there is a report for entry {number}, which is not there")
        rows.read_report(db, number, chain)
        count += 1
    return count
