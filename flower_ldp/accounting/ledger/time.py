"""The ledger's time: the clock's, never going back, and never far ahead by itself.

A window holds what was charged lately. So a clock that jumps ahead empties it, and as time in a
ledger never goes back, one charge with a wrong clock would do so for good. A charge whose time is
more than 400 days past the latest entry is refused, until the owner says that the clock is right.

Where the clock is right and the *ledger* is ahead, because it was charged with a wrong one, its
owner can have the ledger's time go on from its latest entry at the clock's pace. Its dates are
then ahead of the calendar's, and windows have their full length: nothing leaves one early.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime

from flower_ldp.accounting.ledger.charges import MOST_TIME
from flower_ldp.accounting.ledger.rows import DamageError, Head, checked, put
from flower_ldp.errors import LedgerError

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


def write(db: sqlite3.Connection, set_at: int = 0, set_to: int = 0) -> None:
    """Set the ledger's time."""
    put(db, "clock", set_at, set_to, before=(1,), new=False)


def read(db: sqlite3.Connection, head: Head, shown: int) -> Clock:
    """Return clock and time.

    Parameters
    ----------
    shown : int
        What the clock shows, in microseconds since 1970.
    """
    if not 0 <= shown < MOST_CLOCK:
        raise LedgerError(f"the clock shows {shown} microseconds since 1970: set it right")
    row = db.execute("SELECT set_at, set_to, digest FROM clock").fetchone()
    if row is None:
        raise DamageError("how its owner set its time is missing")
    return Clock(shown, head.latest, *checked("clock", row, "how its owner set its time"))
