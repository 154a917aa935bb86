"""Who else may change a file: its owner, its mode, its names, its folder, what lies beside it.

SQLite finds the journal of a killed commit by the name of the file. Under a second name there is
no journal, so half a commit is read as if it were whole, and a folder that others may write to
lets them take the journal away or put another file in place. Who may write to a folder above that
one can put another folder in place. These checks are made at every opening, by ``stat`` and by
descriptors that open nothing: closing any other descriptor of a SQLite file drops the locks that
this process holds on it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path

from flower_ldp.errors import LedgerError
from flower_ldp.trusted_path import faults, mine, warn_once, way

_PATH_ONLY = getattr(os, "O_PATH", None)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def check_owned(status: os.stat_result, name: str, *, anyone: bool = False) -> None:
    """Refuse what is no regular file of this user's alone, or has another name.

    Parameters
    ----------
    status : os.stat_result
        Of the file.
    name : str
        What the error calls it.
    anyone : bool
        Whoever owns it and may write to it.

    Raises
    ------
    LedgerError
        Naming what to do about it.
    """
    if not stat.S_ISREG(status.st_mode):
        raise LedgerError(f"{name} is not a regular file: name a file")
    for _, fault in () if anyone else faults(name, status, mine()[-1:]):
        raise LedgerError(f"{fault}. Find out who changed it (flower-ldp ledger verify)")
    if sys.platform != "win32" and status.st_nlink > 1:
        raise LedgerError(
            f"{name} has {status.st_nlink} names (hard links): a crash under one of them is not "
            "undone under the others. If another has a file NAME-journal beside it, move the "
            "ledger there first; then remove the others (find -samefile)"
        )


def check_folder(folder: Path, name: str, *, lenient: bool = False) -> None:
    """Refuse a folder that others may write to, and one that lies in such a folder.

    Parameters
    ----------
    folder : Path
        What the file lies in.
    name : str
        What the error calls the file.
    lenient : bool
        For simulations: of this folder alone it is only warned, once, if others may write to it.

    Raises
    ------
    LedgerError
        Naming what to do about it.
    """
    if not lenient:
        check_way(folder, name)
        return
    for by, fault in faults(f"folder {folder}", folder.stat()):
        if by == "owner":
            raise LedgerError(_replaceable(name, fault))
        warn_once(_replaceable(name, fault))


def check_way(path: Path, name: str) -> None:
    """Refuse a path on which somebody else can put another file, link or folder in place.

    Every folder on the way, those of links and of what they name included, must belong to root or
    to this user, and nobody else may write to it unless it is sticky. Then what is looked at here
    is what is opened afterwards. The file itself is not judged.

    Raises
    ------
    LedgerError
        Naming what to do about it.
    """
    if sys.platform == "win32":
        return
    # Of what is not there says who opens it.
    gone = contextlib.suppress(FileNotFoundError, NotADirectoryError)
    with contextlib.closing(way(path)) as steps, gone:
        for step in steps:
            if not stat.S_ISREG(step.status.st_mode):
                for _, fault in faults(str(step), step.status):
                    raise LedgerError(_replaceable(name, fault))


def _replaceable(name: str, fault: str) -> str:
    return f"{name} may be replaced: {fault}"


def check_mount(path: Path, name: str) -> None:
    """Refuse a file that is mounted by itself: elsewhere it has another name.

    Raises
    ------
    LedgerError
        Naming what to do about it.
    """
    if sys.platform == "win32":
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
    handle = os.open(path, _PATH_ONLY | _NO_LINK)
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
