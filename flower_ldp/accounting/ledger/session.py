"""One open ledger file: transactions, and the certainty that it is still the same file."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from flower_ldp.accounting.ledger import anchor as anchors
from flower_ldp.accounting.ledger import file, rows, schema
from flower_ldp.accounting.ledger.anchor import Anchor
from flower_ldp.accounting.ledger.rows import DamageError, Head
from flower_ldp.accounting.ledger.types import Mark
from flower_ldp.errors import LedgerError

READ, WRITE = "BEGIN", "BEGIN IMMEDIATE"


class Session:
    """A connection to a ledger that was checked.

    Parameters
    ----------
    path : path-like
        An existing file.
    read_only : bool
        Do not write, and accept any owner and mode.
    timeout : float
        Seconds to wait for another process's transaction.
    at_least : Mark, optional
        What the file must hold.
    durable : bool
        Whether a commit waits until it is on disk.
    anchor : Anchor, optional
        What must lie in the file's history.

    Raises
    ------
    LedgerError
        If the file cannot be used.
    """

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool,
        timeout: float,
        at_least: Mark | None,
        durable: bool,
        anchor: Anchor | None = None,
    ) -> None:
        self._path = path
        self._anchor = anchor
        self._seen = at_least
        self._process = os.getpid()
        self.closed = False
        self._lock = threading.RLock()
        self._check = partial(file.check_file, path, read_only=read_only, durable=durable)
        with file.understandable(path):
            self._check()
            self._file = file.identity(path)
            self.db = file.connect(path, timeout=timeout, read_only=read_only, durable=durable)
            # Who drops a ledger has closed it: from Python 3.13 on a connection warns of it, which
            # would be an error of the user's tests. A child's end closes nothing of its parent's.
            weakref.finalize(self, self.db.close).atexit = False
            try:
                file.check_version(path, self.db)
                # Anchors are asked while no other process moves them.
                with self._begun(WRITE if anchor and not read_only else READ):
                    wrong = schema.complaint(self.db)
                    if wrong is not None:
                        raise DamageError(wrong)
                    self._compare(self._head())
                if file.identity(path) != self._file:
                    raise LedgerError(f"ledger {path} was replaced while it was opened: try again")
            except BaseException:
                self.db.close()
                raise

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        with self._lock:
            self.closed = True
            self.db.close()

    def look_again(self) -> None:
        """Judge the file as when it was opened, and forget what was read of it.

        SQLite takes what it read for what is there as long as a number in the file is the same,
        which an older copy comes to have again.
        """
        with self._lock, file.understandable(self._path):
            self._check()
            self.db.execute("PRAGMA shrink_memory")

    @contextmanager
    def transaction(self, begin: str) -> Iterator[tuple[sqlite3.Connection, Head]]:
        """Run the body in one transaction: on disk at its end, or nothing of it.

        Yields
        ------
        Connection, Head
            The head continues what was seen before.
        """
        with self._begun(begin):
            yield self.db, self._head()

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
            self.db.execute(begin)
            try:
                yield
                self.db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.db.execute("ROLLBACK")
                raise

    def _head(self) -> Head:
        """Return the head, inside a transaction, if it continues what was seen before."""
        # SQLite reads a last page that was cut off as zeros. Nobody else writes meanwhile.
        pages, size = (schema.pragma_number(self.db, n) for n in ("page_count", "page_size"))
        if self._path.stat().st_size < pages * size:
            raise DamageError(f"it was cut off before the end of its {pages} pages")
        head = rows.read_head(self.db)
        rows.check_beyond(self.db, head)
        seen = self._seen
        if seen is not None and (
            head.ledger != seen.ledger
            or head.entries < seen.entries
            or rows.chain_at(self.db, head, seen.entries) != bytes.fromhex(seen.chain)
        ):
            raise DamageError(
                f"it was set back or replaced: entry {seen.entries} of ledger {seen.ledger} "
                "was there before and is not now"
            )
        self._seen = mark_of(head)
        return head

    def _compare(self, head: Head) -> Mark | None:
        """Return the anchor's mark, inside a transaction, if it lies in the file's history."""
        if self._anchor is None:
            return None
        return anchors.compare(self._anchor, mark_of(head), partial(rows.chain_at, self.db, head))

    def catch_up(self, head: Head) -> None:
        """Bring the anchor to the head, inside a transaction that holds off others that write.

        It is behind if a process was killed between its charge and the anchor.
        """
        mark = mark_of(head)
        if self._anchor is not None and self._compare(head) != mark:
            anchors.move(self._anchor, mark)

    def charged(self, head: Head) -> None:
        """Expect that the file holds this head from now on, and bring the anchor to its newest.

        Before this returns nothing may leave. Nobody else writes meanwhile: an anchor is never
        moved back.
        """
        self._seen = mark_of(head)
        if self._anchor is not None:
            with self.transaction(WRITE) as (_, newest):
                anchors.move(self._anchor, mark_of(newest))

    def make_anchor(self, anchor: Anchor, *, replace: bool) -> Mark:
        """Bring an anchor to the head; what it holds must be of this history, or be replaced."""
        with self.transaction(WRITE) as (db, head):
            mark = mark_of(head)
            if not replace and anchor.read() is not None:
                anchors.compare(anchor, mark, partial(rows.chain_at, db, head))
            anchors.move(anchor, mark)
        return mark


def mark_of(head: Head) -> Mark:
    """Return a head in the form that is kept elsewhere."""
    return Mark(head.ledger, head.entries, head.chain.hex())
