"""The nodes' contexts between two messages: in memory, on disk, or dropped."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig

from flower_ldp.simulation import flower

#: Where the contexts of nodes are between two messages.
Keeping = Literal["memory", "disk", "drop"]

#: Added to a partition's number: an identity that is no number of a partition, and the same in
#: each run, so that runs can be compared.
FIRST_NODE = 1_000_000
# What is kept begins with one of these: whether the app changed the node's configuration, which
# is written only then.
_UNCHANGED, _CHANGED = b"\0", b"\1"


class Shelf(Protocol):
    """Keeps a node's context; a dictionary is one."""

    def get(self, node: int, /) -> Any:
        """Return what was kept for a node, or None."""

    def __setitem__(self, node: int, kept: Any, /) -> None: ...


class Nowhere:
    """Keeps nothing: each message finds a new context."""

    def get(self, node: int, /) -> None:
        """Return None."""

    def __setitem__(self, node: int, kept: Any, /) -> None:
        """Drop it."""


class Folder:
    """Keeps bytes in a file for each node.

    Parameters
    ----------
    path : path-like
        A folder that is there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def get(self, node: int, /) -> bytes | None:
        """Return what the file holds, or None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return (self._path / str(node)).read_bytes()
        return None

    def __setitem__(self, node: int, kept: bytes, /) -> None:
        """Write the file as a whole: a process that dies leaves the one before."""
        new = self._path / f"{node}.new"
        with contextlib.suppress(FileNotFoundError):  # the folder goes when the run ends
            new.write_bytes(kept)
            new.replace(self._path / str(node))


class Contexts:
    """Makes a node's context for a message, and keeps what the app left in it.

    A context that the app left as it was new takes no room.

    Parameters
    ----------
    run_id : int
        Of the run.
    count : int
        How many nodes there are.
    run_config, node_config : mapping
        Of the run, and of every node beside ``partition-id`` and ``num-partitions``.
    shelf : Shelf
        Where they are kept.
    as_bytes : bool
        Whether as Flower writes them, so that what an app keeps aside does not change them.
    """

    def __init__(
        self,
        run_id: int,
        count: int,
        run_config: Mapping[str, bool | float | int | str],
        node_config: Mapping[str, bool | float | int | str],
        *,
        shelf: Shelf,
        as_bytes: bool,
    ) -> None:
        self._run_id = run_id
        self._run_config = dict(run_config)
        self._node_config: UserConfig = {**node_config, "num-partitions": count}
        self._shelf = shelf
        self._as_bytes = as_bytes
        if as_bytes:  # what Flower refuses in a configuration, it refuses before the run
            flower.context_to_bytes(self._new(FIRST_NODE))

    def take(self, node: int) -> Context:
        """Return a node's context."""
        kept = self._shelf.get(node)
        if kept is None:
            return self._new(node)
        if not self._as_bytes:
            kept.run_config = dict(self._run_config)  # what an app did to it was refused
            return kept  # type: ignore[no-any-return]
        found = flower.context_from_bytes(kept[1:])
        if kept[:1] == _UNCHANGED:
            found.node_config = self._node_config_of(node)
        found.run_config = dict(self._run_config)
        return found

    def keep(self, node: int, context: Context) -> None:
        """Keep a context as the app left it.

        Raises
        ------
        ValueError
            If the app changed its ``run_config``, as in Flower; or if there is a value that
            Flower does not write.
        """
        if context.run_config != self._run_config:
            raise ValueError("the app changed its run_config, which Flower refuses")
        unchanged = context.node_config == self._node_config_of(node)
        if unchanged and not len(context.state) and self._shelf.get(node) is None:
            return
        self._shelf[node] = self._written(context, unchanged) if self._as_bytes else context

    def _written(self, context: Context, unchanged: bool) -> bytes:
        config = {} if unchanged else context.node_config
        small = Context(context.run_id, context.node_id, config, context.state, {})
        return (_UNCHANGED if unchanged else _CHANGED) + flower.context_to_bytes(small)

    def _new(self, node: int) -> Context:
        return Context(
            run_id=self._run_id,
            node_id=node,
            node_config=self._node_config_of(node),
            state=RecordDict(),
            run_config=dict(self._run_config),
        )

    def _node_config_of(self, node: int) -> UserConfig:
        return {**self._node_config, "partition-id": node - FIRST_NODE}
