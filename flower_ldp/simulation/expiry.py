"""When messages that wait for a reply are given up."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection


class Expiry:
    """The ends of messages' times to live, the next one first.

    Parameters
    ----------
    clock : callable
        Returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends: list[tuple[float, str]] = []

    def add(self, name: str, end: float) -> None:
        """Note when a message ends, by the clock."""
        heapq.heappush(self._ends, (end, name))

    def seconds_left(self) -> float:
        """Return the seconds until the next end, which may have passed."""
        return self._ends[0][0] - self._clock() if self._ends else math.inf

    def passed(self, waiting: Collection[str]) -> list[str]:
        """Return the messages of those that wait whose time has passed, each once."""
        found = []
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            name = heapq.heappop(self._ends)[1]
            if name in waiting:
                found.append(name)
        # What was answered long before its end is forgotten here: a run has many messages.
        if len(self._ends) > 2 * len(waiting) + 1000:
            self._ends = [one for one in self._ends if one[1] in waiting]
            heapq.heapify(self._ends)
        return found
