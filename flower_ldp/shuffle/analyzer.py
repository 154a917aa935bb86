"""The analyzer: one key of a run at a time, and one answer for each key, kept in SQLite.

An answer is committed before it is returned. A batch that comes again, in any order, gets the
stored answer; another batch for that key is refused. So a server cannot compare the sums of two
batches that differ in one client. A refused batch leaves nothing behind: refusals tell no report.

**Keys** are erased by the commit of their answer, by the run's next key, or after ``days``. Answers
are erased by the last two. So the file has one round of each run, however many there are. Its free
pages are overwritten; copies of the file, the file system and the disk are the operator's matter.

**A restored file** would answer a round twice, or open one that was answered. An anchor, as a
ledger's (:mod:`flower_ldp.accounting.ledger.anchor`), shows it. It moves after each commit, before
an answer leaves.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flower_ldp.accounting.ledger.anchor import Anchor
from flower_ldp.accounting.ledger.charges import Mark, check_run
from flower_ldp.accounting.ledger.file import check_folder
from flower_ldp.errors import LedgerError
from flower_ldp.parameter_bounds import check_in
from flower_ldp.shuffle.batch import (
    OTHER_BATCH,
    UNKNOWN_KEY,
    AnalyzerError,
    AnalyzerRefusal,
    Batch,
    ReportSums,
    SealedProposal,
    add_up,
)
from flower_ldp.shuffle.sealing import RoundKey, new_key, signer_of, suite

_APPLICATION, _VERSION = 0x464C4441, 1  # "FLDA"
_SCHEMA = """
CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 1), name TEXT NOT NULL);
CREATE TABLE event (number INTEGER PRIMARY KEY, chain BLOB NOT NULL);
CREATE TABLE round (
    run_id TEXT PRIMARY KEY, -- decimal: Flower's are unsigned 64-bit numbers
    key BLOB NOT NULL,       -- public and signed
    secret BLOB,             -- NULL once it is answered
    made REAL NOT NULL,      -- seconds since 1970
    digest BLOB,             -- of the batch that was answered, in any order
    answer BLOB
);
"""
_DAY = 86_400.0


class ReportAnalyzer:
    """An analyzer in this process: a context manager.

    In a simulation a strategy takes it as it is. For a federation ``flower-ldp analyzer serve``
    runs it, and the strategy takes an :class:`~flower_ldp.shuffle.Analyzer`.

    Parameters
    ----------
    minimum : int
        The fewest reports of a round that it answers for, by new keys; in [1, 2^32].
    signing : bytes, optional
        Private signing key, 32 bytes; by default a new one.
    state : path-like, optional
        File of keys and answers; by default in memory.
    delta : float
        Of the claims; in (0, 1).
    days : float
        After which a key and its answer are erased; in (0, 3650].
    anchor : Anchor, optional
        On another disk or machine.
    clock : callable
        Returns seconds since 1970.

    Raises
    ------
    AnalyzerError
        If the file cannot be used, was set back, or may be read by others.
    ModuleNotFoundError
        Without the extra ``shuffle``.

    Examples
    --------
    >>> from flower_ldp.mechanisms import Codeword
    >>> from flower_ldp.strategies import CodewordStrategy
    >>> strategy = CodewordStrategy(Codeword(epsilon=4.0), analyzer=ReportAnalyzer(minimum=2_000))
    """

    def __init__(
        self,
        minimum: int,
        *,
        signing: bytes | None = None,
        state: str | os.PathLike[str] | None = None,
        delta: float = 1e-6,
        days: float = 1.0,
        anchor: Anchor | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        suite()
        check_in("[1, 2^32]", "minimum", minimum, int)
        check_in("(0, 1)", "delta", delta)
        check_in("(0, 3650]", "days", days)
        self._signing = os.urandom(32) if signing is None else signing
        self.signer = signer_of(self._signing)
        self.minimum, self.delta = minimum, delta
        self._seconds, self._clock, self._anchor = days * _DAY, clock, anchor
        self._lock = threading.RLock()
        self._db = _opened(None if state is None else Path(state))
        weakref.finalize(self, self._db.close).atexit = False
        self.erase_old()

    def __enter__(self) -> ReportAnalyzer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def new_key(self, run_id: int) -> RoundKey:
        """Return a run's new key, for its next round, and erase that of the round before.

        ValueError for no run's number.
        """
        check_run(run_id)
        key, secret = new_key(self._signing, run_id, self.minimum)
        with self._transaction():
            values = (str(run_id), key.to_bytes(), secret, self._clock())
            self._db.execute("REPLACE INTO round VALUES (?, ?, ?, ?, NULL, NULL)", values)
            self._note(b"key", key.to_bytes())
        return key

    def sums(self, batch: Batch) -> ReportSums:
        """Return the sums of a round's reports, from disk if it was answered before.

        Raises
        ------
        AnalyzerRefusal
            ``"proposal"`` if the batch states none of codewords. ``"key"`` if its key is unknown or
            erased. ``"round"`` if the key was used for another batch. ``"minimum"`` if fewer
            reports are left than the key says.
        """
        asked = SealedProposal.parse(batch.proposal)
        key, digest, run_id = asked.key.to_bytes(), batch.digest(), asked.key.run_id
        self.erase_old()
        with self._transaction():
            found = self._db.execute(
                "SELECT secret, digest, answer FROM round WHERE key = ?", (key,)
            ).fetchone()
            if found is None:
                told = f"this key of run {run_id} is not here: it was erased, or never made"
                raise AnalyzerRefusal(UNKNOWN_KEY, told)
            secret, answered, answer = found
            if answered == digest:
                return ReportSums.from_bytes(answer, asked.entries)
            if answered is not None:
                told = f"this key of run {run_id} was used for another batch"
                raise AnalyzerRefusal(OTHER_BATCH, told)
            sums = add_up(batch, asked, secret, self.delta)
            self._db.execute(
                "UPDATE round SET secret = NULL, digest = ?, answer = ? WHERE key = ?",
                (digest, sums.to_bytes(), key),
            )
            self._note(b"answer", key, digest)
        return sums

    def erase_old(self) -> None:
        """Erase the rounds that are older than the days, in a commit of its own.

        A refusal takes back what its transaction wrote. Each batch does this first; a service does
        it without requests too.
        """
        with self._transaction():
            before = (self._clock() - self._seconds,)
            if self._db.execute("DELETE FROM round WHERE made < ?", before).rowcount:
                self._note(b"erased")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what the body writes, then move the anchor; the body's result leaves after it."""
        try:
            with self._lock:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    self._compare()
                    yield
                    self._db.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")
                    raise
                if self._anchor is not None:
                    self._anchor.move(self._mark())
        except sqlite3.Error as error:
            raise AnalyzerError(f"the analyzer's state cannot be used: {error}") from error
        except LedgerError as error:  # its words are a ledger's
            raise AnalyzerError(
                f"the analyzer's state was set back, or its anchor cannot be used: {error}"
            ) from error

    def _compare(self) -> None:
        if self._anchor is None:
            return
        head = self._mark()
        if head.entries or self._anchor.read() is not None:
            self._anchor.compare(head, self._chain)

    def _mark(self) -> Mark:
        (name,) = self._db.execute("SELECT name FROM head").fetchone()
        number = self._db.execute("SELECT coalesce(max(number), 0) FROM event").fetchone()[0]
        return Mark(name, number, self._chain(number).hex())

    def _chain(self, number: int) -> bytes:
        found = self._db.execute("SELECT chain FROM event WHERE number = ?", (number,)).fetchone()
        return bytes(32) if found is None else bytes(found[0])

    def _note(self, *what: bytes) -> None:
        mark = self._mark()
        chain = hashlib.sha256(bytes.fromhex(mark.chain))
        for one in what:
            chain.update(hashlib.sha256(one).digest())
        values = (mark.entries + 1, chain.digest())
        self._db.execute("INSERT INTO event VALUES (?, ?)", values)


