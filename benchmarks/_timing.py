"""Calls timed side by side, in one process and in alternation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Taken:
    """Seconds of one call, on the wall's clock and of the processor."""

    wall: float
    cpu: float


def clocked(call: Callable[[], object]) -> Callable[[], Taken]:
    """Return a call that says how long it took."""

    def taken() -> Taken:
        start, used = time.perf_counter(), time.process_time()
        call()
        return Taken(time.perf_counter() - start, time.process_time() - used)

    return taken


def alternated(
    calls: Mapping[str, Callable[[], T]], repeats: int, warm_up: int = 1
) -> dict[str, list[T]]:
    """Call all in turn, each first in its turn, so that none profits from another's cache.

    Returns what calls returned, without those of the first turns, which warm up.
    """
    found: dict[str, list[T]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(warm_up + repeats):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            one = calls[name]()
            if number >= warm_up:
                found[name].append(one)
    return found


@dataclass(frozen=True)
class Times:
    """All calls of one kind."""

    taken: list[Taken]

    @property
    def median(self) -> float:
        """Return the median of the wall's seconds."""
        return statistics.median(one.wall for one in self.taken)

    @property
    def least(self) -> float:
        """Return the fastest call's."""
        return min(one.wall for one in self.taken)

    @property
    def cpu(self) -> float:
        """Return the median of the processor's seconds."""
        return statistics.median(one.cpu for one in self.taken)

    @property
    def least_cpu(self) -> float:
        """Return the least of the processor's seconds."""
        return min(one.cpu for one in self.taken)


def times(
    calls: Mapping[str, Callable[[], object]], repeats: int, warm_up: int = 1
) -> dict[str, Times]:
    """Time calls in alternation."""
    found = alternated({name: clocked(call) for name, call in calls.items()}, repeats, warm_up)
    return {name: Times(taken) for name, taken in found.items()}


def timed(call: Callable[[], object], repeats: int) -> Times:
    """Time one call by itself, from the first on."""
    return times({"": call}, repeats, warm_up=0)[""]
