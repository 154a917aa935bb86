"""The ledger's file: tables, rights, opening, and errors (docs/ledger.md).

The journal is a rollback journal: a write-ahead log would hold committed rows in a second file.
``PERSIST`` saves two operations on the folder per commit.

SQLite finds the journal of a killed commit by the name of the file. Under a second name half a
commit is read as whole. Who may write to the folder, or one above, can remove the journal or
replace the file. This is checked at every opening, by ``stat`` and by descriptors that open
nothing: closing another descriptor of a SQLite file drops this process's locks on it.
"""

import os
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from flower_ldp.accounting.amounts import Book
from flower_ldp.accounting.ledger import rows
from flower_ldp.accounting.ledger.rows import DamageError, Head
from flower_ldp.errors import LedgerError, error_text
from flower_ldp.safe_files import faults, mine, sync_folder, warn_once, way

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
    "zcdp": """CREATE TABLE zcdp (
    entry INTEGER NOT NULL,
    position INTEGER NOT NULL, -- of the event, in an account whose life is by zCDP
    rho INTEGER NOT NULL,      -- of one release, in units of 1e-12
    delta INTEGER NOT NULL,    -- with which rho may fail, in units of 1e-18
    PRIMARY KEY (entry, position)
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

VERSION = 3
"""``PRAGMA user_version`` of the files that this package makes."""

_WITHOUT_ZCDP = 2
"""An earlier version without its table: accounts go on by sums."""

_BACKUP = (
    "Do not delete it and start afresh: that would forget what was spent. Stop the client, keep "
    "the file, restore the newest backup and add what was released since (docs/ledger.md)"
)
_RIGHTS = (
    "File and folder must be writable by this user: SQLite keeps a journal there. What a killed "
    "process left in it is undone by the next charge"
)
#: What SQLite's messages mean for a person. By text, in lower case.
_HINTS = {
    "closed database": "it was closed. Open it again",
    "locked": "another process holds it. If none should, look for one that hangs; try again",
    "disk is full": "the disk is full. Make room; nothing was released",
    "disk i/o error": "it cannot be read or written. Check disk and quota; nothing was released",
    "readonly": f"it cannot be written. {_RIGHTS}",
    "unable to open": f"it cannot be opened. {_RIGHTS}",
    "not a database": f"it is not a ledger, or its beginning is damaged. {_BACKUP}",
}

# A descriptor that opens nothing, where there is one.
_PATH_ONLY = getattr(os, "O_PATH", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def damaged(path: Path, what: object) -> LedgerError:
    """Return the error for content that the ledger did not write."""
    return LedgerError(f"ledger {path} is damaged: {what}. {_BACKUP}")


@contextmanager
def understandable(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the system into :class:`LedgerError`."""
    try:
        yield
    except DamageError as error:
        raise damaged(path, error) from error
    except sqlite3.Error as error:
        hint = next((hint for part, hint in _HINTS.items() if part in str(error).lower()), None)
        if hint is None:
            raise damaged(path, error) from error
        raise LedgerError(f"ledger {path} cannot be used: {hint} [{error}]") from error
    except UnicodeDecodeError as error:
        # Python's: SQLite quotes a damaged table definition in its message.
        raise damaged(path, "its table definitions are not text") from error
    except OSError as error:
        raise LedgerError(f"ledger {path} cannot be used: {error_text(error)}") from error


def identity(path: Path) -> tuple[int, int]:
    """Return the file's identity, which a replacement does not have."""
    status = path.stat()
    return status.st_dev, status.st_ino


def check_file(path: Path, *, read_only: bool, durable: bool = True) -> None:
    """Refuse a file that is not regular, is empty, has two names, or that others can change."""
    # By stat and never by opening: closing any descriptor of a SQLite file drops the locks
    # that this process holds on it through other connections.
    name, status = f"ledger {path}", path.stat()
    if status.st_nlink > 1:
        _drop_names_of_a_creator(path, status)
        status = path.stat()  # its creator may have dropped them meanwhile
    check_owned(status, name, anyone=read_only)
    if status.st_size == 0:
        raise damaged(path, "it is empty")
    check_mount(path, name)
    check_beside(path, name, owned=not read_only)
    if read_only:
        return
    check_folder(path.parent, name, lenient=not durable)
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        # SQLite would open it for reading and fail at the first release.
        raise LedgerError(f"ledger {path} cannot be used: {_HINTS['readonly']}")


