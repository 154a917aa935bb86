"""The app executor of a node with a sandbox: outside of it, starts each app in one of its own.

    python -m flower_ldp.node.sandbox.executor  < orders

An app finds nothing of the one before it, and knows no token but its own. The node's orders (where
it is, the secret by which it knows its executor) come on the standard input, so that no command
line has them.

What an app prints comes through a pipe: a log that an app could write to directly it could also
read, empty, or fill with lines that look like the node's. Each line begins with a mark, and
characters that steer a terminal are written out.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from typing import IO

from flower_ldp.node.apps import AppExecutor, run_executor, use
from flower_ldp.node.log import IN_AN_HOUR, Allowance, plain
from flower_ldp.node.sandbox.jail import Group, Jail
from flower_ldp.node.sandbox.view import SandboxMissing, Settings

_PR_SET_PDEATHSIG = 1
#: Seconds in which an app that has answered may hand in its context and end.
STAYS = 10.0
#: Begins each line of an app's.
MARK = b"[app] "
#: Longer lines are cut into several.
LONGEST = 4096
#: Bytes that one app may write: no more, so that it cannot fill the disk with the ledger on it.
LARGEST = 16 << 20
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def start_executor(
    settings: Settings, hidden: Mapping[str, Path], port: int, secret: bytes, group: Group
) -> Popen[bytes]:
    """Start the executor; it ends when the thread that called this does.

    Parameters
    ----------
    settings : Settings
        The operator's.
    hidden : mapping of str to Path
        What must not be in a sandbox.
    port : int
        Of the node's runtime API, on 127.0.0.1.
    secret : bytes
        By which the node knows its executor.
    group : Group
        Limits memory and processes.
    """
    process = Popen([sys.executable, "-m", __name__, str(os.getpid())], stdin=PIPE)
    orders = (asdict(settings), dict(hidden), port, secret.hex(), group.folders)
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # type: ignore[union-attr]
        pipe.write(json.dumps(orders, default=str).encode())
    return process


def main() -> None:
    """Carry out the orders on the standard input."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):  # the node ended meanwhile
        return
    settings, hidden, port, secret, folders = json.load(sys.stdin)
    settings = Settings(**settings)
    hidden = {name: Path(path) for name, path in hidden.items()}
    try:
        jail = Jail(settings, hidden, port, Group(tuple(map(Path, folders))))
    except SandboxMissing as error:
        sys.exit(f"no app is started: {error}")
    log, allowance = sys.stderr.buffer, Allowance(IN_AN_HOUR)

    def start(command: list[str], token: int) -> Popen[bytes]:
        process = jail.start(command, stdin=token, stdout=PIPE, stderr=STDOUT)
        if process.stdout is not None:
            copy_output(process.stdout, log, allowance)
        return process

    use(AppExecutor(start, jail.close, STAYS, settings.seconds or math.inf))
    run_executor(f"127.0.0.1:{port}", bytes.fromhex(secret))


def harmless(line: bytes) -> bytes:
    """Return a line as it is written to the log: marked, without colours and control characters."""
    text = line.rstrip(b"\r\n").decode(errors="backslashreplace")
    return MARK + plain(_COLOURS.sub("", text)).encode() + b"\n"


def copy_output(
    source: IO[bytes], target: IO[bytes], of_all: Allowance, largest: int = LARGEST
) -> threading.Thread:
    """Copy an app's output to a log until it ends, in a thread of its own; return that.

    What is beyond ``largest`` bytes, or what all apps together may write, is read, so that the
    app does not wait, and dropped.
    """

    def copy() -> None:
        left = largest
        with source:
            while line := source.readline(LONGEST):
                if left > 0:
                    left = left - len(line) if of_all.take(len(line)) else 0
                    target.write(harmless(line))
                    if left <= 0:
                        target.write(harmless(b"(what it writes from here on is dropped)"))
                    target.flush()

    thread = threading.Thread(target=copy, name="flower-ldp-app-output", daemon=True)
    thread.start()
    return thread


if __name__ == "__main__":
    main()
