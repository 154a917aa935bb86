"""The durable privacy ledger: charged before private data is read, sealed before it leaves.

A release goes through four steps, the second and the fourth of them on disk before the next
begins:

1. ``receipt = ledger.charge(charge, limits)``: one transaction that looks the message up,
   checks every limit and writes the cost; or a refusal.
2. The app computes; the mechanism draws a report.
3. ``ledger.seal(receipt, report)``: the report is stored.
4. The report leaves.

A crash between 1 and 3 wastes a charge, one between 3 and 4 loses nothing: the same message
gets the stored report. So released <= sealed <= charged at every moment. A message that was
charged and never sealed is refused for good: a second draw would need a second charge, and
that takes a new message. docs/ledger.md states what is proved by which test.
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

from flower_ldp.accounting.amounts import Amount, Place
from flower_ldp.accounting.ledger import charges, entries, file, rows, sums
from flower_ldp.accounting.ledger.anchor import Anchor
from flower_ldp.accounting.ledger.charges import Charge, Clock, Limit, Mark, NumberLimit, Receipt
from flower_ldp.accounting.ledger.limits import check_repeat, fitting, is_bookkeeping, rounds_left
from flower_ldp.accounting.ledger.rows import DamageError, Head
from flower_ldp.accounting.ledger.sums import Snapshot, UnitSpending, spending
from flower_ldp.errors import BudgetExhausted, LedgerError
from flower_ldp.privacy import Unit

READ, WRITE = "BEGIN", "BEGIN IMMEDIATE"


class Ledger:
    """A ledger file, open; a context manager. Make one with :meth:`open`.

    Any number of processes may have the same file open, and threads may share an object.
    A child process opens its own.
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
        """Open a ledger, in constant time whatever its size.

        Parameters
        ----------
        path : path-like
            The file.
        create : bool
            Make it if it is missing. Without this a missing file is an error: a ledger that
            got lost must not begin again at zero by itself.
        read_only : bool
            For looking at it: any owner and mode will do, and charges fail.
        at_least : Mark, optional
            From :meth:`mark`, kept elsewhere: a file that was set back before it is refused.
        durable : bool
            Whether charges and reports wait until they are on disk. **Never False for real
            data**: a power loss would forget what was spent. Simulations need not wait.
        anchor : Anchor, optional
            Where the ledger's mark is kept: compared now, and moved at every charge before
            :meth:`charge` returns (:mod:`.anchor`). A missing file is then never made.
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

    def charge(
        self,
        charge: Charge,
        limits: Sequence[Limit],
        *,
        basis: Charge | None = None,
        numbers: Sequence[NumberLimit] = (),
        repeats: int | None = None,
    ) -> Receipt:
        """Charge a release, or find that it was charged before.

        Parameters
        ----------
        charge : Charge
            The release.
        limits : sequence of Limit
            All that hold for this data. A unit without any has no budget.
        basis : Charge, optional
            What the release rests on, which no message asks for by itself: charged with it in
            the same transaction, unless it was before. It has no report.
        numbers : sequence of NumberLimit
            All that hold for the number of releases of this data.
        repeats : int, optional
            Count a stored report that is given again, as :meth:`count` does ``"again"``, of at
            most so many. Without it the report is not counted: for the owner's own use of it.

        Returns
        -------
        Receipt
            Once it is on disk, and the anchor moved. With a ``report``: send that one again.

        Raises
        ------
        BudgetExhausted
            If any limit would be exceeded, ``repeats`` too, or a report of no run is asked for by
            a run that is over its limit with it; nothing was written.
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
                head = entries.record(db, head, one, at)
                receipt = Receipt(head.entries, head.chain)
                for mark in marks:
                    head = entries.record(db, head, mark, at)
        self._charged(head)
        return receipt

    def seal(self, receipt: Receipt, report: bytes, *, last: bytes = b"") -> None:
        """Store a report; when this returns it is on disk and may leave.

        Parameters
        ----------
        receipt : Receipt
            Of its charge.
        report : bytes
            What is to leave.
        last : bytes
            What the last report of the part of the data begins with, if there is a last one: after
            one that begins so none is stored.

        Raises
        ------
        BudgetExhausted
            If the last report was stored before. Nothing was written, and the report must not
            leave.
        ValueError, TypeError
            If the receipt is not of this ledger, its report is already there, or the report
            is longer than 2^28 bytes.
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
                if entries.has_report(db, entry.data_id, last):
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
        """Return whether a charge would be made together with its basis; nothing is written.

        For what must know before the basis is charged that neither would be refused.

        Parameters
        ----------
        charge, basis : Charge
            A release, and what it rests on: a round and its plan, a stage and its reservation.
        limits, numbers
            As :meth:`charge` has them.

        Raises
        ------
        BudgetExhausted, RefusalError, LedgerError
            As :meth:`charge` would be refused now.
        """
        with self._transaction(READ) as (db, head):
            known = entries.find(db, head, charge)
            if known is not None:
                entries.answer(db, known, charge)
                return False
            at = self._clock_at(head).of_a_charge()
            return len(list(fitting(db, head, charge, basis, limits, numbers, at))) > 1

    def has_report(self, data_id: str, beginning: bytes) -> bool:
        """Return whether any report that begins so was sealed for a part of the data.

        Parameters
        ----------
        data_id : str
            What the reports' entries were charged to, by its whole name.
        beginning : bytes
            First bytes of the report.

        Raises
        ------
        LedgerError
            If the file cannot be used.
        """
        with self._transaction(READ) as (db, _):
            return entries.has_report(db, data_id, beginning)

    def end_plan(self, charge: Charge) -> None:
        """Use up the rounds that a plan has left, so that nothing more leaves by it.

        Parameters
        ----------
        charge : Charge
            A round of the plan, under a message of its own.

        Raises
        ------
        LedgerError
            If the file cannot be used.
        """
        with self._transaction(WRITE) as (db, head):
            self._catch_up(head)
            left = rounds_left(db, charge)
            if not left or entries.find(db, head, charge) is not None:
                return
            at = self._clock_at(head).of_a_charge()
            head = entries.record(db, head, replace(charge, releases=left), at)
        self._charged(head)

    def unsealed(self, charge: Charge) -> Receipt:
        """Find a charge that has no report, so that it gets one after all.

        For a program that is the only way out of the machine, and knows so that no report of it
        has left. Nothing is charged.

        Raises
        ------
        RefusalError
            With :data:`~flower_ldp.refusals.REFUSED_REPEAT`, if there is no such charge, or it
            has a report.
        LedgerError
            If the file cannot be used.
        """
        with self._transaction(WRITE) as (db, head):
            self._catch_up(head)
            return entries.unsealed(db, head, charge)

    def count(self, data_id: str, kind: charges.Kind, most: int | None = None) -> int:
        """Count what was answered or failed beside charges; on disk when this returns.

        Parameters
        ----------
        data_id : str
            The account, or a part of it, which counts towards the account.
        kind : str
            ``"again"``: a stored report is sent again. ``"acknowledged"``: an answer with
            nothing in it. ``"failed"``: the app failed after a charge.
        most : int, optional
            The largest number; of ``"again"`` and ``"acknowledged"`` together.

        Returns
        -------
        int
            The number of this kind.

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
        """Return what was counted for an account, by kind; see :meth:`count`."""
        with self._transaction(READ) as (db, _):
            return sums.counts(db, data_id)

    def counted(self) -> dict[str, dict[charges.Kind, int]]:
        """Return what was counted for all accounts of which anything was, sorted by name."""
        with self._transaction(READ) as (db, _):
            return {account: sums.counts(db, account) for _, account in sums.every_count(db)}

    def number(self, data_id: str, limit: NumberLimit) -> int:
        """Return how many releases of an account count towards a limit now."""
        with self._transaction(READ) as (db, head):
            at = self._clock_at(head).of_a_question()
            return Snapshot(db, data_id).number(limit, at)

    def totals(self, data_id: str, run_id: int | None = None) -> dict[Unit, Amount]:
        """Return what counts towards limits, in one run or in all: what records have spent.

        What was spent about a coarser unit is in it, and so are conditional claims, which
        :meth:`spending` tells apart. Of all of the data it is what any of its records has
        spent at most; of a part, what any record of that part has.

        Returns
        -------
        dict of Unit to Amount
            Only units for which something was promised.
        """
        found = {spent.unit: spent.counted for spent in self.spending(data_id, run_id)}
        return {unit: amount for unit, amount in found.items() if amount != Amount()}

    def spending(self, data_id: str, run_id: int | None = None) -> list[UnitSpending]:
        """Return what was spent directly and in all, and what that says nothing about.

        One for each unit, of all of the data or of a part, in one run or in all.
        """
        if run_id is not None:
            charges.check_run(run_id)
        run = "" if run_id is None else str(run_id)
        with self._transaction(READ) as (db, _):
            return list(spending(Snapshot(db, data_id).spent(run)))

    def spent(self, data_id: str, run_id: int, limit: Limit) -> Amount:
        """Return what counts towards a limit now; the run matters only to limits per run.

        Beside what the run was charged they count what belongs to no run (:data:`NO_RUN`).
        """
        charges.check_run(run_id)
        with self._transaction(READ) as (db, head):
            at = self._clock_at(head).of_a_question()
            return Snapshot(db, data_id).towards(limit, run_id, at)

    def has_charge(self, data_id: str, run_id: int, message_id: str) -> bool:
        """Return whether a message was charged."""
        with self._transaction(READ) as (db, _):
            return entries.number_of(db, data_id, run_id, message_id) is not None

    def data_ids(self) -> list[str]:
        """Return the names of all accounts that were ever charged, parts included, sorted.

        What the ledger keeps for itself, as the rounds of a plan, is none of them.
        """
        with self._transaction(READ) as (db, _):
            every = rows.totals_between(db, rows.FIRST, ("0", ""))
            # A name with a tab is that of sums over parts.
            return [name for (_, name), _ in every if "\t" not in name and not is_bookkeeping(name)]

    def accounts(self) -> dict[str, int]:
        """Return the names of all data that was ever charged, and in how many parts."""
        found: dict[str, int] = {}
        for name in self.data_ids():
            place = Place.of(name)
            found[place.account] = found.get(place.account, 0) + bool(place.layout)
        return dict(sorted(found.items()))

    def entries(self, first: int = 1) -> Iterator[charges.Entry]:
        """Yield the entries from number ``first`` on, each checked against the chain.

        Entries that are added meanwhile are not among them.
        """
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
        """Yield one flat row for each event, ready for JSON or CSV; amounts are exact."""
        return (row for entry in self.entries() for row in entry.rows())

    def mark(self) -> Mark:
        """Return the end of the chain: keep it elsewhere, and give it to :meth:`open`."""
        with self._transaction(READ) as (_, head):
            return head.mark

    def verify(self) -> charges.Verification:
        """Check the whole file; takes time in proportion to it and holds charges off.

        Raises
        ------
        LedgerError
            Naming the first thing that is wrong.
        """
        with self._transaction(READ) as (db, _):
            return entries.verify(db)

    def clock(self) -> Clock:
        """Return what the clock shows and what the ledger's time is."""
        with self._transaction(READ) as (_, head):
            return self._clock_at(head)

    def accept_clock(self) -> Clock:
        """Take the owner's word that the clock is right, and return what it was before.

        Past a jump of more than 400 days charges go on, and what was charged before it has left
        every window of that length. Where the ledger itself is ahead, since it was charged with
        a wrong clock, its time goes on from its latest entry: nothing leaves a window early.
        """
        with self._transaction(WRITE) as (db, head):
            before = self._clock_at(head)
            rows.write_clock(db, before.shown, max(before.shown, before.latest))
        return before

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
        with self._transaction(WRITE) as (_, head):
            if not replace and anchor.read() is not None:
                self._compare(anchor, head)
            anchor.move(head.mark)
        return head.mark

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

    def _compare(self, anchor: Anchor, head: Head) -> Mark:
        """Return an anchor's mark, inside a transaction, if it lies in the file's history."""
        return anchor.compare(head.mark, partial(rows.chain_at, self._db, head))

    def _catch_up(self, head: Head) -> None:
        """Bring the anchor to the head, inside a transaction that holds off others that write.

        It is behind if a process was killed between its charge and the anchor.
        """
        if self._anchor is not None and self._compare(self._anchor, head) != head.mark:
            self._anchor.move(head.mark)

    def _charged(self, head: Head) -> None:
        """Expect that the file holds this head from now on, and bring the anchor to its newest.

        Before this returns nothing may leave. Nobody else writes meanwhile: an anchor is never
        moved back.
        """
        self._seen = head.mark
        if self._anchor is not None:
            with self._transaction(WRITE) as (_, newest):
                self._anchor.move(newest.mark)

    def _clock_at(self, head: Head) -> Clock:
        return Clock(self._clock() // 1_000, head.latest, *rows.read_clock(self._db))
