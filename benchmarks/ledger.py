"""What the privacy ledger costs: one charge and one seal per release, both on disk.

Measured on an empty ledger and on one with a million entries: ``charge`` + ``seal`` with
limits for run, life and a window, opening, and reading the totals. Beside it what the disk
costs alone: writing and synchronizing 4 KiB. A charge and a seal need ten synchronizations
together (journal twice, its folder, file, end of journal; twice), so on a busy disk look at
``milliseconds_without_disk``, which is the same work with synchronization switched off.

    python benchmarks/ledger.py --entries 1000000 --output benchmarks/results/ledger.json

The goal is a median of at most 5 ms; exit status 1 if it is missed.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import _options as options
import typer
from _environment import report
from _runs import say
from _timing import clocked

from flower_ldp.accounting.ledger import Charge, Ledger, Limit
from flower_ldp.accounting.ledger import entries as ledger_entries
from flower_ldp.accounting.ledger import rows as ledger_rows
from flower_ldp.accounting.ledger.ledger import WRITE
from flower_ldp.privacy import PrivacyEvent, Unit

GOAL = 5.0
EVENTS = (PrivacyEvent("signds", 7.9), PrivacyEvent("magrr", 0.1))
LIMITS = (
    Limit(Unit.CLIENT, "run", 9e6),
    Limit(Unit.CLIENT, "life", 9.2e6),
    Limit(Unit.CLIENT, "window", 9e6, window_seconds=86_400),
)
REPORT = bytes(400)
#: Messages of a run, as in a training of a hundred rounds.
ROUNDS = 100

Figures = dict[str, float]


def charge(number: int, *, run: int | None = None) -> Charge:
    """Return the charge of one train message."""
    return Charge(
        "ward-7",
        number // ROUNDS if run is None else run,
        f"{number:064x}",
        "train",
        bytes(32),
        EVENTS,
        '{"k": 0.2, "rho": 0.6}',
    )


def grow(ledger: Ledger, count: int) -> None:
    """Write entries with reports in one transaction: the same rows, without the waiting."""
    at = time.time_ns() // 1_000 - count * 1_000_000
    with ledger._transaction(WRITE) as (db, head):
        for number in range(count):
            one = charge(number)
            at += 1_000_000
            head = ledger_entries.record(db, head, one, at)
            ledger_rows.write_report(db, head.entries, at, head.chain, REPORT)


def timed(repeats: int, work: Callable[[int], object]) -> Figures:
    """Time calls, each with its number; return median, 99th percentile and minimum in ms."""
    ordered = sorted(1e3 * clocked(partial(work, number))().wall for number in range(repeats))
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"median": statistics.median(ordered), "p99": p99, "least": ordered[0]}


def synchronization(folder: Path, repeats: int) -> Figures:
    """Time writing 4 KiB in place and synchronizing it."""
    path = folder / "plain"
    path.write_bytes(bytes(4_096))
    handle = os.open(path, os.O_WRONLY)
    sync = getattr(os, "fdatasync", os.fsync)

    def work(_: int) -> None:
        os.pwrite(handle, os.urandom(4_096), 0)
        sync(handle)

    try:
        return timed(repeats, work)
    finally:
        os.close(handle)


def release(ledger: Ledger, run: int) -> Callable[[int], None]:
    """Return what is timed: one release of a fresh run."""

    def work(number: int) -> None:
        ledger.seal(ledger.charge(charge(number, run=run), LIMITS), REPORT)

    return work


def measure(path: Path, repeats: int) -> dict[str, Figures]:
    """Time a ledger as it is."""
    result = {"open": timed(repeats, lambda _: Ledger.open(path).close())}
    with Ledger.open(path) as ledger:
        result["charge_and_seal"] = timed(repeats, release(ledger, 2**63))
        result["totals"] = timed(repeats, lambda _: ledger.totals("ward-7"))
        database: sqlite3.Connection = ledger._db
        database.execute("PRAGMA synchronous = OFF")
        without = timed(repeats, release(ledger, 2**63 + 1))
        result["charge_and_seal_without_disk"] = without
    return result


def main(
    entries: Annotated[int, typer.Option(min=0, help="Of the large ledger.")] = 1_000_000,
    repeats: options.Repeats = 500,
    folder: Annotated[Path | None, typer.Option(help="On the disk to measure.")] = None,
    output: options.Report = None,
) -> None:
    """Time an empty ledger and a large one; exit status 1 if the goal is missed."""
    body: dict[str, Any] = {"goal_milliseconds": GOAL, "repeats": repeats}
    medians = []
    with tempfile.TemporaryDirectory(dir=folder) as name:
        for count in (0, entries):
            path = Path(name, f"{count}.sqlite")
            with Ledger.open(path, create=True) as ledger:
                ledger._db.execute("PRAGMA synchronous = OFF")
                grow(ledger, count)
            disk = synchronization(Path(name), repeats)
            result = measure(path, repeats) | {"synchronize_4_KiB": disk}
            body[f"milliseconds_with_{count}_entries"] = result
            print(f"{count} entries, {path.stat().st_size / 1e6:.0f} MB; milliseconds:")
            for what, row in result.items():
                say({what: row})
            medians.append(result["charge_and_seal"]["median"])
        with Ledger.open(path) as ledger:
            body["verify_seconds"] = clocked(ledger.verify)().wall
        body["megabytes"] = path.stat().st_size / 1e6
        print(f"  verify {body['verify_seconds']:.1f} s")
    report(output, body | {"sqlite": sqlite3.sqlite_version})
    raise typer.Exit(int(max(medians) > GOAL))


if __name__ == "__main__":
    typer.run(main)