def _drop_names_of_a_creator(path: Path, status: os.stat_result) -> None:
    """Remove other names of a new, complete file that its builder has left."""
    with os.scandir(path.parent) as found:
        for one in found:
            if one.name.startswith(f".{path.name}.") and one.name.endswith(".new"):
                with suppress(FileNotFoundError, PermissionError):
                    other = one.stat(follow_symlinks=False)
                    if os.path.samestat(other, status):
                        os.unlink(one.path)


def create(path: Path, *, durable: bool = True) -> None:
    """Make a new ledger under its name, complete or not at all.

    It is built under another name with mode 0600 and then linked, so that two processes which
    create it at once get the same one.
    """
    check_folder(path.parent, f"ledger {path}", lenient=not durable)
    if os.path.lexists(path.with_name(path.name + "-journal")):
        why = "is missing but its journal is there: it was moved or deleted"
        raise LedgerError(f"ledger {path} {why}. {_BACKUP}")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    try:
        os.close(handle)
        os.chmod(name, 0o600)  # a umask may have taken even the owner's rights
        with closing(connect(Path(name), timeout=0.0)) as db:
            db.execute("PRAGMA journal_mode = DELETE")  # no journal stays under this name
            db.execute("BEGIN IMMEDIATE")
            for statement in SCHEMA.values():
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {VERSION}")
            rows.write_head(db, Head.empty(os.urandom(16).hex()))
            rows.write_total(db, rows.FIRST, None, Book())
            rows.write_clock(db, 0, 0)
            db.execute("COMMIT")
        try:
            os.link(name, path)
        except FileExistsError:
            return  # another process was faster: its ledger is as good
        sync_folder(path.parent)
    finally:
        with suppress(FileNotFoundError):  # another process may have, when it opened the ledger
            os.unlink(name)


def connect(
    path: Path, *, timeout: float, read_only: bool = False, durable: bool = True
) -> sqlite3.Connection:
    """Return a connection that trusts nothing in the file and, if durable, commits to disk."""
    uri = f"file:{quote(os.fsencode(path))}?mode={'ro' if read_only else 'rw'}"
    db = sqlite3.connect(
        uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False
    )
    try:
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA cell_size_check = ON")
        db.execute("PRAGMA mmap_size = 0")
        if not read_only:
            # Without it a commit survives the death of the process, but not a power loss.
            db.execute(f"PRAGMA synchronous = {'EXTRA' if durable else 'OFF'}")
            db.execute("PRAGMA fullfsync = ON")  # macOS: its fsync does not reach the disk
            mode = db.execute("PRAGMA journal_mode = PERSIST").fetchone()[0]
            if mode.upper() != "PERSIST":
                raise DamageError(f"its journal mode is {mode} and cannot be changed")
            db.execute("PRAGMA journal_size_limit = 1048576")
    except BaseException:
        db.close()
        raise
    return db


def undo(path: Path) -> None:
    """Undo a transaction that a killed process never committed; until then SQLite reads nothing."""
    with understandable(path):
        check_file(path, read_only=False)
        with closing(connect(path, timeout=30.0)) as db:
            pragma_number(db, "user_version")


def check_schema(path: Path, db: sqlite3.Connection) -> None:
    """Refuse a file that is no ledger, of another version, or with foreign tables.

    Foreign triggers and views too: a trigger could change what a charge writes.
    """
    application = pragma_number(db, "application_id")
    version = pragma_number(db, "user_version")
    if application != APPLICATION_ID or version < 1:
        raise LedgerError(
            f"{path} is a SQLite database but not a ledger, or its header is damaged: name "
            f"another file. If it was a ledger: {_BACKUP}"
        )
    if version not in (_WITHOUT_ZCDP, VERSION):
        reads = f"versions {_WITHOUT_ZCDP} and {VERSION}: install the one that wrote it"
        raise LedgerError(f"ledger {path} has version {version}, and this flower-ldp reads {reads}")
    expected = {name: sql for name, sql in SCHEMA.items() if version == VERSION or name != "zcdp"}
    found = db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    names = sorted({str(name) for name, _ in dict(found.fetchall()).items() ^ expected.items()})
    if names:
        raise DamageError(f"its tables are not those of version {version} ({', '.join(names)})")


