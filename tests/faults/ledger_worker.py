"""Processes that use a ledger and come to harm; each prints what happened as JSON.

python ledger_worker.py kills LEDGER SEED COUNT    children killed with SIGKILL, one by one
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
from pathlib import Path

from flower_ldp.accounting.ledger import Charge, Ledger, Limit
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


def child(path: Path, name: int, redeliver: list[str], out: int) -> None:
    """Release without end, after the messages that were under way before."""
    with Ledger.open(path) as ledger:
        for message in redeliver:
            try_again(ledger, message, out)
        number = 0
        while True:
            os.write(out, f"asked {name}-{number}\n".encode())
            release(ledger, f"{name}-{number}", 1e6, out)
            number += 1


def kills(path: Path, seed: int, count: int) -> list[list[str]]:
    """Start and kill children; return all the lines that they told."""
    moments = random.Random(seed)
    told: list[list[str]] = []
    with Ledger.open(path, create=True):
        pass
    asked: list[str] = []
    for name in range(count):
        inward, outward = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(inward)
            try:
                child(path, name, asked[-2:], outward)
            finally:
                os._exit(3)
        os.close(outward)
        end = time.monotonic() + moments.uniform(0, LIFETIME)
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
        lines = [line.split() for line in text.decode().splitlines()]
        asked += [words[1] for words in lines if words[0] == "asked"]
        told += lines
    return told


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
    parser.add_argument("what", choices=["kills", "share", "once"])
    parser.add_argument("ledger", type=Path)
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--user", type=int)
    parser.add_argument("--file-size", type=int)
    options = parser.parse_args()
    result: object
    if options.what == "kills":
        result = kills(options.ledger, *map(int, options.rest))
    elif options.what == "share":
        result = share(options.ledger, options.rest[0], float(options.rest[1]))
    else:
        result = once(options.ledger, options.rest[0], options.user, options.file_size)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
