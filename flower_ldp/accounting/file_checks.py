"""Who else may change a file: its owner, its mode, its names, its folder, what lies beside it.

SQLite finds the journal of a killed commit by the name of the file. Under a second name there is
no journal, so half a commit is read as if it were whole, and a folder that others may write to
lets them take the journal away or put another file in place. These checks are made at every
opening, by ``stat`` and by descriptors that open nothing: closing any other descriptor of a SQLite
file drops the locks that this process holds on it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
from functools import cache
from pathlib import Path

from flower_ldp.errors import LedgerError

_log = logging.getLogger("flower_ldp")

_PATH_ONLY = getattr(os, "O_PATH", None)


def mine() -> tuple[int, ...]:
    """Return the users who may change what this process relies on: itself and root."""
    return (0, os.geteuid())


def check_owned(status: os.stat_result, name: str) -> None:
    """Refuse what is no regular file of this user's alone.

    Raises
    ------
    LedgerError
        Naming what to do about it.
    """
    if not stat.S_ISREG(status.st_mode):
        raise LedgerError(f"{name} is not a regular file: name a file")
    if os.name != "posix":
        return
    if status.st_uid != os.geteuid():
        raise LedgerError(
            f"{name} belongs to user {status.st_uid}, this process runs as user "
            f"{os.geteuid()}: run as its owner, or give it to this user (chown)"
        )
    if status.st_mode & 0o022:
        raise LedgerError(
            f"{name} can be written by others (mode {stat.S_IMODE(status.st_mode):04o}): check "
            "who changed it (flower-ldp ledger verify), then chmod 600"
        )
    check_links(status, name)


def check_links(status: os.stat_result, name: str) -> None:
    """Refuse a file that has another name.

    Raises
    ------
    LedgerError
        Naming what to do about it.
    """
    if os.name == "posix" and status.st_nlink > 1:
        raise LedgerError(
            f"{name} has {status.st_nlink} names (hard links): a crash under one of them is not "
            "undone under the others. If another has a file NAME-journal beside it, move the "
            "ledger there first; then remove the others (find -samefile)"
        )


def check_folder(folder: Path, name: str, *, lenient: bool = False) -> None:
    """Refuse a folder that others may write to, unless it is sticky.

    Parameters
    ----------
    folder : Path
        What the file lies in.
    name : str
        What the error calls the file.
    lenient : bool
        For simulations: a folder that the group may write to is only warned of, once.

    Raises
    ------
    LedgerError
        Naming what to do about it.
    """
    if os.name != "posix":
        return
    status = folder.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in mine():
        raise LedgerError(
            f"{name} lies in a folder of user {status.st_uid}, who may put another in its place: "
            f"give {folder} to this user (chown), or keep it elsewhere"
        )
    if mode & 0o022 and not mode & stat.S_ISVTX:
        text = (
            f"{name} lies in a folder that others may write to (mode {mode:04o}): they may put "
            f"another in its place. chmod go-w {folder}"
        )
        if not lenient:
            raise LedgerError(text)
        _warn(text)


@cache
def _warn(text: str) -> None:
    """Say something once."""
    _log.warning("simulation: %s", text)


def check_mount(path: Path, name: str) -> None:
    """Refuse a file that is mounted by itself: elsewhere it has another name.

    Raises
    ------
    LedgerError
        Naming what to do about it.
    """
    if os.name != "posix":
        return
    one: object = _mount(path)
    other: object = _mount(path.parent)
    if one is None:  # devices tell less: a union file system may give each file one of its own
        one, other = path.stat().st_dev, path.parent.stat().st_dev
    if one == other:
        return
    raise LedgerError(
        f"{name} is mounted by itself: its journal lies elsewhere than a crash would leave it. "
        "Mount the folder that it lies in"
    )


def _mount(path: Path) -> bytes | None:
    """Return the number of the mount that a path leads to; None where none is told."""
    if _PATH_ONLY is None or sys.platform != "linux":
        return None
    handle = os.open(path, _PATH_ONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{handle}", "rb") as lines:
            return next((line for line in lines if line.startswith(b"mnt_id:")), None)
    except FileNotFoundError:  # no /proc
        return None
    finally:
        os.close(handle)


def check_beside(path: Path, name: str, *, owned: bool) -> None:
    """Refuse a journal that is not this user's own, if it must be, and a log that no ledger has.

    Raises
    ------
    LedgerError
        Naming the file.
    """
    journal = path.with_name(f"{path.name}-journal")
    if owned:
        with contextlib.suppress(FileNotFoundError):
            check_owned(journal.lstat(), f"{name}: its journal {journal.name}")
    for end in ("-wal", "-shm"):
        log = path.with_name(path.name + end)
        if os.path.lexists(log):
            raise LedgerError(
                f"{name} has {log.name} beside it, which no ledger has: another program opened "
                "the file. Find out which, before anything is removed"
            )


def sync_folder(folder: Path) -> None:
    """Have a folder's names on disk."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
