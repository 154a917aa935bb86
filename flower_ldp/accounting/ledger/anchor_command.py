"""One call of an anchor's command: bounded in time and in what is read from it."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from flower_ldp.accounting.ledger.file_checks import check_way
from flower_ldp.errors import LedgerError, quoted
from flower_ldp.trusted_path import mine

_MOST = 1_024


def answer_of(argv: Sequence[str], given: str, timeout: float, name: str) -> str:
    """Return what a command prints, after it ended with status 0.

    What it writes to its standard error goes where this process's goes.

    Raises
    ------
    LedgerError
        If it cannot be run, fails, takes too long, or prints what is no short text.
    """
    try:
        _check_program(argv[0], name)
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=os.path.abspath(os.sep),
            start_new_session=True,
        )
    except OSError as error:
        raise LedgerError(f"{name} cannot be run: {error.strerror or error}") from error
    end = time.monotonic() + timeout
    try:
        content = _spoken(process, given, end)
        status = process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        if process.poll() is None:
            raise LedgerError(f"{name} did not end within {timeout:g} seconds") from error
        raise LedgerError(
            f"{name} ended, but its output was not closed within {timeout:g} seconds: what it "
            "starts and leaves running must have another one"
        ) from error
    finally:
        _end(process)
    if len(content) > _MOST or not content.isascii():
        raise LedgerError(f"{name} prints what is no mark: {quoted(content)}")
    if status != 0:
        raise LedgerError(f"{name} ended with status {status}")
    return content.decode("ascii")


def _check_program(path: str, name: str) -> None:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise LedgerError(f"{name} is no file")
    if sys.platform != "win32" and (status.st_uid not in mine() or status.st_mode & 0o022):
        raise LedgerError(
            f"{name} can be changed by others (user {status.st_uid}, mode "
            f"{stat.S_IMODE(status.st_mode):04o}): chown and chmod go-w"
        )
    check_way(Path(path), name)


def _spoken(process: subprocess.Popen[bytes], given: str, end: float) -> bytes:
    """Return the beginning of what the command prints until its output is closed.

    Raises
    ------
    subprocess.TimeoutExpired
        If that is not so at the moment ``end``. Nothing is left behind that waits for it.
    """
    if sys.platform == "win32":  # no waiting for pipes there; the process ends at the same moment
        return process.communicate(given.encode("ascii"), max(0.0, end - time.monotonic()))[0]
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError), process.stdin as stream:
            stream.write(given.encode("ascii"))
    found = b""
    if process.stdout is None:
        return found
    with process.stdout as output, selectors.DefaultSelector() as waiting:
        waiting.register(output, selectors.EVENT_READ)
        while len(found) <= _MOST:
            left = end - time.monotonic()
            if left <= 0 or not waiting.select(left):
                raise subprocess.TimeoutExpired(process.args, left)
            piece = os.read(output.fileno(), _MOST + 1 - len(found))
            if not piece:
                break
            found += piece
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and what it has started."""
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
