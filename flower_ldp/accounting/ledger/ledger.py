"""The durable privacy ledger: charged before private data is read, sealed before a report leaves.

1. ``receipt = ledger.charge(charge, limits)`` looks the message up, checks every limit and writes
   the cost in one transaction; or it refuses.
2. The app computes, and the mechanism draws a report.
3. ``ledger.seal(receipt, report)`` stores the report.
4. The report leaves.

Steps 1 and 3 are on disk before the next one begins, so released <= sealed <= charged at every
moment. A crash between 1 and 3 wastes a charge; after 3 the same message gets the stored report. A
message that was charged and never sealed is refused for good: a second draw needs a second charge.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flower_ldp.accounting.amounts import ZCDP, Amount, Place
from flower_ldp.accounting.ledger import charges, entries, file, rows, sums
from flower_ldp.accounting.ledger.anchor import Anchor
from flower_ldp.accounting.ledger.charges import Charge, Clock, Limit, Mark, NumberLimit, Receipt
from flower_ldp.accounting.ledger.limits import (
    by_zcdp,
    check_repeat,
    fitting,
    is_bookkeeping,
    rounds_left,
    rule_marks,
)
from flower_ldp.accounting.ledger.rows import DamageError, Head
from flower_ldp.accounting.ledger.sums import Snapshot, UnitSpending, spending
from flower_ldp.errors import BudgetExhausted, LedgerError
from flower_ldp.privacy import Unit

READ, WRITE = "BEGIN", "BEGIN IMMEDIATE"


class Ledger:
    """An open ledger file; a context manager. Make one with :meth:`open`.

    Several processes may open the same file, and threads may share an object. A child process opens
    its own.
    """

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        read_only: bool = False,
        at_least: Mark | None = None,
        durable: bool = True,
        anchor: Anchor | None = None,
        timeout: float = 30.0,
        clock: Callable[[], int] = time.time_ns,
    ) -> Ledger:
        """Open a ledger, in constant time for any size.

        Parameters
        ----------
        path : path-like
        create : bool
            Make a missing file. By default it is an error: a lost ledger must not start at zero by
            itself.
        read_only : bool
            Accept any owner and mode, and refuse charges.
        at_least : Mark, optional
            From :meth:`mark`, kept elsewhere: a file that was set back before it is refused.
        durable : bool
            Whether charges and reports wait for the disk. **Never False for real data**: a power
            loss would forget charges.
        anchor : Anchor, optional
            Compared now, and moved at every charge before :meth:`charge` returns (:mod:`.anchor`).
            A missing file is then never made.
        timeout : float
            Seconds to wait for another process's transaction.
        clock : callable
            Returns nanoseconds since 1970 (UTC).

        Raises
        ------
        LedgerError
            If the file cannot be used; the text says why and what to do.
        """
        named, path = Path(path), Path(os.path.realpath(path))
        with file.understandable(path):
            # Without links on it, the way is the one on which its folder is judged below.
            if durable and not read_only and named != path:
                file.check_way(named, f"ledger {path}")
            if not path.exists():
                if not create or anchor is not None:
                    raise LedgerError(
                        f"ledger {path} does not exist: correct the path, restore a backup, or "
                        "create it if this data was never released from: flower-ldp ledger create "
                        f"{path}"
                    )
                file.create(path, durable=durable)
        return cls(path, read_only, timeout, at_least, durable, anchor, clock)

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
                    if anchor is not None:
                        self._compare(anchor, head)
                if file.identity(path) != self._file:
                    raise LedgerError(f"ledger {path} was replaced while it was opened: try again")
            except BaseException:
                self._db.close()
                raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        with self._lock:
            self.closed = True
            self._db.close()

    def look_again(self) -> None:
        """Check the file again as :meth:`open` does."""
        # SQLite takes what it read for what is there as long as a number in the file is the same,
        # which an older copy comes to have again.
        with self._lock, file.understandable(self._path):
            self._check()
            self._db.execute("PRAGMA shrink_memory")

    def charge(
        self,
        charge: Charge,
        limits: Sequence[Limit],
        *,
        basis: Charge | None = None,
        numbers: Sequence[NumberLimit] = (),
        repeats: int | None = None,
    ) -> Receipt:
        """Charge a release, or find its earlier charge.

        Parameters
        ----------
        charge : Charge
        limits : sequence of Limit
            All limits of this data. A unit without any has no budget.
        basis : Charge, optional
            An earlier charge that the release depends on, written in the same transaction if it is
            missing. It has no report.
        numbers : sequence of NumberLimit
            All limits on this data's number of releases.
        repeats : int, optional
            Count a stored report that is sent again, as :meth:`count` does ``"again"``, up to this
            number. None, for the owner's own use, counts nothing.

        Returns
        -------
        Receipt
            After it is on disk and the anchor moved. With a ``report``: send that one again.

        Raises
        ------
        BudgetExhausted
            If a limit would be exceeded, ``repeats`` too, or a run over its limit asks for a report
            of run 0; nothing was written.
        RefusalError
            With :data:`~flower_ldp.refusals.REFUSED_REPEAT`: the same data, run and message were
            charged for another request, or no report was sealed.
        LedgerError
            If the file cannot be used. Nothing may be released.
        """
        with self._transaction(WRITE) as (db, head):
            self._catch_up(head)
            known = entries.find(db, head, charge)
            if known is not None:
                receipt = entries.answer(db, known, charge)
                check_repeat(db, charge, limits)
                if repeats is not None:
                    sums.count(db, charge.data_id, "again", repeats)
                return receipt
            at = self._clock_at(head).of_a_charge()
            for one, marks in fitting(db, head, charge, basis, limits, numbers, at):
                head = entries.record(db, head, one, at, zcdp=by_zcdp(limits))
                receipt = Receipt(head.entries, head.chain)
                for mark in marks:
                    head = entries.record(db, head, mark, at)
        self._charged(head)
        return receipt

    def seal(
        self, receipt: Receipt, report: bytes, *, last: bytes = b"", parts: bool = False
    ) -> None:
        """Store a report; when this returns it is on disk and may leave.

        Parameters
        ----------
        receipt : Receipt
        report : bytes
        last : bytes
            Prefix of the part's last report, if it has one: after such a report none is stored.
        parts : bool
            Whether ``last`` is that of the account and all of its parts.

        Raises
        ------
        BudgetExhausted
            If the last report was stored before. Nothing was written, and the report must not
            leave.
        ValueError, TypeError
            If the receipt is not of this ledger, its report is already there, or the report is
            longer than 2^28 bytes.
        LedgerError
            If the file cannot be used. The report must not leave.
        """
        if not isinstance(report, bytes):
            raise TypeError(f"report must be bytes, got {type(report).__name__}")
        if len(report) > charges.MOST_REPORT:
            raise ValueError(
                f"report must have at most {charges.MOST_REPORT} bytes, got {len(report)}"
            )
        with self._transaction(WRITE) as (db, head):
            number = receipt.entry
            if not 1 <= number <= head.entries or rows.chain_at(db, head, number) != receipt.chain:
                raise ValueError(f"receipt of entry {number} is not from this ledger")
            if rows.read_report(db, number, receipt.chain) is not None:
                raise ValueError(f"entry {number} was sealed before: its report may not change")
            if last:
                (entry,) = entries.read(db, head, number, number)
                name = Place.of(entry.data_id).account if parts else entry.data_id
                if entries.has_report(db, name, last, parts=parts):
                    raise BudgetExhausted(f"entry {number} is charged, and its plan has ended")
            at = self._clock_at(head).of_a_question()
            rows.write_report(db, number, at, receipt.chain, report)

    def is_new_basis(
        self,
        charge: Charge,
        basis: Charge,
        limits: Sequence[Limit],
        numbers: Sequence[NumberLimit] = (),
    ) -> bool:
        """Return whether a charge would be written together with its basis; writes nothing.

        Arguments and errors are those of :meth:`charge`.
        """
        with self._transaction(READ) as (db, head):
            known = entries.find(db, head, charge)
            if known is not None:
                entries.answer(db, known, charge)
                return False
            at = self._clock_at(head).of_a_charge()
            return len(list(fitting(db, head, charge, basis, limits, numbers, at))) > 1

    def has_report(self, data_id: str, beginning: bytes, *, parts: bool = False) -> bool:
        """Return whether a report with this prefix was sealed for a part, by its whole name.

        With ``parts``, for an account or any of its parts.
        """
        with self._transaction(READ) as (db, _):
            return entries.has_report(db, data_id, beginning, parts=parts)

    def end_plan(self, charge: Charge) -> None:
        """Use up a plan's remaining rounds; ``charge`` is a round with a message of its own."""
        with self._transaction(WRITE) as (db, head):
            self._catch_up(head)
            left = rounds_left(db, charge)
            if not left or entries.find(db, head, charge) is not None:
                return
            at = self._clock_at(head).of_a_charge()
            head = entries.record(db, head, replace(charge, releases=left), at)
        self._charged(head)

    def unsealed(self, charge: Charge) -> Receipt:
        """Return the receipt of a charge without a report, so that it gets one; charges nothing.

        Only for a program that is the machine's one way out and knows that no report has left.

        Raises
        ------
        RefusalError
            With :data:`~flower_ldp.refusals.REFUSED_REPEAT`, if there is no such charge, or it has
            a report.
        LedgerError
            If the file cannot be used.
        """
        with self._transaction(WRITE) as (db, head):
            self._catch_up(head)
            return entries.unsealed(db, head, charge)

    def count(self, data_id: str, kind: charges.Kind, most: int | None = None) -> int:
        """Count an answer or failure beside charges; return the number of its kind, on disk.

        A part counts towards its account.

        Parameters
        ----------
        data_id : str
        kind : str
            ``"again"``: a stored report is sent again. ``"acknowledged"``: an empty answer.
            ``"failed"``: the app failed after a charge. ``"unprotected"``: a raw reply left.
        most : int, optional
            The largest number; of ``"again"`` and ``"acknowledged"`` together.

        Raises
        ------
        BudgetExhausted
            If there would be more than ``most``; nothing was written.
        LedgerError
            If the file cannot be used.
        """
        with self._transaction(WRITE) as (db, _):
            return sums.count(db, data_id, kind, most)

    def counts(self, data_id: str) -> dict[charges.Kind, int]:
        """Return an account's counts by kind; see :meth:`count`."""
        with self._transaction(READ) as (db, _):
            return sums.counts(db, data_id)

    def counted(self) -> dict[str, dict[charges.Kind, int]]:
        """Return the counts of all accounts that have any, sorted by name."""
        with self._transaction(READ) as (db, _):
            return {account: sums.counts(db, account) for _, account in sums.every_count(db)}

    def number(self, data_id: str, limit: NumberLimit) -> int:
        """Return the number of an account's releases that count towards a limit now."""
        with self._transaction(READ) as (db, head):
            at = self._clock_at(head).of_a_question()
            return Snapshot(db, data_id).number(limit, at)

    def totals(self, data_id: str, run_id: int | None = None) -> dict[Unit, Amount]:
        """Return the amounts that count towards limits, in one run or in all.

        They include costs of coarser units and conditional claims. For all of the data each is the
        most that any record has spent; for a part, that of its records. Units without a guarantee
        are missing.
        """
        found = {spent.unit: spent.counted for spent in self.spending(data_id, run_id)}
        return {unit: amount for unit, amount in found.items() if amount != Amount()}

    def spending(self, data_id: str, run_id: int | None = None) -> list[UnitSpending]:
        """Return each unit's amounts, direct and in all, and its releases that are not covered.

        Of all of the data or of a part, in one run or in all.
        """
        if run_id is not None:
            charges.check_run(run_id)
        run = "" if run_id is None else str(run_id)
        with self._transaction(READ) as (db, _):
            return list(spending(Snapshot(db, data_id).spent(run)))

    def spent(self, data_id: str, run_id: int, limit: Limit) -> Amount:
        """Return the amount that counts towards a limit now, for a run with :data:`NO_RUN`."""
        charges.check_run(run_id)
        with self._transaction(READ) as (db, head):
            at = self._clock_at(head).of_a_question()
            return Snapshot(db, data_id).towards(limit, run_id, at)

    def check_rule(self, data_id: str, limits: Sequence[Limit]) -> None:
        """Raise RefusalError if an account was charged by another rule than the limits'."""
        with self._transaction(READ) as (db, head):
            rule_marks(db, head, data_id, limits)

    def spent_zcdp(self, data_id: str, unit: Unit) -> Amount:
        """Return the rho, and its delta, that counts towards a life by zCDP."""
        with self._transaction(READ) as (db, _):
            return Snapshot(db, data_id).spent("").amount(unit, ZCDP)

    def has_charge(self, data_id: str, run_id: int, message_id: str) -> bool:
        """Return whether a message was charged."""
        with self._transaction(READ) as (db, _):
            return entries.number_of(db, data_id, run_id, message_id) is not None

    def data_ids(self) -> list[str]:
        """Return the sorted names of all charged accounts and parts, without the ledger's own."""
        with self._transaction(READ) as (db, _):
            every = rows.totals_between(db, rows.FIRST, ("0", ""))
            # A name with a tab is that of sums over parts.
            return [name for (_, name), _ in every if "\t" not in name and not is_bookkeeping(name)]

    def accounts(self) -> dict[str, int]:
        """Return the names of all charged data, with their numbers of parts."""
        found: dict[str, int] = {}
        for name in self.data_ids():
            place = Place.of(name)
            found[place.account] = found.get(place.account, 0) + bool(place.layout)
        return dict(sorted(found.items()))

    def entries(self, first: int = 1) -> Iterator[charges.Entry]:
        """Yield the present entries from number ``first`` on, checked against the chain."""
        if first < 1:
            raise ValueError(f"first must be at least 1, got {first}")
        last = self.mark().entries
        while first <= last:
            stop = min(first + entries.PAGE - 1, last)
            with self._transaction(READ) as (db, head):
                page = list(entries.read(db, head, first, stop))
            yield from page
            first = stop + 1

    def export(self) -> Iterator[dict[str, Any]]:
        """Yield one flat row for each event, for JSON or CSV; amounts are exact."""
        return (row for entry in self.entries() for row in entry.rows())

    def mark(self) -> Mark:
        """Return the end of the chain, to keep elsewhere for :meth:`open`."""
        with self._transaction(READ) as (_, head):
            return head.mark

    def verify(self) -> charges.Verification:
        """Check the whole file; charges wait meanwhile. LedgerError names the first fault."""
        with self._transaction(READ) as (db, _):
            return entries.verify(db)

    def clock(self) -> Clock:
        """Return the clock's time and the ledger's time."""
        with self._transaction(READ) as (_, head):
            return self._clock_at(head)

    def accept_clock(self) -> Clock:
        """Record the owner's statement that the clock is right; return the earlier times.

        After a jump of more than 400 days charges go on, and earlier ones have left windows of that
        length. A ledger that is ahead goes on from its latest entry: nothing leaves a window early.
        """
        with self._transaction(WRITE) as (db, head):
            before = self._clock_at(head)
            rows.write_clock(db, before.shown, max(before.shown, before.latest))
        return before

    def make_anchor(self, anchor: Anchor, *, replace: bool = False) -> Mark:
        """Store the end of the chain in an anchor: its owner states that the ledger is the newest.

        The anchor's present mark must be in this ledger's history, unless ``replace`` gives it up.
        Raises LedgerError if it is not, or the anchor cannot be used.
        """
        with self._transaction(WRITE) as (_, head):
            if not replace and anchor.read() is not None:
                self._compare(anchor, head)
            anchor.move(head.mark)
        return head.mark

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[tuple[sqlite3.Connection, Head]]:
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
        """Return the head, inside a transaction, if it continues the last seen one."""
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

    def _compare(self, anchor: Anchor, head: Head) -> Mark:
        return anchor.compare(head.mark, partial(rows.chain_at, self._db, head))

    def _catch_up(self, head: Head) -> None:
        """Move the anchor, which a killed process left behind, to the head."""
        if self._anchor is not None and self._compare(self._anchor, head) != head.mark:
            self._anchor.move(head.mark)

    def _charged(self, head: Head) -> None:
        """Remember this head, and move the anchor to the file's newest.

        Nothing may leave before this returns. The lock for writing keeps the anchor from moving
        back.
        """
        self._seen = head.mark
        if self._anchor is not None:
            with self._transaction(WRITE) as (_, newest):
                self._anchor.move(newest.mark)

    def _clock_at(self, head: Head) -> Clock:
        return Clock(self._clock() // 1_000, head.latest, *rows.read_clock(self._db))
