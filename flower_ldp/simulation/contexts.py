"""What a process needs to know to be the nodes of a run, and where the nodes' contexts are kept."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig

from flower_ldp.simulation import flower

#: Where the contexts of nodes are between two messages.
Keeping = Literal["memory", "disk", "drop"]

Config = Mapping[str, bool | float | int | str]

#: Added to a partition's number: an identity that is no number of a partition, and the same in
#: each run, so that runs can be compared.
FIRST_NODE = 1_000_000
# What is kept begins with one of these: whether the app changed the node's configuration, which
# is written only then.
_UNCHANGED, _CHANGED = b"\0", b"\1"


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


@dataclass(frozen=True)
class Plan:
    """The nodes of a run, without their app.

    Parameters
    ----------
    run_id : int
        Of the run.
    count : int
        How many nodes; at least 1.
    run_config : mapping
        As every app of the run gets it.
    node_config : mapping
        Of every node, beside ``partition-id`` and ``num-partitions``.
    strict : bool
        Whether messages and contexts go through bytes, as over a network.
    contexts : {"memory", "disk", "drop"}
        Where a node's context is between two messages.
    folder : str, optional
        For contexts on disk; it is there.
    expire : bool
        Whether times to live pass at the nodes by the machine's clock, and not by another.

    Raises
    ------
    ValueError
        If there is no node, or no such place.
    """

    run_id: int
    count: int
    run_config: Config
    node_config: Config
    strict: bool = True
    contexts: Keeping = "memory"
    folder: str | None = None
    expire: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise ValueError(f"num_nodes must be an integer of at least 1, got {self.count!r}")
        if self.contexts not in ("memory", "disk", "drop"):
            raise ValueError(f"contexts must be memory, disk or drop, got {self.contexts!r}")
        if (self.contexts == "disk") != (self.folder is not None):
            raise ValueError("contexts on disk need a folder, and others none")

    @property
    def ids(self) -> range:
        """The nodes' identities."""
        return range(FIRST_NODE, FIRST_NODE + self.count)

    @property
    def as_bytes(self) -> bool:
        """Whether contexts are kept as Flower writes them.

        Then what an app keeps aside does not change them.
        """
        return self.strict or self.folder is not None

    def shelf(self) -> Folder | dict[int, Any]:
        """Return where contexts are kept."""
        return {} if self.folder is None else Folder(self.folder)


class Contexts:
    """Makes a node's context for a message, and keeps what the app left in it.

    A context that the app left as it was new takes no room.

    Parameters
    ----------
    plan : Plan
        Of the nodes.
    shelf : Folder or dict
        Where they are kept.
    """

    def __init__(self, plan: Plan, shelf: Folder | dict[int, Any]) -> None:
        self._plan = plan
        self._node_config: UserConfig = {**plan.node_config, "num-partitions": plan.count}
        self._shelf = shelf
        if plan.as_bytes:  # what Flower refuses in a configuration, it refuses before the run
            flower.context_to_bytes(self._new(FIRST_NODE))

    def take(self, node: int) -> Context:
        """Return a node's context."""
        kept: Any = self._shelf.get(node)
        if kept is None:
            return self._new(node)
        if not self._plan.as_bytes:
            kept.run_config = dict(self._plan.run_config)  # what an app did to it was refused
            return kept  # type: ignore[no-any-return]
        found = flower.context_from_bytes(kept[1:])
        if kept[:1] == _UNCHANGED:
            found.node_config = self._node_config_of(node)
        found.run_config = dict(self._plan.run_config)
        return found

    def keep(self, node: int, context: Context) -> None:
        """Keep a context as the app left it.

        Raises
        ------
        ValueError
            If the app changed its ``run_config``, as in Flower; or if there is a value that
            Flower does not write.
        """
        if context.run_config != self._plan.run_config:
            raise ValueError("the app changed its run_config, which Flower refuses")
        unchanged = context.node_config == self._node_config_of(node)
        if unchanged and not len(context.state) and self._shelf.get(node) is None:
            return
        kept: Any = self._written(context, unchanged) if self._plan.as_bytes else context
        if self._plan.contexts != "drop":
            self._shelf[node] = kept

    def _written(self, context: Context, unchanged: bool) -> bytes:
        config = {} if unchanged else context.node_config
        small = Context(context.run_id, context.node_id, config, context.state, {})
        return (_UNCHANGED if unchanged else _CHANGED) + flower.context_to_bytes(small)

    def _new(self, node: int) -> Context:
        return Context(
            run_id=self._plan.run_id,
            node_id=node,
            node_config=self._node_config_of(node),
            state=RecordDict(),
            run_config=dict(self._plan.run_config),
        )

    def _node_config_of(self, node: int) -> UserConfig:
        return {**self._node_config, "partition-id": node - FIRST_NODE}
