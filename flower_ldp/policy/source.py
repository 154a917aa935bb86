"""A policy file's text, and who could have written it: read from one open descriptor.

A path is walked folder by folder, and each folder and the file are opened within the one
before (``openat``), without following a link that was not looked at first. What is judged is
therefore what is read, whatever is renamed or linked meanwhile. A name may be a symbolic link:
then the folders of the link and those of the file are judged alike.

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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flower_ldp.errors import ConfigError
from flower_ldp.yaml_source import decoded, error_text

#: A policy is a few kilobytes; this keeps a wrong name from filling the memory.
MOST_BYTES = 2**20
_MOST_LINKS = 40
_BY_GROUP, _BY_OTHERS = 0o020, 0o002
# Opening must not wait for the other end of a pipe, nor take a terminal over.
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_READ |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_CLOEXEC", 0)
_FOLDER |= getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


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
            descriptor = os.open(path, _READ)
            with os.fdopen(descriptor, "rb", closefd=True):
                return PolicyText(_text(path, descriptor))
        walk = _Walk(path)
        with walk.opened() as descriptor:
            return PolicyText(_text(path, descriptor), tuple(walk.faults), tuple(walk.by_group))
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error_text(error)}") from error


def _text(path: Path, descriptor: int) -> str:
    """Return the text of an open file."""
    before = os.fstat(descriptor)
    if stat.S_ISDIR(before.st_mode):
        raise ConfigError(f"{path}: cannot be read: Is a directory")
    if not stat.S_ISREG(before.st_mode):
        raise ConfigError(f"{path}: cannot be read: it is no regular file")
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{path}: cannot be read: it has more than {MOST_BYTES:,} bytes")
    if _version(os.fstat(descriptor)) != _version(before):
        # Half of a new text may be a policy too, with a limit less.
        raise ConfigError(f"{path}: cannot be read: it changed meanwhile")
    return decoded(content, path)


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


@dataclass
class _Walk:
    """The way to a file from the root, each step within the folder before."""

    path: Path
    faults: list[str] = field(default_factory=list)
    by_group: list[str] = field(default_factory=list)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open the file; its descriptor and those of the folders are closed at the end."""
        with ExitStack() as stack:
            yield self._open(stack)

    def _open(self, stack: ExitStack) -> int:
        # Not by abspath: after a link, ".." leads to where the link does.
        names = os.path.join(os.getcwd(), self.path).split(os.sep)
        links = 0
        way: list[tuple[str, int]] = [self._root(stack)]
        while names:
            name = names.pop(0)
            if name == ".." and len(way) > 1:
                way.pop()
            if name in ("", ".", ".."):
                continue
            parent, folder = way[-1]
            here = os.path.join(parent, name)
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                links += 1
                if links > _MOST_LINKS:
                    raise ConfigError(f"{self.path}: cannot be read: too many links")
                self._owner(f"link {here}", found)  # its mode says nothing
                target = os.readlink(name, dir_fd=folder)
                if target.startswith(os.sep):
                    del way[1:]
                names = [*target.split(os.sep), *names]
                continue
            if not any(one not in ("", ".") for one in names) and not stat.S_ISDIR(found.st_mode):
                return self._file(stack, here, name, folder)
            way.append((here, self._enter(stack, here, name, folder)))
        raise ConfigError(f"{self.path}: cannot be read: Is a directory")

    def _root(self, stack: ExitStack) -> tuple[str, int]:
        root = os.open(os.sep, _FOLDER)
        stack.callback(os.close, root)
        self._judge(f"folder {os.sep}", os.fstat(root))
        return os.sep, root

    def _enter(self, stack: ExitStack, here: str, name: str, folder: int) -> int:
        descriptor = os.open(name, _FOLDER, dir_fd=folder)
        stack.callback(os.close, descriptor)
        self._judge(f"folder {here}", os.fstat(descriptor))
        return descriptor

    def _file(self, stack: ExitStack, here: str, name: str, folder: int) -> int:
        descriptor = os.open(name, _READ, dir_fd=folder)
        stack.callback(os.close, descriptor)
        self._judge(f"policy {here}", os.fstat(descriptor))
        return descriptor

    def _judge(self, what: str, status: os.stat_result) -> None:
        self._owner(what, status)
        writers = status.st_mode & (_BY_GROUP | _BY_OTHERS)
        if not writers or (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
            return
        found = self.faults if writers & _BY_OTHERS else self.by_group
        mode = stat.S_IMODE(status.st_mode)
        found.append(f"{what} can be written by others (mode {mode:04o}): chmod go-w")

    def _owner(self, what: str, status: os.stat_result) -> None:
        if sys.platform == "win32":
            return
        own = os.geteuid()
        if status.st_uid not in (0, own):
            self.faults.append(
                f"{what} belongs to user {status.st_uid}, this process runs as user {own}: it must "
                "be root's or this user's (chown)"
            )
