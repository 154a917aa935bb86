"""The file that remembers who was asked, which several servers may use at the same time.

Two servers overlap at a restart: the old one still asks while the new one has begun. So whoever
chooses holds the file's lock (``NAME.lock`` beside it) while it reads, chooses and writes.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from flower_ldp.errors import ConfigError, quoted
from flower_ldp.files import replacing

_KIND = "flower-ldp clients asked, 1"
# A server holds the lock for as long as it takes to read and write a file.
_WAIT_SECONDS = 60.0


class AskedFile:
    """How often each node was asked, as JSON on disk.

    Parameters
    ----------
    path : path-like
        Of the file. What a link leads to is read and written, and the link stays.
    times : int
        How often a client is asked at most.

    Raises
    ------
    ConfigError
        If ``path`` is a link that leads to nothing: a store that is away is no new run.
    """

    def __init__(self, path: str | Path, times: int) -> None:
        named = Path(path)
        if named.is_symlink() and not named.exists():
            raise ConfigError(f"{named} is a link that leads to nothing")
        self._path = Path(os.path.realpath(named))
        self._times = times

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other servers from choosing.

        Raises
        ------
        OSError
            If the folder is missing or has no locks, or another server keeps the lock.
        """
        if not self._path.parent.is_dir():  # the lock would make it
            raise FileNotFoundError(f"no folder {self._path.parent} for {self._path.name}")
        # Of its own for each call: threads exclude each other too.
        lock = FileLock(f"{self._path}.lock", timeout=_WAIT_SECONDS, is_singleton=False)
        try:
            lock.acquire()
        except NotImplementedError as error:
            raise OSError(f"the file system of {self._path.parent} has no locks") from error
        try:
            yield
        finally:
            lock.release()

    def read(self) -> Counter[int]:
        """Return how often each node was asked; of none if there is no file.

        Raises
        ------
        ConfigError
            If it is no such file, or of another number of answers.
        """
        path = self._path
        if not path.exists():
            return Counter()
        if not path.is_file():
            raise ConfigError(f"{path} is no file")
        try:
            text = path.read_text(encoding="ascii")
            body = json.loads(text, object_pairs_hook=_different)
            kind, of, asked = body["kind"], body["answers-per-client"], body["asked"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"{path} is no record of who was asked: {error}") from error
        if kind != _KIND or type(of) is not int or of != self._times:
            raise ConfigError(
                f"{path} is of a run that asks each client {quoted(of)} times, and this one asks "
                f"{self._times}: another run needs another file"
            )
        if not isinstance(asked, dict):
            raise ConfigError(f"{path} is no record of who was asked: {quoted(asked)}")
        return Counter({self._node(name): self._count(count) for name, count in asked.items()})

    def write(self, asked: Mapping[int, int]) -> None:
        """Have these numbers on disk, in place of those that are there.

        Raises
        ------
        OSError
            If they cannot be written. The old ones are then there.
        """
        body = {
            "kind": _KIND,
            "answers-per-client": self._times,
            "asked": {str(node): times for node, times in sorted(asked.items())},
        }
        with replacing(self._path) as file:
            file.write(json.dumps(body).encode("ascii"))

    def _node(self, name: str) -> int:
        """Return the node of a name: one that is written in two ways would be asked twice."""
        try:
            node = int(name)
        except ValueError:
            node = None
        if node is None or str(node) != name:
            raise ConfigError(f"{self._path} has {quoted(name)}, which is no node")
        return node

    def _count(self, count: object) -> int:
        if type(count) is not int or not 0 <= count <= self._times:
            raise ConfigError(
                f"{self._path} has {quoted(count)} for how often a node was asked, which is no "
                f"integer of 0 to {self._times}"
            )
        return count


def _different(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON; a name twice would have the later value count."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands in it twice")
    return found
