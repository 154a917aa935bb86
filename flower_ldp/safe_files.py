"""Files that are replaced as a whole, and who else could change them.

A file is written under another name in its folder, synchronized, and then renamed. Whoever opens it
sees the old file or the new one, never a part. A process that is killed in between leaves
``.NAME.*.new``, which nobody reads.

**The way to a file.** Each step is taken within the folder before (``openat``), and links are
followed explicitly. What is checked is therefore what is used, despite concurrent renames. The file
itself is not opened. Windows has no such descriptors and bits.
"""

import errno
import logging
import os
import stat
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

# Nothing that is there already is opened, neither a file nor what a link leads to.
_FLAGS = (
    os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
)
_MOST_LINKS = 40
# A descriptor that opens nothing, where there is one.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_CLOEXEC", 0)
_FOLDER |= getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


def replacing(
    path: Path, *, mode: int = 0o666, keep: Path | None = None
) -> AbstractContextManager[BinaryIO]:
    """Write a file that replaces another when the block ends without an error.

    Parameters
    ----------
    path : Path
        Of the file; its folder exists. A link is replaced, and its target stays.
    mode : int
        Of the new file, less the process's umask.
    keep : Path, optional
        In the same folder: a name for the old file once the new one is complete.

    Yields
    ------
    BinaryIO
        The new file, for writing.

    Raises
    ------
    OSError
        If it cannot be written. The old file is then unchanged, but perhaps under ``keep``.
    """
    return _beside(path, mode, lambda new: give_name(new, path, keep=keep))


def give_name(new: Path, path: Path, *, keep: Path | None = None) -> None:
    """Rename a complete, synchronized file over another, which may get the name ``keep``.

    On OSError the old file is there, but perhaps under ``keep``.
    """
    if keep is not None:
        os.replace(path, keep)
    os.replace(new, path)
    sync_folder(path.parent)


def make_whole(path: Path, content: bytes) -> None:
    """Make a file with mode 0600 and this content, unless it exists."""

    def link(new: Path) -> None:
        with suppress(FileExistsError):  # a link is refused if the name is there
            os.link(new, path)

    with _beside(path, 0o600, link) as stream:
        stream.write(content)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Synchronize a folder's names, where folders can be opened."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _beside(path: Path, mode: int, publish: Callable[[Path], None]) -> Iterator[BinaryIO]:
    """Make a file beside ``path``, synchronize it, publish it, and remove its own name."""
    new = path.with_name(f".{path.name}.{os.urandom(6).hex()}.new")
    handle = os.open(new, _FLAGS, mode)
    try:
        with open(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        publish(new)
    finally:
        with suppress(FileNotFoundError):  # it has its own name by now
            os.unlink(new)


def mine() -> tuple[int, ...]:
    """Return the users who may change files of this process: itself and root."""
    if sys.platform == "win32":
        return (0,)
    return (0, os.geteuid())


def faults(
    what: str, status: os.stat_result, own: tuple[int, ...] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield who else could change a file, a folder or a link.

    Parameters
    ----------
    what : str
        Its name in a sentence.
    status : os.stat_result
        Its own.
    own : tuple of int, optional
        Who may own it; by default root and this user.

    Yields
    ------
    str, str
        ``"owner"``, ``"others"``, or ``"group"`` for the group alone; and a sentence.
    """
    if sys.platform == "win32":
        return
    mode, own = status.st_mode, own or mine()
    if status.st_uid not in own:
        yield (
            "owner",
            f"{what} belongs to user {status.st_uid}, this process runs as user {own[-1]}: give it "
            "to this user (chown)",
        )
    sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
    # The mode of a link says nothing.
    if mode & 0o022 and not sticky and not stat.S_ISLNK(mode):
        by = "others" if mode & 0o002 else "group"
        yield by, f"{what} can be written by others (mode {stat.S_IMODE(mode):04o}): chmod go-w"


@lru_cache(maxsize=64)
def warn_once(fault: str) -> None:
    """Log a fault that a simulation tolerates, once for each text."""
    logging.getLogger("flower_ldp").warning("simulation: %s", fault)


@dataclass(frozen=True)
class Step:
    """A folder, a link or finally a file on the way.

    Parameters
    ----------
    path : str
        Where it is.
    name : str
        Its name in its folder.
    folder : int or None
        Descriptor of that folder, open until the next step; None for the root.
    status : os.stat_result
        Of the opened folder, or of the link or file, which is not opened.
    """

    path: str
    name: str
    folder: int | None
    status: os.stat_result

    def __str__(self) -> str:
        return f"{'link' if stat.S_ISLNK(self.status.st_mode) else 'folder'} {self.path}"


def way(path: Path) -> Generator[Step]:
    """Yield each step to a path; close the iterator if not all are taken.

    Raises
    ------
    OSError
        If there is no such way, or it has more than 40 links.
    """
    # Not by abspath: after a link, ".." leads to where the link does.
    names, links = os.path.join(os.getcwd(), path).split(os.sep), 0
    with ExitStack() as stack:

        def enter(name: str, within: int | None) -> int:
            descriptor = os.open(name, _FOLDER, dir_fd=within)
            stack.callback(os.close, descriptor)
            return descriptor

        folders = [(os.sep, enter(os.sep, None))]
        yield Step(os.sep, os.sep, None, os.fstat(folders[0][1]))
        while names:
            name = names.pop(0)
            if name == ".." and len(folders) > 1:
                folders.pop()
            if name in ("", ".", ".."):
                continue
            parent, folder = folders[-1]
            here = os.path.join(parent, name)
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                yield Step(here, name, folder, status)
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink(name, dir_fd=folder)
                if target.startswith(os.sep):
                    del folders[1:]
                names = [*target.split(os.sep), *names]
            elif stat.S_ISDIR(status.st_mode) or any(one not in ("", ".") for one in names):
                folders.append((here, enter(name, folder)))
                yield Step(here, name, folder, os.fstat(folders[-1][1]))
            else:
                yield Step(here, name, folder, status)
                return
