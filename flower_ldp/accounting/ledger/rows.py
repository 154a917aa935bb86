"""Rows of the ledger with digests: a read returns what was written, or an error.

* **Chain.** Entry n holds SHA-256 over its fields, its events and entry n-1's value; the head holds
  the last one. A changed, lost or swapped entry breaks it.
* **Successors.** Each row of ``total`` names the next one in key order. A sum is zero only if the
  row before says that the key is absent, so a lost row is an error and not a fresh budget.
* **Digests** of ``head``, ``total``, ``course`` and ``report`` rows are checked at each read.

They have no key: they find accidents, not an owner who recomputes them.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any

from flower_ldp.accounting.amounts import Book
from flower_ldp.accounting.ledger.charges import Mark

Row = tuple[Any, ...]
"""Fields of a row."""

Key = tuple[str, str]
"""Key of a total: run ("" for all), account or sums over parts."""

FIRST: Key = ("", "")
"""Key of the row that stands before all totals: no data has an empty name."""

LAST: Key = (chr(sys.maxunicode), "")
"""Above the keys of all totals."""


class DamageError(Exception):
    """A row is not what the ledger wrote."""


def _tagged(value: object) -> dict[str, str]:
    if not isinstance(value, bytes):
        raise DamageError(f"a field holds a {type(value).__name__}")
    return {"bytes": value.hex()}


def digest(*fields: Any, tail: bytes = b"") -> bytes:
    """Return SHA-256 over fields in canonical JSON, and bytes as they are."""
    text = json.dumps(fields, separators=(",", ":"), default=_tagged)
    return hashlib.sha256(text.encode("ascii") + b"\n" + tail).digest()


@dataclass(frozen=True)
class Head:
    """The end of the chain."""

    ledger: str
    entries: int
    latest: int
    chain: bytes

    @classmethod
    def empty(cls, ledger: str) -> Head:
        """Return the head of a new ledger."""
        return cls(ledger, 0, 0, digest("ledger", ledger))

    @property
    def mark(self) -> Mark:
        """The head as a mark."""
        return Mark(self.ledger, self.entries, self.chain.hex())


def put(
    db: sqlite3.Connection, table: str, *fields: Any, before: tuple[int, ...] = (), new: bool = True
) -> None:
    """Write a row that ends with the digest of its fields.

    ``before`` is in no digest; ``new=False`` replaces a row with the same key.
    """
    row = (*before, *fields, digest(table, *fields))
    verb, places = "INSERT" if new else "INSERT OR REPLACE", ", ".join("?" * len(row))
    db.execute(f"{verb} INTO {table} VALUES ({places})", row)


def checked(table: str, row: Row, name: str) -> Row:
    """Return a row's fields, after a check of its digest."""
    if digest(table, *row[:-1]) != row[-1]:
        raise DamageError(f"{name} is not what was written")
    return row[:-1]


def keeps_zcdp(db: sqlite3.Connection) -> bool:
    """Return whether the file has a table for costs by zCDP; those of version 2 have none."""
    return int(db.execute("PRAGMA user_version").fetchone()[0]) > 2


def read_head(db: sqlite3.Connection) -> Head:
    """Return the head, if it is the last entry's and no row belongs to a later entry."""
    row = db.execute("SELECT ledger, entries, latest, chain, digest FROM head").fetchone()
    if row is None:
        raise DamageError("the head is missing")
    head = Head(*checked("head", row, "the head"))
    last = db.execute("SELECT id FROM entry ORDER BY id DESC LIMIT 1").fetchone()
    if (0 if last is None else last[0]) != head.entries or chain_at(db, head) != head.chain:
        raise DamageError("the last entry is not the one that the head names")
    for table in ("report", "event", "waiver", "releases", *(["zcdp"] * keeps_zcdp(db))):
        # SQLite compares, to which a text that damage put there is larger than any number.
        query = f"SELECT entry FROM {table} WHERE entry > ? ORDER BY entry DESC LIMIT 1"
        beyond = db.execute(query, (head.entries,)).fetchone()
        if beyond is not None:
            raise DamageError(f"there is a {table} of entry {beyond[0]}, which is not there")
    return head


def chain_at(db: sqlite3.Connection, head: Head, entry: int | None = None) -> bytes:
    """Return the chain value after an entry, by default the last; entry 0 is the start."""
    number = head.entries if entry is None else entry
    if number == 0:
        return Head.empty(head.ledger).chain
    row = db.execute("SELECT chain FROM entry WHERE id = ?", (number,)).fetchone()
    if row is None:
        raise DamageError(f"entry {number} is missing")
    if not isinstance(row[0], bytes):
        raise DamageError(f"entry {number} has no chain value")
    return row[0]


def write_head(db: sqlite3.Connection, head: Head) -> None:
    """Replace the head."""
    put(db, "head", *astuple(head), before=(1,), new=False)


