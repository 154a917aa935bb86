"""Flower's grid, over nodes in this very process."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from flower_ldp.simulation import flower
from flower_ldp.simulation.nodes import Nodes


class InProcessGrid(Grid):
    """Sends messages to virtual nodes, one after another and in the order they were sent.

    A message is worked on when its reply is asked for, by the thread that asks. So a time limit
    leaves the rest of a round unanswered, and what is asked for later comes late, as it does from
    real nodes; and with one thread everything happens in one order.

    Parameters
    ----------
    nodes : Nodes
        Who answers.
    done : callable, optional
        Is called after each answer with the number of messages that wait.
    """

    def __init__(self, nodes: Nodes, done: Callable[[int], None] | None = None) -> None:
        self._nodes = nodes
        self._run = flower.make_run(nodes.run_id)
        self._done = done
        self._numbers = itertools.count(1)
        self._waiting: deque[Message] = deque()
        self._replies: dict[str, Message] = {}
        self._asked: set[str] = set()
        self._lock = threading.RLock()

    def set_run(self, run: Run) -> None:
        """Take another description of the same run.

        Raises
        ------
        ValueError
            If it is another run.
        """
        if run.run_id != self._nodes.run_id:
            raise ValueError(f"this grid is of run {self._nodes.run_id}, got run {run.run_id}")
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message; ``Message(...)`` does the same."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the identities of all nodes."""
        return list(self._nodes.ids)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return their identities.

        Raises
        ------
        ValueError
            For what no SuperLink takes: a reply, or a message without time to live.
        """
        names = []
        for message in messages:
            where = message.metadata
            if where.reply_to_message_id or not where.ttl > 0 or where.run_id != self.run.run_id:
                raise ValueError(f"no message of this run's server: {where}")
            name = f"{next(self._numbers):032x}"
            flower.name_message(message, name)
            with self._lock:
                self._waiting.append(message)
                self._asked.add(name)
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Work until the messages are answered; return the replies, each once."""
        return self._pull(message_ids, lambda: False)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return the replies that are there in time.

        An app that runs is not interrupted: the time limit is looked at between two messages.
        """
        end = None if timeout is None else time.monotonic() + timeout
        return self._pull(
            self.push_messages(messages), lambda: end is not None and time.monotonic() >= end
        )

    def _pull(self, message_ids: Iterable[str], stop: Callable[[], bool]) -> list[Message]:
        names = list(dict.fromkeys(message_ids))
        with self._lock:
            missing = {name for name in names if name in self._asked} - self._replies.keys()
            while missing and not stop():
                missing.discard(self._work())
            found = [self._replies.pop(name) for name in names if name in self._replies]
            self._asked -= {reply.metadata.reply_to_message_id for reply in found}
        return found

    def _work(self) -> str:
        """Have the first message that waits answered; return its identity."""
        message = self._waiting.popleft()
        name = message.metadata.message_id
        if message.metadata.created_at + message.metadata.ttl <= time.time():
            reply = Message(_too_late(), reply_to=message)
        else:
            reply = self._nodes.answer(message)
        flower.name_message(reply, f"{next(self._numbers):032x}")
        self._replies[name] = reply
        if self._done is not None:
            self._done(len(self._waiting))
        return name


def _too_late() -> Error:
    return Error(code=flower.TOO_LATE, reason="the message's time to live has passed")
