"""Entries and their events: written once, read back against the chain."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from flower_ldp.accounting import ledger_rows as rows
from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.ledger_rows import DamageError, Head, chain_at, digest
from flower_ldp.accounting.ledger_types import Charge, Entry, ExactEvent
from flower_ldp.privacy import Unit

#: Entries read by one statement, so that a long listing does not hold off a charge.
PAGE = 500
_COLUMNS = (
    "id, at, data_id, run_id, message_id, message_type, fingerprint, parameters, chain,"
    " (SELECT count(*) FROM report WHERE report.entry = entry.id)"
)
_EVENTS = "SELECT entry, mechanism, unit, epsilon, delta, count FROM event"


def exact_events(charge: Charge) -> tuple[ExactEvent, ...]:
    """Return the events of a charge as they are stored."""
    return tuple(
        ExactEvent(e.mechanism, e.unit.value, Amount.cost(e.epsilon, e.delta), int(e.count))
        for e in charge.events
    )


def _chain(before: bytes, row: tuple[Any, ...], events: list[tuple[Any, ...]]) -> bytes:
    return digest("entry", before, *row, events)


def append(db: sqlite3.Connection, head: Head, charge: Charge, at: int) -> Head:
    """Write an entry with its events and return the head that ends with it."""
    number = head.entries + 1
    events = [
        (e.mechanism, e.unit, e.cost.epsilon, e.cost.delta, e.count) for e in exact_events(charge)
    ]
    row = (
        number,
        at,
        charge.data_id,
        str(charge.run_id),
        charge.message_id,
        charge.message_type,
        charge.fingerprint,
        charge.parameters,
    )
    chain = _chain(head.chain, row, events)
    db.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, chain))
    db.executemany(
        "INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(number, position, *event) for position, event in enumerate(events)],
    )
    return Head(head.ledger, number, at, chain)


def record(
    db: sqlite3.Connection, head: Head, charge: Charge, cost: Mapping[Unit, Amount], at: int
) -> Head:
    """Write an entry and all that follows from it; return the new head."""
    head = append(db, head, charge, at)
    for unit, amount in cost.items():
        rows.add_to_total(db, (str(charge.run_id), charge.data_id, unit.value), amount)
        life = rows.add_to_total(db, ("", charge.data_id, unit.value), amount)
        rows.write_course(db, charge.data_id, unit.value, at, head.entries, life)
    rows.write_head(db, head)
    return head


def find(db: sqlite3.Connection, head: Head, charge: Charge) -> Entry | None:
    """Return the entry of the same data, run and message, or None.

    That it is the same is compared once more: a damaged index leads to another entry, whose
    report must not go out under this name.
    """
    row = db.execute(
        "SELECT id FROM entry WHERE data_id = ? AND run_id = ? AND message_id = ?",
        (charge.data_id, str(charge.run_id), charge.message_id),
    ).fetchone()
    if row is None:
        return None
    entry = next(read(db, head, row[0], row[0]))
    asked = (charge.data_id, charge.run_id, charge.message_id)
    if (entry.data_id, entry.run_id, entry.message_id) != asked:
        raise DamageError(f"the index of messages leads to entry {row[0]}, which is another")
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
        events: dict[int, list[tuple[Any, ...]]] = {number: [] for number in range(*between)}
        query = f"{_EVENTS} WHERE entry >= ? AND entry < ? ORDER BY entry, position"
        for number, *event in db.execute(query, between).fetchall():
            events.setdefault(number, []).append(tuple(event))
        if [row[0] for row in page] != list(events):
            raise DamageError(f"of the entries {start} to {stop - 1} some are missing")
        for row in page:
            number, chain = row[0], row[8]
            if _chain(before, row[:8], events[number]) != chain:
                raise DamageError(f"entry {number} is not what was written")
            before = chain
            yield _entry(row, events[number])


def _entry(row: tuple[Any, ...], events: list[tuple[Any, ...]]) -> Entry:
    number, at, data_id, run_id, message_id, message_type, fingerprint, parameters = row[:8]
    exact = tuple(ExactEvent(e[0], e[1], Amount(e[2], e[3]), e[4]) for e in events)
    return Entry(
        number,
        at,
        data_id,
        int(run_id),
        message_id,
        message_type,
        fingerprint,
        parameters,
        exact,
        row[8],
        bool(row[9]),
    )
