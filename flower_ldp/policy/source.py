"""A policy file's text, and who could have written it: read from one open descriptor.

The path is walked folder by folder (:mod:`flower_ldp.trusted_path`), and the file is opened within
the last. A name may be a symbolic link: then the folders of the link and those of the file are
judged alike.

The file and each folder on the way must belong to root or to this user, and nobody else may
write to them. A folder with the sticky bit, as ``/tmp``, may be written by all: there nobody
can rename or replace what is another's. Access lists of Linux show in the group's bits, which
are looked at; those of NFSv4 and of macOS are not looked at. Windows has no such bits: there
nothing is judged, and the operator sets the rights of the folder.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from flower_ldp.errors import ConfigError
from flower_ldp.trusted_path import mine, way
from flower_ldp.yaml_source import decoded, error_text

#: A policy is a few kilobytes; this keeps a wrong name from filling the memory.
MOST_BYTES = 2**20
_BY_GROUP, _BY_OTHERS = 0o020, 0o002
# Opening must not wait for the other end of a pipe, nor take a terminal over.
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_READ |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_NOFOLLOW", 0)


@dataclass(frozen=True)
class PolicyText:
    """What a policy file says, and what is wrong with the rights to change it.

    Parameters
    ----------
    text : str
        The file's text.
    faults : tuple of str
        Why others could change the policy; a sentence each.
    by_group : tuple of str
        The same for a file and folders that only their group may write to, as a clone has that
        was made with umask 002.
    """

    text: str
    faults: tuple[str, ...] = ()
    by_group: tuple[str, ...] = ()


def read_policy(path: Path) -> PolicyText:
    """Read a policy file and judge who could change it.

    Raises
    ------
    ConfigError
        If there is no regular file of at most 1 MiB of UTF-8 text, or it changes meanwhile.
    """
    try:
        if sys.platform == "win32":
            with open(os.open(path, _READ), "rb") as file:
                return PolicyText(_text(path, file))
        return _judged(path)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error_text(error)}") from error


def _judged(path: Path) -> PolicyText:
    found: list[tuple[bool, str]] = []
    with closing(way(path)) as steps:
        for step in steps:
            if stat.S_ISLNK(step.status.st_mode):
                found += _faults(f"link {step.path}", step.status)
            elif stat.S_ISDIR(step.status.st_mode):
                found += _faults(f"folder {step.path}", step.status)
            else:
                with open(os.open(step.name, _READ, dir_fd=step.folder), "rb") as file:
                    found += _faults(f"policy {step.path}", os.fstat(file.fileno()))
                    text = _text(path, file)
                told = [
                    tuple(what for group, what in found if group is one) for one in (False, True)
                ]
                return PolicyText(text, *told)
    raise ConfigError(f"{path}: cannot be read: Is a directory")


def _faults(what: str, status: os.stat_result) -> Iterator[tuple[bool, str]]:
    """Yield who could change something, and whether it is only its group."""
    mode, own = status.st_mode, mine()
    if status.st_uid not in own:
        yield (
            False,
            f"{what} belongs to user {status.st_uid}, this process runs as user {own[-1]}: it "
            "must be root's or this user's (chown)",
        )
    sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
    # The mode of a link says nothing.
    if mode & (_BY_GROUP | _BY_OTHERS) and not sticky and not stat.S_ISLNK(mode):
        told = f"{what} can be written by others (mode {stat.S_IMODE(mode):04o}): chmod go-w"
        yield not mode & _BY_OTHERS, told


def _text(path: Path, file: BinaryIO) -> str:
    """Return the text of an open file."""
    before = os.fstat(file.fileno())
    if stat.S_ISDIR(before.st_mode):
        raise ConfigError(f"{path}: cannot be read: Is a directory")
    if not stat.S_ISREG(before.st_mode):
        raise ConfigError(f"{path}: cannot be read: it is no regular file")
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{path}: cannot be read: it has more than {MOST_BYTES:,} bytes")
    if _version(os.fstat(file.fileno())) != _version(before):
        # Half of a new text may be a policy too, with a limit less.
        raise ConfigError(f"{path}: cannot be read: it changed meanwhile")
    return decoded(content, path)


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
