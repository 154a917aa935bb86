"""An end to waiting: for nodes that are gone, and for a reply that stops halfway.

Flower's strategies wait for nodes without a limit: they ask the grid for its nodes once a
second until there are enough. And they wait past a round's ``timeout`` for the rest of a reply
that has begun to come. :func:`patient_grid` wraps the grid of any strategy so that both end.
The strategies of this package do it themselves, by :func:`patient_start`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast, runtime_checkable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from flower_ldp.strategies.collecting import send_and_receive
from flower_ldp.strategies.endings import check_result

__all__ = ["NodesGone", "patient_grid", "patient_start"]

#: As long as Flower waits for replies if it is not told a timeout.
WAIT_SECONDS = 3_600.0


class NodesGone(RuntimeError):  # noqa: N818  # a state of the federation
    """Too few nodes were there for too long."""


@runtime_checkable
class Expecting(Protocol):
    """A strategy that says more of a run before its first round."""

    def expect(self, rounds: int, arrays: ArrayRecord) -> None:
        """Learn of a run that begins: its rounds and its model."""


def patient_grid(
    grid: Grid,
    wait_seconds: float = WAIT_SECONDS,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Grid:
    """Return the same grid, except that waiting ends.

    Parameters
    ----------
    grid : Grid
        As the server app gets it. One that is patient already is returned as it is.
    wait_seconds : float
        How long nodes may be too few, in (0, inf); an hour by default. A node that died counts
        as there for up to a minute, until Flower misses its heartbeats.
    clock : callable
        Returns seconds.

    Returns
    -------
    Grid
        Its ``get_node_ids`` raises :class:`NodesGone` if it is still being asked
        ``wait_seconds`` after it was first asked, and nothing was sent in between. Its
        ``send_and_receive`` returns at its timeout what is there by then.

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
    if isinstance(grid, _PatientGrid):
        return grid
    return cast(Grid, _PatientGrid(grid, wait_seconds, clock))


def patient_start(
    self: Strategy,
    grid: Grid,
    initial_arrays: ArrayRecord,
    num_rounds: int = 3,
    timeout: float = WAIT_SECONDS,
    train_config: ConfigRecord | None = None,
    evaluate_config: ConfigRecord | None = None,
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
) -> Result:
    """Run the rounds: Flower's ``Strategy.start``, except that waiting ends, and vain runs do.

    Parameters
    ----------
    grid : Grid
        As the server app gets it. Nodes may be too few for an hour; pass
        ``patient_grid(grid, wait_seconds)`` for another time.
    initial_arrays : ArrayRecord
        The model before the first round.
    num_rounds : int
        How many rounds.
    timeout : float
        Seconds that a round waits for replies. What comes later is dropped.
    train_config, evaluate_config : ConfigRecord, optional
        Sent to clients.
    evaluate_fn : callable, optional
        From a round's number and the model to metrics, before the first round and after each.

    Returns
    -------
    Result
        The last model, and the metrics of each round.

    Raises
    ------
    NodesGone
        If too few nodes were there for too long.
    RunStopped
        If nothing was learned: no round gave a model, because every client refused, failed or has
        no gate; or, where clients fail or have no gate, before the last round.
    """
    patient = cast(_PatientGrid, patient_grid(grid))
    patient.asked.clear()
    if isinstance(self, Expecting):
        self.expect(num_rounds, initial_arrays)
    result = Strategy.start(
        self,
        cast(Grid, patient),
        initial_arrays,
        num_rounds,
        timeout,
        train_config,
        evaluate_config,
        evaluate_fn,
    )
    check_result(result, patient.asked)
    return result


class _PatientGrid:
    """Passes everything on; Flower's Grid has methods that differ between its releases."""

    def __init__(self, grid: Grid, wait_seconds: float, clock: Callable[[], float]) -> None:
        self._grid = grid
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._asked_first: float | None = None
        #: Messages sent in this run, by type.
        self.asked: Counter[str] = Counter()

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
        sent = list(messages)
        self.asked.update(message.metadata.message_type for message in sent)
        return send_and_receive(self._grid, sent, timeout)
