"""What a process needs to know to be the nodes of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.clientapp import ClientApp

from flower_ldp.simulation.contexts import FIRST_NODE, Contexts, Folder, Keeping, Nowhere, Shelf
from flower_ldp.simulation.nodes import Nodes

Config = Mapping[str, bool | float | int | str]


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

    def nodes(self, app: ClientApp) -> Nodes:
        """Return the nodes, with an app that answers for each."""
        contexts = Contexts(
            self.run_id,
            self.count,
            self.run_config,
            self.node_config,
            shelf=self._shelf(),
            as_bytes=self.strict or self.folder is not None,
        )
        return Nodes(app, self.count, contexts, strict=self.strict, expire=self.expire)

    def _shelf(self) -> Shelf:
        if self.folder is not None:
            return Folder(self.folder)
        return Nowhere() if self.contexts == "drop" else {}
