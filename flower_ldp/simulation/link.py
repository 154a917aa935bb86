"""What the grid knows beside messages and replies: who is there, and what time it is."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from flwr.app import Metadata

#: No wait is longer at a time: on Windows a wait does not end when the user asks it to.
SLICE_SECONDS = 1.0


class Link(Protocol):
    """What stands between the server and its nodes."""

    #: For how many seconds replies are waited for at a time.
    longest_wait: float

    def node_ids(self) -> Iterable[int]:
        """Return the identities of the nodes that are there now."""

    def begin_push(self) -> None:
        """Note that messages are about to be sent."""

    def unreachable(self, waiting: Mapping[str, Metadata]) -> Collection[str]:
        """Return the messages, of those that wait, that are given up: their node is not there."""

    def now(self) -> float:
        """Return the time in seconds; only differences mean something."""

    def seconds_left(self, message: Metadata) -> float:
        """Return how much of its time to live a message has that is sent now."""


class Steady:
    """All nodes, always, and the machine's clock.

    Parameters
    ----------
    nodes : sequence of int
        Their identities.
    """

    longest_wait = SLICE_SECONDS

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes = nodes

    def node_ids(self) -> Iterable[int]:
        """Return all of them."""
        return self._nodes

    def begin_push(self) -> None:
        """Do nothing."""

    def unreachable(self, waiting: Mapping[str, Metadata]) -> Collection[str]:
        """Return none: a node that does not exist answers for itself."""
        del waiting
        return ()

    def now(self) -> float:
        """Return the seconds of a clock that nobody sets."""
        return time.monotonic()

    def seconds_left(self, message: Metadata) -> float:
        """Return what is left since the message was made."""
        return message.created_at + message.ttl - time.time()
