"""What the grid asks for replies, and the plainest of it: one message after another, here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from flwr.app import Message


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
