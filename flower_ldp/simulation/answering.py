"""What the grid has beneath it: who answers, who is there, what time it is, and what is over.

Here too is the plainest of it: one message after another in this process, and all nodes, always.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from flwr.app import Message, Metadata


class Answering(Protocol):
    """Takes messages to nodes and gives their replies.

    The grid calls ``submit`` from any thread, and ``answers`` from one thread at a time. Neither
    holds a lock of the grid's while apps work.
    """

    def submit(self, message: Message) -> None:
        """Take a message, which has its identity; return at once."""

    def answers(self, timeout: float) -> list[Message]:
        """Return replies that are there, each once.

        Parameters
        ----------
        timeout : float
            How many seconds to wait for a first reply at most; it may be infinite.

        Returns
        -------
        list of Message
            None if none came meanwhile; the grid asks again as long as something is
            :attr:`pending`.
        """

    @property
    def pending(self) -> int:
        """How many of the messages that were taken a reply is still to come to.

        A reply that was lost is not among them: a grid that waits for nothing else gives it up.
        """

    def close(self) -> None:
        """Give back what it holds, at once. Nothing is asked of it afterwards."""


class Inline:
    """Works on messages in the thread that asks for replies, in the order they were sent.

    So everything happens in one order, a breakpoint in the app works, and an app that runs is not
    interrupted: a time limit is looked at between two messages.

    Parameters
    ----------
    answer : callable
        Returns a node's reply to a message.
    """

    def __init__(self, answer: Callable[[Message], Message]) -> None:
        self._answer = answer
        self._waiting: deque[Message] = deque()

    def submit(self, message: Message) -> None:
        """Take a message; it is worked on when its turn comes."""
        self._waiting.append(message)

    def answers(self, timeout: float) -> list[Message]:
        """Work on the first message that waits; return its reply."""
        del timeout  # what is begun is finished
        return [self._answer(self._waiting.popleft())] if self._waiting else []

    @property
    def pending(self) -> int:
        """How many messages wait."""
        return len(self._waiting)

    def close(self) -> None:
        """Forget what waits."""
        self._waiting.clear()


#: No wait is longer at a time: on Windows a wait does not end when the user asks it to.
SLICE_SECONDS = 1.0


class Link:
    """What stands between the server and its nodes: here all of them, always, and a clock.

    Parameters
    ----------
    nodes : sequence of int
        The identities of partition 0, 1 and so on.
    """

    #: For how many seconds replies are waited for at a time.
    longest_wait = SLICE_SECONDS

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes = nodes

    def node_ids(self) -> Iterable[int]:
        """Return the identities of the nodes that are there now."""
        return self._nodes

    def begin_push(self) -> None:
        """Note that messages are about to be sent."""

    def unreachable(self, waiting: Mapping[str, Metadata]) -> Collection[str]:
        """Return the messages, of those that wait, that are given up: their node is not there.

        A node that does not exist answers for itself.
        """
        del waiting
        return ()

    def now(self) -> float:
        """Return the time in seconds; only differences mean something."""
        return time.monotonic()

    def seconds_left(self, message: Metadata) -> float:
        """Return how much of its time to live a message has that is sent now."""
        return message.created_at + message.ttl - time.time()


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
