"""One open ledger file: transactions, the certainty that it is still the same file, and its time.

**Time.** It is the clock's, never goes back, and never goes far ahead by itself.
A window holds what was charged lately. So a clock that jumps ahead empties it, and as time in a
ledger never goes back, one charge with a wrong clock would do so for good. A charge whose time is
more than 400 days past the latest entry is refused, until the owner says that the clock is right.

Where the clock is right and the *ledger* is ahead, because it was charged with a wrong one, its
owner can have the ledger's time go on from its latest entry at the clock's pace. Its dates are
then ahead of the calendar's, and windows have their full length: nothing leaves one early.
"""

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from flower_ldp.accounting.ledger import file, rows
from flower_ldp.accounting.ledger.anchor import Anchor
from flower_ldp.accounting.ledger.charges import MOST_TIME, Mark
from flower_ldp.accounting.ledger.rows import DamageError, Head
from flower_ldp.errors import LedgerError

READ, WRITE = "BEGIN", "BEGIN IMMEDIATE"
DAY = 86_400_000_000
"""Microseconds in a day."""
MOST_JUMP = 400 * DAY
"""How far past the latest entry a charge may be: a phone may have been off for months."""
MOST_CLOCK = 7_258_118_400_000_000
"""The year 2200: a clock that shows it is wrong."""


@dataclass(frozen=True)
class Clock:
    """The clock and the ledger's time, in microseconds since 1970 (UTC).

    Parameters
    ----------
    shown : int
        What the clock shows.
    latest : int
        Time of the latest entry; 0 if there is none.
    set_at, set_to : int
        What the clock showed, and what the ledger's time was, when the owner last set it; both
        0 if that was never done.
    """

    shown: int
    latest: int
    set_at: int
    set_to: int

    @property
    def time(self) -> int:
        """The ledger's time, if it were not for the entries."""
        return self.set_to + self.shown - self.set_at

    @property
    def ahead(self) -> int:
        """How much the owner has set the ledger's time ahead of the clock."""
        return self.set_to - self.set_at

    @property
    def jumped(self) -> bool:
        """Whether the time is so far past the latest entry that a charge is refused."""
        known = max(self.latest, self.set_to)
        return self.latest > 0 and self.time - known > MOST_JUMP

    def of_a_charge(self) -> int:
        """Return the time of a charge that is made now.

        Raises
        ------
        LedgerError
            If the clock jumped.
        """
        if self.jumped:
            raise LedgerError(
                f"the clock shows {day(self.shown)}, more than {MOST_JUMP // DAY} days past the "
                f"ledger's latest entry ({day(self.latest)}): a charge would empty every window. "
                "Set it right; if it is, say so: flower-ldp ledger clock FILE --accept"
            )
        return self.of_a_question()

    def of_a_question(self) -> int:
        """Return the time up to which windows have moved: not at all if the clock jumped."""
        time = self.latest if self.jumped else max(self.time, self.latest)
        if time > MOST_TIME:
            raise LedgerError("the ledger's time is at the end of the year 9999, and cannot go on")
        return time


def day(microseconds: int) -> str:
    """Return the date of a time."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%d")


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
                file.check_schema(path, self._db)
                # Anchors are asked while no other process moves them.
                with self._transaction(WRITE if anchor and not read_only else READ) as (_, head):
                    self._compare(head)
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
                yield self._db, self._head()
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
        shown = self._clock() // 1_000
        if not 0 <= shown < MOST_CLOCK:
            raise LedgerError(f"the clock shows {shown} microseconds since 1970: set it right")
        return Clock(shown, head.latest, *rows.read_clock(self._db))
