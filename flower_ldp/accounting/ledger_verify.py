"""The long check: every sum of the ledger once more, from its entries."""

from __future__ import annotations

import sqlite3

from flower_ldp.accounting import ledger_entries as entries
from flower_ldp.accounting import ledger_rows as rows
from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.ledger_rows import FIRST, DamageError, Head, Key
from flower_ldp.accounting.ledger_types import Entry


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
    sums: dict[Key, Amount] = {}
    latest, points, events = 0, 0, 0
    for entry in entries.read(db, head, 1, head.entries):
        if entry.at < latest:
            raise DamageError(f"the time of entry {entry.number} is before that of the last")
        latest = entry.at
        events += len(entry.events)
        for key in _add(sums, entry):
            points += 1
            _check_point(db, entry, key, sums[key])
    if latest != head.latest:
        raise DamageError("the head's time is not that of the last entry")
    _check_totals(db, sums)
    _check_count(db, "course", points)
    _check_count(db, "event", events)
    return head, _check_reports(db), len(sums)


def _add(sums: dict[Key, Amount], entry: Entry) -> set[Key]:
    """Add an entry to the sums; return the keys of those over all runs."""
    touched = set()
    for event in entry.events:
        cost = Amount(event.cost.epsilon * event.count, event.cost.delta * event.count)
        for run in (str(entry.run_id), ""):
            key = (run, entry.data_id, event.unit)
            sums[key] = sums.get(key, Amount()) + cost
        touched.add(("", entry.data_id, event.unit))
    return touched


def _check_point(db: sqlite3.Connection, entry: Entry, key: Key, amount: Amount) -> None:
    _, data_id, unit = key
    found = rows.point_of_course(db, data_id, unit, entry.at, entry.number)
    if found != amount:
        raise DamageError(f"the course at entry {entry.number} says {found}, not {amount}")


def _check_totals(db: sqlite3.Connection, sums: dict[Key, Amount]) -> None:
    before = FIRST
    for key in sorted(sums):
        if rows.successor_of(db, before) != key:
            raise DamageError(f"the totals after {before} do not go on with {key}")
        found = rows.read_total(db, key)
        if found != sums[key]:
            raise DamageError(f"the total of {key} is {found}, its entries cost {sums[key]}")
        before = key
    if rows.successor_of(db, before) is not None:
        raise DamageError(f"the totals do not end with {before}")
    _check_count(db, "total", len(sums) + 1)


def _check_count(db: sqlite3.Connection, table: str, expected: int) -> None:
    found = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    if found != expected:
        raise DamageError(f"{table} has {found} rows, its entries make {expected}")


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