def write_clock(db: sqlite3.Connection, set_at: int, set_to: int) -> None:
    """Set the ledger's time."""
    put(db, "clock", set_at, set_to, before=(1,), new=False)


def read_clock(db: sqlite3.Connection) -> Row:
    """Return the clock's and the ledger's time when the owner set it."""
    row = db.execute("SELECT set_at, set_to, digest FROM clock").fetchone()
    if row is None:
        raise DamageError("how its owner set its time is missing")
    return checked("clock", row, "how its owner set its time")


def write_total(db: sqlite3.Connection, key: Key, successor: str | None, book: Book) -> None:
    """Insert or replace one row of the totals."""
    put(db, "total", *key, successor, book.text(), new=False)


_TOTAL = "SELECT run_id, data_id, successor, book, digest FROM total"


def _read_row(row: Row) -> tuple[Key, Key | None, Book]:
    key = (row[0], row[1])
    _, _, successor, book = checked("total", row, f"the total of {key}")
    return key, None if successor is None else tuple(json.loads(successor)), Book.parse(book)


def _at_or_before(db: sqlite3.Connection, key: Key) -> tuple[Key, Key | None, Book]:
    """Return the last row of the totals whose key is at most ``key``."""
    row = db.execute(
        f"{_TOTAL} WHERE (run_id, data_id) <= (?, ?) ORDER BY run_id DESC, data_id DESC LIMIT 1",
        key,
    ).fetchone()
    if row is None:
        raise DamageError("the first row of the totals is missing")
    found, successor, book = _read_row(row)
    if found != key and successor is not None and successor <= key:
        raise DamageError(f"the row after {found} in the totals is missing")
    return found, successor, book


def read_total(db: sqlite3.Connection, key: Key) -> Book:
    """Return running sums; zero only if certainly there are none."""
    found, _, book = _at_or_before(db, key)
    return book if found == key else Book()


def replace_total(db: sqlite3.Connection, key: Key, book: Book) -> None:
    """Set running sums, and link a new row to the one before it."""
    found, successor, before = _at_or_before(db, key)
    if found != key:
        write_total(db, found, json.dumps(key), before)
    write_total(db, key, None if successor is None else json.dumps(successor), book)


def totals_between(db: sqlite3.Connection, low: Key, high: Key) -> Iterator[tuple[Key, Book]]:
    """Yield the rows with ``low < key < high``; a lost row is an error."""
    before, expected, _ = _at_or_before(db, low)
    query = f"{_TOTAL} WHERE (run_id, data_id) > (?, ?) AND (run_id, data_id) < (?, ?)"
    for row in db.execute(f"{query} ORDER BY run_id, data_id", (*low, *high)):
        key, successor, book = _read_row(row)
        if key != expected:
            raise DamageError(f"the totals after {before} do not go on with {expected}")
        yield key, book
        before, expected = key, successor
    if expected is not None and expected < high:
        raise DamageError(f"the row after {before} in the totals is missing")


def read_course(
    db: sqlite3.Connection, data_id: str, before: tuple[int, int] = (2**63 - 1, 0)
) -> Book:
    """Return the sums over all runs just before a time and entry, by default now.

    A lost row makes these smaller, hence the spending *since* larger: the safe side.
    """
    query = (
        "SELECT data_id, at, entry, book, digest FROM course"
        " WHERE data_id = ? AND (at, entry) < (?, ?) ORDER BY at DESC, entry DESC LIMIT 1"
    )
    row = db.execute(query, (data_id, *before)).fetchone()
    if row is None:
        return Book()
    return Book.parse(checked("course", row, f"the course at entry {row[2]}")[3])


def point_of_course(db: sqlite3.Connection, data_id: str, at: int, entry: int) -> Book | None:
    """Return the sums over all runs just after an entry, or None."""
    query = "SELECT data_id, at, entry, book, digest FROM course"
    here = (data_id, at, entry)
    row = db.execute(f"{query} WHERE data_id = ? AND at = ? AND entry = ?", here).fetchone()
    return None if row is None else Book.parse(checked("course", row, f"{here}")[3])


def report_digest(entry: int, at: int, chain: bytes, report: bytes) -> bytes:
    """Return the digest that ties a report to its entry."""
    return digest("report", entry, at, chain, tail=report)


def read_report(db: sqlite3.Connection, entry: int, chain: bytes) -> bytes | None:
    """Return the report that was sealed for an entry, or None."""
    row = db.execute("SELECT at, report, digest FROM report WHERE entry = ?", (entry,)).fetchone()
    if row is None:
        return None
    report = row[1]
    if not isinstance(report, bytes) or report_digest(entry, row[0], chain, report) != row[2]:
        raise DamageError(f"the report of entry {entry} is not what was written")
    return report


def write_report(db: sqlite3.Connection, entry: int, at: int, chain: bytes, report: bytes) -> None:
    """Store the report of an entry."""
    row = (entry, at, report, report_digest(entry, at, chain, report))
    db.execute("INSERT INTO report VALUES (?, ?, ?, ?)", row)
