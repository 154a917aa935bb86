"""Version 1 of the tables, and the way from it to version 2: once, in one transaction.

Version 1 kept a sum for each unit by itself, as if units were not nested. Its entries stay as
they are, with their chain; all sums are made anew from them, in the order in which they were
charged. What limits count is then at least what it was, and may be over a limit: such a ledger
refuses further releases and says by how much.

Until the transaction is committed the file is of version 1, whatever happens. An older package
refuses a file of version 2 by its number.
"""

from __future__ import annotations

import json
import logging
import sqlite3

from flower_ldp.accounting.books import COUNTED, Book, Place
from flower_ldp.accounting.ledger import entries, rows, schema, time
from flower_ldp.accounting.ledger.rows import FIRST, DamageError
from flower_ldp.accounting.ledger.sums import raised
from flower_ldp.accounting.ledger.types import Entry
from flower_ldp.privacy import Unit

_log = logging.getLogger("flower_ldp")

SCHEMA_1: dict[str, str] = {
    **{name: schema.SCHEMA[name] for name in ("head", "entry", "event", "report")},
    "total": """CREATE TABLE total (
    run_id TEXT NOT NULL,     -- '' for the sum over all runs
    data_id TEXT NOT NULL,
    unit TEXT NOT NULL,
    successor TEXT,           -- key of the next row, so that a missing row is noticed
    epsilon INTEGER NOT NULL,
    delta INTEGER NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (run_id, data_id, unit)
) WITHOUT ROWID""",
    "course": """CREATE TABLE course (
    data_id TEXT NOT NULL,
    unit TEXT NOT NULL,
    at INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    epsilon INTEGER NOT NULL, -- sum over all runs up to and with this entry
    delta INTEGER NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (data_id, unit, at, entry)
) WITHOUT ROWID""",
}

Sums = dict[tuple[str, str, str], tuple[int, int]]


def migrate(db: sqlite3.Connection) -> None:
    """Bring a file of version 1 to version 2, inside the caller's transaction.

    Raises
    ------
    DamageError
        If its tables are not those of version 1, its chain is broken, or its sums are not
        those of its entries. The caller's transaction must then be undone.
    """
    if not schema.outdated(db):  # another process was first
        return
    wrong = schema.complaint(db, SCHEMA_1, 1)
    if wrong is not None:
        raise DamageError(wrong)
    head = rows.read_head(db)
    old: Sums = {
        (run, data_id, unit): (epsilon, delta)
        for run, data_id, unit, epsilon, delta in db.execute(
            "SELECT run_id, data_id, unit, epsilon, delta FROM total WHERE data_id != ''"
        )
    }
    for table in ("total", "course"):
        db.execute(f"DROP TABLE {table}")
    for table in ("total", "course", "waiver", "releases", "clock"):
        db.execute(schema.SCHEMA[table])
    time.write(db)
    sums: dict[str, dict[str, Book]] = {"": {}}
    again: Sums = {}
    for entry in entries.read(db, head, 1, head.entries):
        _add_by_unit(again, entry)
        for name, book in add(sums, entry).items():
            rows.write_course(db, name, entry.at, entry.number, book)
    if again != old:
        raise DamageError("its sums are not those of its entries")
    _write_totals(db, sums)
    db.execute(f"PRAGMA user_version = {schema.VERSION}")
    _tell(old, sums[""])


def add(sums: dict[str, dict[str, Book]], entry: Entry) -> dict[str, Book]:
    """Add an entry to the sums, by run and name; return those over all runs that it raised."""
    place, cost = Place.of(entry.data_id), entry.book
    new: dict[str, Book] = {}
    for run in (str(entry.run_id), ""):
        before = sums.setdefault(run, {})
        new = raised(before, place, cost)
        before.update(new)
    return new


def _add_by_unit(sums: Sums, entry: Entry) -> None:
    """Add an entry to the sums as version 1 kept them."""
    for event in entry.events:
        for run in (str(entry.run_id), ""):
            key = (run, entry.data_id, event.unit)
            epsilon, delta = sums.get(key, (0, 0))
            epsilon += event.cost.epsilon * event.count
            sums[key] = (epsilon, delta + event.cost.delta * event.count)


def _write_totals(db: sqlite3.Connection, sums: dict[str, dict[str, Book]]) -> None:
    books = {(run, name): book for run, named in sums.items() for name, book in named.items()}
    keys = [FIRST, *sorted(books)]
    for key, successor in zip(keys, [*keys[1:], None], strict=True):
        text = None if successor is None else json.dumps(successor)
        rows.write_total(db, key, text, books.get(key, Book()))


def _tell(old: Sums, life: dict[str, Book]) -> None:
    """Log what has been raised, with the figures before and after."""
    _log.warning(
        "the ledger was brought from version 1 to 2: releases about a client now count towards "
        "its examples and labels too, and those about an example towards its label"
    )
    for account in sorted({Place.of(name).account for name in life if name.isprintable()}):
        whole = life.get(account, Book()) + life.get(Place.of(account).all_layouts, Book())
        for unit in Unit:
            now = whole.amount(unit, COUNTED)
            epsilon, delta = old.get(("", account, unit.value), (0, 0))
            if (now.epsilon, now.delta) != (epsilon, delta):
                before = Book({unit.value: (epsilon, delta)}).amount(unit)
                _log.warning("%s per %s: %s was counted, %s is", account, unit.value, before, now)
