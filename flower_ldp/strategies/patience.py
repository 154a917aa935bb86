"""An end to waiting: a run whose nodes are gone stops with an error.

Flower's strategies wait for nodes without a limit: they ask the grid for its nodes once a
second until there are enough. :func:`patient_grid` wraps the grid of any strategy so that
this ends. How long a round waits for replies is another matter: the ``timeout`` of
``Strategy.start``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

from flwr.app import Message
from flwr.serverapp import Grid

__all__ = ["NodesGone", "patient_grid"]


class NodesGone(RuntimeError):  # noqa: N818  # a state of the federation
    """Too few nodes were there for too long."""


def patient_grid(
    grid: Grid, wait_seconds: float, *, clock: Callable[[], float] = time.monotonic
) -> Grid:
    """Return the same grid, except that waiting for nodes ends.

    Parameters
    ----------
    grid : Grid
        As the server app gets it.
    wait_seconds : float
        How long nodes may be too few, in (0, inf). A node that died counts as there for up
        to a minute, until Flower misses its heartbeats.
    clock : callable
        Returns seconds.

    Returns
    -------
    Grid
        Its ``get_node_ids`` raises :class:`NodesGone` if it is still being asked
        ``wait_seconds`` after it was first asked, and nothing was sent in between.

    Raises
    ------
    ValueError
        If ``wait_seconds`` is outside its interval.

    Examples
    --------
    >>> def main(grid, context):
    ...     strategy.start(patient_grid(grid, wait_seconds=300), arrays, timeout=600)
    """
    if not 0 < wait_seconds < math.inf:
        raise ValueError(f"wait_seconds must be in (0, inf), got {wait_seconds}")
    return cast(Grid, _PatientGrid(grid, wait_seconds, clock))


class _PatientGrid:
    """Passes everything on; Flower's Grid has methods that differ between its releases."""

    def __init__(self, grid: Grid, wait_seconds: float, clock: Callable[[], float]) -> None:
        self._grid = grid
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._asked_first: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def get_node_ids(self) -> Iterable[int]:
        nodes = list(self._grid.get_node_ids())
        now = self._clock()
        if self._asked_first is None:
            self._asked_first = now
        elif now - self._asked_first > self._wait_seconds:
            raise NodesGone(
                f"waited {now - self._asked_first:.0f} s for nodes: {len(nodes)} are there, "
                "and the strategy wants more"
            )
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._asked_first = None
        return self._grid.push_messages(messages)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        self._asked_first = None
        return self._grid.send_and_receive(messages, timeout=timeout)