def pragma_number(connection: sqlite3.Connection, name: str) -> int:
    """Return the value of a pragma that is a number."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def check_owned(status: os.stat_result, name: str, *, anyone: bool = False) -> None:
    """Refuse a file that is not regular, not this user's alone, or has another name.

    ``anyone`` accepts any owner and mode.
    """
    if not stat.S_ISREG(status.st_mode):
        raise LedgerError(f"{name} is not a regular file: name a file")
    for _, fault in () if anyone else faults(name, status, mine()[-1:]):
        raise LedgerError(f"{fault}. Find out who changed it (flower-ldp ledger verify)")
    if sys.platform != "win32" and status.st_nlink > 1:
        raise LedgerError(
            f"{name} has {status.st_nlink} names (hard links): a crash under one of them is not "
            "undone under the others. If another has a file NAME-journal beside it, move the "
            "ledger there first; then remove the others (find -samefile)"
        )


def check_folder(folder: Path, name: str, *, lenient: bool = False) -> None:
    """Refuse a folder that others may write to, or that lies in one; LedgerError says what to do.

    ``lenient``, for simulations, checks this folder alone and warns once.
    """
    if not lenient:
        check_way(folder, name)
        return
    for by, fault in faults(f"folder {folder}", folder.stat()):
        if by == "owner":
            raise LedgerError(_replaceable(name, fault))
        warn_once(_replaceable(name, fault))


def check_way(path: Path, name: str) -> None:
    """Refuse a path on which somebody else can replace a file, link or folder.

    Every folder on the way, links and their targets included, must belong to root or this user, and
    nobody else may write to it unless it is sticky. Then the checked path is the one opened
    afterwards. The file itself is not checked.
    """
    if sys.platform == "win32":
        return
    # Of what is not there says who opens it.
    gone = suppress(FileNotFoundError, NotADirectoryError)
    with closing(way(path)) as steps, gone:
        for step in steps:
            if not stat.S_ISREG(step.status.st_mode):
                for _, fault in faults(str(step), step.status):
                    raise LedgerError(_replaceable(name, fault))


def _replaceable(name: str, fault: str) -> str:
    return f"{name} may be replaced: {fault}"


def check_mount(path: Path, name: str) -> None:
    """Refuse a file that is mounted by itself: elsewhere it has another name."""
    if sys.platform == "win32":
        return
    one: object = _mount(path)
    other: object = _mount(path.parent)
    if one is None:  # devices tell less: a union file system may give each file one of its own
        one, other = path.stat().st_dev, path.parent.stat().st_dev
    if one != other:
        why = "its journal lies elsewhere than a crash would leave it"
        raise LedgerError(f"{name} is mounted by itself: {why}. Mount the folder that it lies in")


def _mount(path: Path) -> bytes | None:
    if sys.platform != "linux":
        return None
    handle = os.open(path, _PATH_ONLY)
    try:
        with open(f"/proc/self/fdinfo/{handle}", "rb") as lines:
            return next((line for line in lines if line.startswith(b"mnt_id:")), None)
    except FileNotFoundError:  # no /proc
        return None
    finally:
        os.close(handle)


def check_beside(path: Path, name: str, *, owned: bool) -> None:
    """Refuse a journal that is not this user's own, if it must be, and a write-ahead log."""
    journal = path.with_name(f"{path.name}-journal")
    if owned:
        with suppress(FileNotFoundError):
            check_owned(journal.lstat(), f"{name}: its journal {journal.name}")
    for end in ("-wal", "-shm"):
        log = path.with_name(path.name + end)
        if os.path.lexists(log):
            raise LedgerError(
                f"{name} has {log.name} beside it, which no ledger has: another program opened "
                "the file. Find out which, before anything is removed"
            )
