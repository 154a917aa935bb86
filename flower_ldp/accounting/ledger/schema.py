"""The ledger's tables, their versions, and the check that a file has exactly these.

``entry``, ``event``, ``waiver`` and ``releases`` hold what was charged, ``report`` what was sealed;
``total`` and ``course`` hold running sums, so that nothing is ever added up over all entries;
``head`` has one row that ends the chain of entries, ``clock`` one that sets the ledger's time.
:mod:`.rows` says what the digests cover.
"""

from __future__ import annotations

import sqlite3

APPLICATION_ID = 0x464C4450
"""``PRAGMA application_id`` of a ledger: "FLDP" in ASCII."""

SCHEMA: dict[str, str] = {
    "head": """CREATE TABLE head (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    ledger TEXT NOT NULL,     -- random name of this ledger, set once
    entries INTEGER NOT NULL, -- number of entries
    latest INTEGER NOT NULL,  -- time of the last one, microseconds since 1970 (UTC)
    chain BLOB NOT NULL,      -- chain value of the last entry
    digest BLOB NOT NULL
)""",
    "entry": """CREATE TABLE entry (
    id INTEGER PRIMARY KEY,   -- 1, 2, 3, ... without gaps
    at INTEGER NOT NULL,      -- microseconds since 1970 (UTC), never decreasing
    data_id TEXT NOT NULL,    -- the operator's name for the data
    run_id TEXT NOT NULL,     -- decimal: Flower's are unsigned 64-bit numbers
    message_id TEXT NOT NULL,
    message_type TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    parameters TEXT NOT NULL, -- JSON
    chain BLOB NOT NULL,      -- SHA-256 over this row, its events and the chain before it
    UNIQUE (data_id, run_id, message_id)
)""",
    "event": """CREATE TABLE event (
    entry INTEGER NOT NULL,
    position INTEGER NOT NULL,
    mechanism TEXT NOT NULL,
    unit TEXT NOT NULL,
    epsilon INTEGER NOT NULL, -- of one release, in units of 1e-12
    delta INTEGER NOT NULL,   -- of one release, in units of 1e-18
    count INTEGER NOT NULL,   -- number of releases
    PRIMARY KEY (entry, position)
) WITHOUT ROWID""",
    "report": """CREATE TABLE report (
    entry INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    report BLOB NOT NULL,
    digest BLOB NOT NULL
)""",
    "waiver": """CREATE TABLE waiver (
    entry INTEGER NOT NULL,
    position INTEGER NOT NULL, -- of the event
    unit TEXT NOT NULL,        -- for which the owner declared it post-processing
    PRIMARY KEY (entry, position, unit)
) WITHOUT ROWID""",
    "releases": """CREATE TABLE releases (
    entry INTEGER PRIMARY KEY, -- only of entries that pay for more than one, or for none
    number INTEGER NOT NULL
)""",
    "clock": """CREATE TABLE clock (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    set_at INTEGER NOT NULL, -- what the clock showed when the owner set the ledger's time
    set_to INTEGER NOT NULL, -- to what; microseconds since 1970, both 0 if that was never done
    digest BLOB NOT NULL
)""",
    "total": """CREATE TABLE total (
    run_id TEXT NOT NULL,     -- '' for the sums over all runs; 'counts' for what was not charged
    data_id TEXT NOT NULL,    -- an account; with a tab: sums over parts of its data
    successor TEXT,           -- key of the next row, so that a missing row is noticed
    book TEXT NOT NULL,       -- JSON: epsilon (1e-12) and delta (1e-18) by line
    digest BLOB NOT NULL,
    PRIMARY KEY (run_id, data_id)
) WITHOUT ROWID""",
    "course": """CREATE TABLE course (
    data_id TEXT NOT NULL,
    at INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    book TEXT NOT NULL,       -- JSON: sums over all runs up to and with this entry
    digest BLOB NOT NULL,
    PRIMARY KEY (data_id, at, entry)
) WITHOUT ROWID""",
}

VERSION = 2
"""``PRAGMA user_version`` of the files that this package writes."""


def create(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty database, inside the caller's transaction."""
    for statement in SCHEMA.values():
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def pragma_number(connection: sqlite3.Connection, name: str) -> int:
    """Return the value of a pragma that is a number."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def complaint(connection: sqlite3.Connection) -> str | None:
    """Return what is wrong with the tables, or None.

    A trigger or a view that somebody added counts as wrong: a trigger could change what a
    charge writes.
    """
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    found = dict(rows.fetchall())
    if found == SCHEMA:
        return None
    names = sorted({str(n) for n, _ in found.items() ^ SCHEMA.items()})
    return f"its tables are not those of a ledger of version {VERSION} ({', '.join(names)})"
