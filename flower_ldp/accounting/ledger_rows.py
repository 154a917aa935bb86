"""Rows of the ledger, each with a digest: what is read is what was written, or an error.

Three devices make damage show instead of making a sum smaller:

* **Chain.** Entry n holds SHA-256 over its fields, its events and entry n-1's chain value;
  the head holds the last one. An entry that is changed, lost or swapped breaks the chain.
* **Successors.** Each row of ``total`` names the row after it in key order. That a key is
  absent, and its sum therefore zero, is believed only if the row before it says so. A lost
  row is then an error and not a fresh budget.
* **Digests** over ``head``, ``total``, ``course`` and ``report`` rows, checked at each read.

They are not keyed: they find accidents, not an owner who recomputes them.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from flower_ldp.accounting.amounts import Amount

Key = tuple[str, str, str]
"""Key of a total: run ("" for all), data, unit."""

FIRST: Key = ("", "", "")
"""Key of the row that stands before all totals: no data has an empty name."""


class DamageError(Exception):
    """A row is not what the ledger wrote; the text says which."""


def _tagged(value: object) -> dict[str, str]:
    if not isinstance(value, bytes):
        raise DamageError(f"a field holds a {type(value).__name__}")
    return {"bytes": value.hex()}


def digest(*fields: Any, tail: bytes = b"") -> bytes:
    """Return SHA-256 over fields in canonical JSON, followed by bytes as they are."""
    text = json.dumps(fields, separators=(",", ":"), default=_tagged)
    return hashlib.sha256(text.encode("ascii") + b"\n" + tail).digest()


@dataclass(frozen=True)
class Head:
    """The end of the chain: which ledger, how many entries, the last time and value."""

    ledger: str
    entries: int
    latest: int
    chain: bytes

    @classmethod
    def empty(cls, ledger: str) -> Head:
        """Return the head of a new ledger."""
        return cls(ledger, 0, 0, digest("ledger", ledger))

    def digest(self) -> bytes:
        """Return the digest that is stored beside it."""
        return digest("head", self.ledger, self.entries, self.latest, self.chain)


def insert_empty(db: sqlite3.Connection, ledger: str) -> None:
    """Write the rows that a new ledger starts with."""
    head = Head.empty(ledger)
    row = (head.ledger, head.entries, head.latest, head.chain, head.digest())
    db.execute("INSERT INTO head VALUES (1, ?, ?, ?, ?, ?)", row)
    write_total(db, FIRST, None, Amount())


def read_head(db: sqlite3.Connection) -> Head:
    """Return the head, after checking it against the last entry."""
    row = db.execute("SELECT ledger, entries, latest, chain, digest FROM head").fetchone()
    if row is None:
        raise DamageError("the head is missing")
    head = Head(*row[:4])
    if head.digest() != row[4]:
        raise DamageError("the head is not what was written")
    last = db.execute("SELECT id FROM entry ORDER BY id DESC LIMIT 1").fetchone()
    if (0 if last is None else last[0]) != head.entries or chain_at(db, head) != head.chain:
        raise DamageError("the last entry is not the one that the head names")
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
    row = (head.entries, head.latest, head.chain, head.digest())
    db.execute("UPDATE head SET entries = ?, latest = ?, chain = ?, digest = ?", row)


def _total_digest(key: Key, successor: str | None, amount: Amount) -> bytes:
    return digest("total", *key, successor, amount.epsilon, amount.delta)


def write_total(db: sqlite3.Connection, key: Key, successor: str | None, amount: Amount) -> None:
    """Insert or replace one row of the totals."""
    sealed = _total_digest(key, successor, amount)
    row = (*key, successor, amount.epsilon, amount.delta, sealed)
    db.execute("INSERT OR REPLACE INTO total VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def _at_or_before(db: sqlite3.Connection, key: Key) -> tuple[Key, str | None, Amount]:
    """Return the last row of the totals whose key is at most ``key``."""
    row = db.execute(
        "SELECT run_id, data_id, unit, successor, epsilon, delta, digest FROM total"
        " WHERE (run_id, data_id, unit) <= (?, ?, ?)"
        " ORDER BY run_id DESC, data_id DESC, unit DESC LIMIT 1",
        key,
    ).fetchone()
    if row is None:
        raise DamageError("the first row of the totals is missing")
    found: Key = (row[0], row[1], row[2])
    if digest("total", *row[:6]) != row[6]:
        raise DamageError(f"the total of {found} is not what was written")
    if found != key and row[3] is not None and tuple(json.loads(row[3])) <= key:
        raise DamageError(f"the row after {found} in the totals is missing")
    return found, row[3], Amount(row[4], row[5])


def read_total(db: sqlite3.Connection, key: Key) -> Amount:
    """Return a running sum; zero only if it is certain that there is none."""
    found, _, amount = _at_or_before(db, key)
    return amount if found == key else Amount()


def add_to_total(db: sqlite3.Connection, key: Key, cost: Amount) -> Amount:
    """Raise a running sum and return it."""
    found, successor, amount = _at_or_before(db, key)
    if found != key:
        write_total(db, found, json.dumps(key), amount)
        amount = Amount()
    write_total(db, key, successor, amount + cost)
    return amount + cost


def successor_of(db: sqlite3.Connection, key: Key) -> Key | None:
    """Return the key after ``key`` in the totals, whether or not ``key`` is there."""
    _, successor, _ = _at_or_before(db, key)
    if successor is None:
        return None
    run_id, data_id, unit = json.loads(successor)
    return run_id, data_id, unit


_COURSE = (
    "SELECT data_id, unit, at, entry, epsilon, delta, digest FROM course"
    " WHERE data_id = ? AND unit = ?"
)


def read_course(
    db: sqlite3.Connection, data_id: str, unit: str, before: int | None = None
) -> Amount:
    """Return the sum over all runs as it stood just before a time, by default now.

    A row lost from the course makes this smaller, hence what was spent *since* larger: the
    error is on the safe side.
    """
    row = db.execute(
        f"{_COURSE} AND at < ? ORDER BY at DESC, entry DESC LIMIT 1",
        (data_id, unit, 2**63 - 1 if before is None else before),
    ).fetchone()
    return Amount() if row is None else _point(row)


def point_of_course(
    db: sqlite3.Connection, data_id: str, unit: str, at: int, entry: int
) -> Amount | None:
    """Return the sum over all runs just after an entry, or None if it is not there."""
    row = db.execute(f"{_COURSE} AND at = ? AND entry = ?", (data_id, unit, at, entry)).fetchone()
    return None if row is None else _point(row)


def _point(row: tuple[Any, ...]) -> Amount:
    if digest("course", *row[:6]) != row[6]:
        raise DamageError(f"the course at entry {row[3]} is not what was written")
    return Amount(row[4], row[5])


def write_course(
    db: sqlite3.Connection, data_id: str, unit: str, at: int, entry: int, amount: Amount
) -> None:
    """Add the newest sum to the course."""
    fields = (data_id, unit, at, entry, amount.epsilon, amount.delta)
    row = (*fields, digest("course", *fields))
    db.execute("INSERT INTO course VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def report_digest(entry: int, at: int, chain: bytes, report: bytes) -> bytes:
    """Return the digest of a report, which ties it to its entry."""
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