def _opened(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        try:
            check_folder(path.absolute().parent, f"the analyzer's state {path}")
        except LedgerError as error:
            raise AnalyzerError(str(error)) from error
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise AnalyzerError(f"{path} is not a regular file: name a file")
        if sys.platform != "win32" and (found.st_uid != os.geteuid() or found.st_mode & 0o077):
            raise AnalyzerError(f"{path} holds keys and must be this user's alone: chmod 600")
    db = sqlite3.connect(
        ":memory:" if path is None else path, isolation_level=None, check_same_thread=False
    )
    try:
        db.execute("PRAGMA secure_delete = ON")
        db.execute("PRAGMA synchronous = EXTRA")
        db.execute("PRAGMA fullfsync = ON")
        db.execute("BEGIN IMMEDIATE")  # of two processes one makes the tables
        kind = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if (kind, version) == (0, 0) and not db.execute("PRAGMA schema_version").fetchone()[0]:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                db.execute(statement)
            db.execute("INSERT INTO head VALUES (1, ?)", (os.urandom(16).hex(),))
            db.execute(f"PRAGMA application_id = {_APPLICATION}")
            db.execute(f"PRAGMA user_version = {_VERSION}")
        elif (kind, version) != (_APPLICATION, _VERSION):
            raise AnalyzerError(f"{path} is no state of an analyzer, or of another version")
        db.execute("COMMIT")
    except sqlite3.Error as error:
        db.close()
        raise AnalyzerError(f"the analyzer's state {path} cannot be used: {error}") from error
    except BaseException:
        db.close()
        raise
    return db
