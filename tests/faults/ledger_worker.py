"""Processes that use a ledger and come to harm; each prints what happened as JSON.

python ledger_worker.py kills LEDGER SEED COUNT [--anchor FILE]    children killed, one by one
python ledger_worker.py steps LEDGER --anchor FILE    one killed at each step of the anchor
python ledger_worker.py race LEDGER PART    charge what is named on each line of the input
python ledger_worker.py share LEDGER NAME LIMIT    charge 0.1 until refused
python ledger_worker.py once LEDGER NAME [--user UID] [--file-size BYTES]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flower_ldp.accounting.ledger import Charge, Ledger, Limit
from flower_ldp.accounting.ledger.anchor import FileAnchor
from flower_ldp.errors import BudgetExhausted, LedgerError, RefusalError
from flower_ldp.privacy import PrivacyEvent, Unit

EVENT = PrivacyEvent("signds", 0.1)
#: A child lives this long at most, in seconds: some charges and releases.
LIFETIME = 0.08


def charge(message: str) -> Charge:
    return Charge("data", 7, message, "train", b"request", (EVENT,))


def release(ledger: Ledger, message: str, limit: float, out: int | None = None) -> str:
    """Charge, draw, seal and release one message, telling of each step."""

    def tell(*words: str) -> None:
        if out is not None:
            os.write(out, (" ".join(words) + "\n").encode())

    receipt = ledger.charge(charge(message), [Limit(Unit.CLIENT, "life", limit)])
    report = receipt.report
    if report is None:
        tell("charged", message)
        report = os.urandom(40) * 5
        ledger.seal(receipt, report)
    tell("released", message, report.hex())
    return report.hex()


def try_again(ledger: Ledger, message: str, out: int) -> None:
    try:
        release(ledger, message, 1e6, out)
    except RefusalError:
        os.write(out, f"refused {message}\n".encode())


def child(path: Path, name: int, redeliver: list[str], out: int, anchor: FileAnchor | None) -> None:
    """Release without end, after the messages that were under way before."""
    with Ledger.open(path, anchor=anchor) as ledger:
        for message in redeliver:
            try_again(ledger, message, out)
        number = 0
        while True:
            os.write(out, f"asked {name}-{number}\n".encode())
            release(ledger, f"{name}-{number}", 1e6, out)
            number += 1


def kills(path: Path, anchor: FileAnchor | None, seed: int, count: int) -> list[list[str]]:
    """Start and kill children; return all the lines that they told."""
    moments = random.Random(seed)
    told: list[list[str]] = []
    with Ledger.open(path, create=True) as ledger:
        if anchor is not None:
            ledger.make_anchor(anchor)
    asked: list[str] = []
    least = longest = LIFETIME if anchor is None else 4 * LIFETIME
    for name in range(count):
        inward, outward = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(inward)
            try:
                child(path, name, asked[-2:], outward, anchor)
            finally:
                os._exit(3)
        os.close(outward)
        end = time.monotonic() + moments.uniform(0, longest)
        text = b""
        while (left := end - time.monotonic()) > 0:
            if select.select([inward], [], [], left)[0]:
                part = os.read(inward, 65_536)
                if not part:
                    break
                text += part
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            raise RuntimeError(f"child {name} ended by itself: {text[-300:]!r}")
        while part := os.read(inward, 65_536):
            text += part
        os.close(inward)
        # Where other work slows children down, so that they die before they begin, they get longer.
        longest = max(least, longest / 1.05) if text else 1.25 * longest
        lines = [line.split() for line in text.decode().splitlines()]
        asked += [words[1] for words in lines if words[0] == "asked"]
        told += lines
        if anchor is not None:
            mark = anchor.read()
            told.append(["anchored", str(mark and mark.entries)])
    return told


def steps(path: Path, anchor: FileAnchor) -> list[dict[str, object]]:
    """Kill one child at each step of the way from a charge to its report."""
    with Ledger.open(path, create=True) as ledger:
        ledger.make_anchor(anchor)
        release(ledger, "first", 1e6)
    found: list[dict[str, object]] = []
    while True:
        message, (inward, outward) = f"step-{len(found)}", os.pipe()
        pid = os.fork()
        if pid == 0:
            with Ledger.open(path, anchor=anchor) as ledger:
                die_at(len(found))
                release(ledger, message, 1e6, outward)
            os._exit(0)
        os.close(outward)
        _, status = os.waitpid(pid, 0)
        with os.fdopen(inward) as lines:
            told = [line.split()[0] for line in lines]
        mark = anchor.read()
        with Ledger.open(path, anchor=anchor) as ledger:
            found.append(
                {
                    "killed": os.WIFSIGNALED(status),
                    "told": told,
                    "anchored": mark and mark.entries,
                    "entries": ledger.verify().entries,
                }
            )
        if not os.WIFSIGNALED(status):
            return found


def die_at(step: int) -> None:
    """Have this process killed at the so many-th call on which an anchor rests."""
    left = [step]

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return call(*given, **named)

        return wrapped

    for name in ("open", "fsync", "replace"):
        setattr(os, name, dying(getattr(os, name)))


def race(path: Path, part: str) -> None:
    """Charge all that one example may cost, once for each data that is named."""
    print("ready", flush=True)
    limits = [Limit(Unit.EXAMPLE, "life", 1.0)]
    event = PrivacyEvent("m", 1.0, unit=Unit.EXAMPLE)
    with Ledger.open(path, durable=False) as ledger:
        for line in sys.stdin:
            asked = Charge(f"{line.strip()}{part}", 7, "m", "train", b"request", (event,))
            try:
                ledger.charge(asked, limits)
            except BudgetExhausted:
                print(0, flush=True)
            else:
                print(1, flush=True)


def share(path: Path, name: str, limit: float) -> int:
    """Release until the budget is gone; return how many reports left."""
    released = 0
    print("ready", flush=True)
    sys.stdin.readline()
    with Ledger.open(path) as ledger:
        while True:
            try:
                release(ledger, f"{name}-{released}", limit)
            except BudgetExhausted:
                return released
            released += 1


def once(path: Path, name: str, user: int | None, file_size: int | None) -> str:
    """Try one release; return how it ended."""
    if file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    if user is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    try:
        with Ledger.open(path, create=True) as ledger:
            release(ledger, name, 1e6)
    except LedgerError as error:
        return str(error)
    return "released"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["kills", "steps", "race", "share", "once"])
    parser.add_argument("ledger", type=Path)
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--anchor", type=lambda text: FileAnchor(Path(text)))
    parser.add_argument("--user", type=int)
    parser.add_argument("--file-size", type=int)
    options = parser.parse_args()
    result: object
    if options.what == "kills":
        result = kills(options.ledger, options.anchor, *map(int, options.rest))
    elif options.what == "steps":
        result = steps(options.ledger, options.anchor)
    elif options.what == "race":
        race(options.ledger, options.rest[0])
        return
    elif options.what == "share":
        result = share(options.ledger, options.rest[0], float(options.rest[1]))
    else:
        result = once(options.ledger, options.rest[0], options.user, options.file_size)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
