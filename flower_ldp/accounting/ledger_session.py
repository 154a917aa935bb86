"""One open ledger file: transactions, and the certainty that it is still the same file."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flower_ldp.accounting import ledger_file as file
from flower_ldp.accounting import ledger_rows as rows
from flower_ldp.accounting import ledger_schema as schema
from flower_ldp.accounting.ledger_migration import migrate
from flower_ldp.accounting.ledger_rows import DamageError, Head
from flower_ldp.accounting.ledger_types import Mark
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
    ) -> None:
        self._path = path
        self._seen = at_least
        self._process = os.getpid()
        self._lock = threading.RLock()
        with file.understandable(path):
            file.check_file(path, read_only=read_only)
            self._file = file.identity(path)
            self.db = file.connect(path, timeout=timeout, read_only=read_only, durable=durable)
            try:
                file.check_version(path, self.db)
                if schema.outdated(self.db):
                    if read_only:
                        raise file.outdated(path)
                    with self.transaction(WRITE):
                        migrate(self.db)
                with self.transaction(READ):
                    wrong = schema.complaint(self.db)
                    if wrong is not None:
                        raise DamageError(wrong)
                    self.head()
            except BaseException:
                self.db.close()
                raise

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        with self._lock:
            self.db.close()

    @contextmanager
    def transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        """Run the body in one transaction: on disk at its end, or nothing of it."""
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
                yield self.db
                self.db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.db.execute("ROLLBACK")
                raise

    def head(self) -> Head:
        """Return the head, inside a transaction, if it continues what was seen before."""
        # SQLite reads a last page that was cut off as zeros. Nobody else writes meanwhile.
        pages, size = (schema.pragma_number(self.db, n) for n in ("page_count", "page_size"))
        if self._path.stat().st_size < pages * size:
            raise DamageError(f"it was cut off before the end of its {pages} pages")
        head = rows.read_head(self.db)
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
        self.saw(head)
        return head

    def saw(self, head: Head) -> None:
        """Expect that the file holds this head from now on."""
        self._seen = mark_of(head)


def mark_of(head: Head) -> Mark:
    """Return a head in the form that is kept elsewhere."""
    return Mark(head.ledger, head.entries, head.chain.hex())
