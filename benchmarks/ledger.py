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

import argparse
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _environment import write_report

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


def figures(seconds: list[float]) -> Figures:
    """Return median, 99th percentile and minimum in milliseconds."""
    ordered = sorted(seconds)
    return {
        "median": 1e3 * statistics.median(ordered),
        "p99": 1e3 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        "least": 1e3 * ordered[0],
    }


def timed(repeats: int, work: Callable[[int], object]) -> Figures:
    """Time calls, each with its number."""
    seconds = []
    for number in range(repeats):
        start = time.perf_counter()
        work(number)
        seconds.append(time.perf_counter() - start)
    return figures(seconds)


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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--entries", type=int, default=1_000_000, help="of the large ledger")
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    body: dict[str, object] = {"goal_milliseconds": GOAL, "repeats": options.repeats}
    median = 0.0
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        for entries in (0, options.entries):
            path = folder / f"{entries}.sqlite"
            with Ledger.open(path, create=True) as ledger:
                ledger._db.execute("PRAGMA synchronous = OFF")
                start = time.perf_counter()
                grow(ledger, entries)
                grown = time.perf_counter() - start
            disk = synchronization(folder, options.repeats)
            result = measure(path, options.repeats)
            result["synchronize_4_KiB"] = disk
            body[f"milliseconds_with_{entries}_entries"] = result
            print(f"{entries} entries ({path.stat().st_size / 1e6:.0f} MB, made in {grown:.0f} s)")
            for what, row in result.items():
                line = ", ".join(f"{key} {value:.3f}" for key, value in row.items())
                print(f"  {what:<29} ms: {line}")
            median = max(median, result["charge_and_seal"]["median"])
        start = time.perf_counter()
        with Ledger.open(path) as ledger:
            ledger.verify()
        body["verify_seconds"] = time.perf_counter() - start
        body["megabytes"] = path.stat().st_size / 1e6
        print(f"  verify {body['verify_seconds']:.1f} s")
    body["sqlite"] = sqlite3.sqlite_version
    if options.output is not None:
        write_report(options.output, "benchmarks/ledger.py", arguments, body)
    return int(median > GOAL)


if __name__ == "__main__":
    raise SystemExit(main())
