"""Files that are whole at every moment, and on disk when the call is over.

A file is written under another name in its folder, brought to disk, and only then given its own.
Whoever opens that name sees the old file or the new one, never a part. A name is on disk once its
folder is. A process that is killed in between leaves ``.NAME.*.new`` behind, which nobody reads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

# Nothing that is there already is opened, neither a file nor what a link leads to.
_FLAGS = (
    os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
)


def replacing(
    path: Path, *, mode: int = 0o666, keep: Path | None = None
) -> AbstractContextManager[BinaryIO]:
    """Write a file that takes the place of another when the block ends without an error.

    Parameters
    ----------
    path : Path
        Of the file; its folder exists. A link is replaced, and what it leads to stays.
    mode : int
        Of the new file, less the process's umask.
    keep : Path, optional
        In the same folder: the old file gets this name once the new one is complete.

    Yields
    ------
    BinaryIO
        The new file, for writing.

    Raises
    ------
    OSError
        If it cannot be written. The old file is then as it was, but perhaps under ``keep``.
    """
    return _beside(path, mode, lambda new: give_name(new, path, keep=keep))


def give_name(new: Path, path: Path, *, keep: Path | None = None) -> None:
    """Have a file that is complete and on disk take the place of another in its folder.

    Parameters
    ----------
    new : Path
        Of the complete file.
    path : Path
        The name that it gets.
    keep : Path, optional
        What had that name gets this one first.

    Raises
    ------
    OSError
        If it cannot be renamed. The old file is then there, but perhaps under ``keep``.
    """
    if keep is not None:
        os.replace(path, keep)
    os.replace(new, path)
    sync_folder(path.parent)


def make_whole(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Make a file with this content, unless there is one: then that one stays.

    Parameters
    ----------
    path : Path
        Of the file; its folder exists.
    content : bytes
        All of it.
    mode : int
        Of the file, less the process's umask.

    Raises
    ------
    OSError
        If it cannot be made.
    """

    def link(new: Path) -> None:
        with suppress(FileExistsError):  # a link is refused if the name is there
            os.link(new, path)

    with _beside(path, mode, link) as stream:
        stream.write(content)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have a folder's names on disk, where folders can be opened."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _beside(path: Path, mode: int, publish: Callable[[Path], None]) -> Iterator[BinaryIO]:
    """Make a file beside ``path`` under a name that nobody else has; publish it once it is on disk.

    The name is removed at the end.
    """
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
