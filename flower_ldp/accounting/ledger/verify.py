"""The long check: every sum of the ledger once more, from its entries."""

from __future__ import annotations

import sqlite3
from collections import Counter
from operator import itemgetter

from flower_ldp.accounting.amounts import Book, Place
from flower_ldp.accounting.ledger import entries, rows
from flower_ldp.accounting.ledger import time as times
from flower_ldp.accounting.ledger.charges import Entry
from flower_ldp.accounting.ledger.rows import FIRST, DamageError, Head, Key
from flower_ldp.accounting.ledger.sums import every_count, raised


def verify(db: sqlite3.Connection) -> tuple[Head, int, int]:
    """Check everything; return the head and the numbers of reports and of totals.

    Raises
    ------
    DamageError
        Naming the first thing that does not fit.
    """
    verdict = [row[0] for row in db.execute("PRAGMA integrity_check(3)").fetchall()]
    if verdict != ["ok"]:
        raise DamageError(f"SQLite's own check says: {'; '.join(map(str, verdict))}")
    head = rows.read_head(db)
    sums: dict[str, dict[str, Book]] = {}
    # How many rows each table has to have by the entries.
    expected = Counter({"clock": 1, "releases": 0, "event": 0, "waiver": 0, "course": 0})
    latest = 0
    for entry in entries.read(db, head, 1, head.entries):
        if entry.at < latest:
            raise DamageError(f"the time of entry {entry.number} is before that of the last")
        latest = entry.at
        expected["releases"] += entry.releases != 1
        expected["event"] += len(entry.events)
        expected["waiver"] += sum(len(event.waived) for event in entry.events)
        for name, book in _add(sums, entry).items():
            expected["course"] += 1
            found = rows.point_of_course(db, name, entry.at, entry.number)
            if found != book:
                raise DamageError(f"the course at entry {entry.number} is {found}, not {book}")
    if latest != head.latest:
        raise DamageError("the head's time is not that of the last entry")
    flat = {(run, name): book for run, named in sums.items() for name, book in named.items()}
    totals = {**flat, **every_count(db)}
    _check_totals(db, totals)
    times.read(db, head, 0)
    expected["total"] = len(totals) + 1
    for table, number in expected.items():
        there = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        if there != number:
            raise DamageError(f"{table} has {there} rows, its entries make {number}")
    return head, _check_reports(db), len(flat)


def _add(sums: dict[str, dict[str, Book]], entry: Entry) -> dict[str, Book]:
    """Add an entry to the sums, by run and name; return those over all runs that it raised."""
    new: dict[str, Book] = {}
    for run in (str(entry.run_id), ""):
        before = sums.setdefault(run, {})
        new = raised(before, Place.of(entry.data_id), entry.book)
        before.update(new)
    return new


def _check_totals(db: sqlite3.Connection, sums: dict[Key, Book]) -> None:
    before = FIRST
    for key, book in sorted(sums.items(), key=itemgetter(0)):
        if rows.successor_of(db, before) != key:
            raise DamageError(f"the totals after {before} do not go on with {key}")
        found = rows.read_total(db, key)
        if found != book:
            raise DamageError(f"the total of {key} is {found.text()}, not {book.text()}")
        before = key
    if rows.successor_of(db, before) is not None:
        raise DamageError(f"the totals do not end with {before}")


def _check_reports(db: sqlite3.Connection) -> int:
    """Check each report against its entry; return how many there are."""
    count = 0
    query = "SELECT report.entry, chain FROM report LEFT JOIN entry ON entry.id = report.entry"
    for number, chain in db.execute(query):
        if chain is None:
            raise DamageError(f"there is a report for entry {number}, which is not there")
        rows.read_report(db, number, chain)
        count += 1
    return count
