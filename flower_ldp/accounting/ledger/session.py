"""One open ledger file: transactions, and the certainty that it is still the same file."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from flower_ldp.accounting.ledger import file, rows
from flower_ldp.accounting.ledger import time as times
from flower_ldp.accounting.ledger.anchor import Anchor
from flower_ldp.accounting.ledger.charges import Mark
from flower_ldp.accounting.ledger.rows import DamageError, Head
from flower_ldp.accounting.ledger.time import Clock
from flower_ldp.errors import LedgerError

READ, WRITE = "BEGIN", "BEGIN IMMEDIATE"


class LedgerFile:
    """A ledger's file, open and checked; the parameters are those of :meth:`.Ledger.open`."""

    def __init__(
        self,
        path: Path,
        read_only: bool,
        timeout: float,
        at_least: Mark | None,
        durable: bool,
        anchor: Anchor | None,
        clock: Callable[[], int],
    ) -> None:
        self._path = path
        self._anchor = anchor
        self._clock = clock
        self._seen = at_least
        self._process = os.getpid()
        self.closed = False
        self._lock = threading.RLock()
        self._check = partial(file.check_file, path, read_only=read_only, durable=durable)
        with file.understandable(path):
            self._check()
            self._file = file.identity(path)
            self._db = file.connect(path, timeout=timeout, read_only=read_only, durable=durable)
            # Who drops a ledger has closed it: from Python 3.13 on a connection warns of it, which
            # would be an error of the user's tests. A child's end closes nothing of its parent's.
            weakref.finalize(self, self._db.close).atexit = False
            try:
                file.check_version(path, self._db)
                # Anchors are asked while no other process moves them.
                with self._begun(WRITE if anchor and not read_only else READ):
                    file.check_tables(self._db)
                    self._compare(self._head())
                if file.identity(path) != self._file:
                    raise LedgerError(f"ledger {path} was replaced while it was opened: try again")
            except BaseException:
                self._db.close()
                raise

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        with self._lock:
            self.closed = True
            self._db.close()

    def look_again(self) -> None:
        """Judge the file as when it was opened: for a ledger that was open for long.

        Raises
        ------
        LedgerError
            If the file cannot be used.
        """
        # SQLite takes what it read for what is there as long as a number in the file is the same,
        # which an older copy comes to have again.
        with self._lock, file.understandable(self._path):
            self._check()
            self._db.execute("PRAGMA shrink_memory")

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[tuple[sqlite3.Connection, Head]]:
        """Run the body in one transaction: on disk at its end, or nothing of it.

        Yields
        ------
        Connection, Head
            The head continues what was seen before.
        """
        with self._begun(begin):
            yield self._db, self._head()

    @contextmanager
    def _begun(self, begin: str) -> Iterator[None]:
        with self._lock, file.understandable(self._path):
            if os.getpid() != self._process:
                raise LedgerError(
                    f"ledger {self._path} was opened by another process: open it again after fork"
                )
            if file.identity(self._path) != self._file:
                raise LedgerError(
                    f"ledger {self._path} was replaced while it was open: restart the client"
                )
            self._db.execute(begin)
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise

    def _head(self) -> Head:
        """Return the head, inside a transaction, if it continues what was seen before."""
        # SQLite reads a last page that was cut off as zeros. Nobody else writes meanwhile.
        pages, size = (file.pragma_number(self._db, n) for n in ("page_count", "page_size"))
        if self._path.stat().st_size < pages * size:
            raise DamageError(f"it was cut off before the end of its {pages} pages")
        head = rows.read_head(self._db)
        rows.check_beyond(self._db, head)
        seen = self._seen
        if seen is not None and (
            head.ledger != seen.ledger
            or head.entries < seen.entries
            or rows.chain_at(self._db, head, seen.entries) != bytes.fromhex(seen.chain)
        ):
            raise DamageError(
                f"it was set back or replaced: entry {seen.entries} of ledger {seen.ledger} "
                "was there before and is not now"
            )
        self._seen = head.mark
        return head

    def _compare(self, head: Head) -> Mark | None:
        """Return the anchor's mark, inside a transaction, if it lies in the file's history."""
        if self._anchor is None:
            return None
        return self._anchor.compare(head.mark, partial(rows.chain_at, self._db, head))

    def _catch_up(self, head: Head) -> None:
        """Bring the anchor to the head, inside a transaction that holds off others that write.

        It is behind if a process was killed between its charge and the anchor.
        """
        mark = head.mark
        if self._anchor is not None and self._compare(head) != mark:
            self._anchor.move(mark)

    def _charged(self, head: Head) -> None:
        """Expect that the file holds this head from now on, and bring the anchor to its newest.

        Before this returns nothing may leave. Nobody else writes meanwhile: an anchor is never
        moved back.
        """
        self._seen = head.mark
        if self._anchor is not None:
            with self._transaction(WRITE) as (_, newest):
                self._anchor.move(newest.mark)

    def make_anchor(self, anchor: Anchor, *, replace: bool = False) -> Mark:
        """Store the end of the chain in an anchor; its owner says that the ledger is the newest.

        Parameters
        ----------
        anchor : Anchor
            Where. What it holds must be in this ledger's history.
        replace : bool
            Give up what it holds, whatever it is.

        Raises
        ------
        LedgerError
            If it holds something else, or cannot be used.
        """
        with self._transaction(WRITE) as (db, head):
            mark = head.mark
            if not replace and anchor.read() is not None:
                anchor.compare(mark, partial(rows.chain_at, db, head))
            anchor.move(mark)
        return mark

    def _clock_at(self, head: Head) -> Clock:
        return times.read(self._db, head, self._clock() // 1_000)
