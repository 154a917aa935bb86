"""Flower's grid over nodes in this process."""

import heapq
import itertools
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from flwr.app import Message, Metadata, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from flower_ldp.errors import ConfigError
from flower_ldp.refusals import is_code
from flower_ldp.simulation import flower_api
from flower_ldp.simulation.progress import Watcher

if TYPE_CHECKING:
    from flower_ldp.simulation.faults import Unreliable
    from flower_ldp.simulation.workers import Pool

#: Takes messages to nodes and gives their replies. ``submit`` is called from any thread and returns
#: at once, ``answers`` from one thread at a time; it waits so many seconds for a first reply at
#: most. ``pending`` counts the messages that a reply is still to come to: one that was lost is not
#: among them.
Answering: TypeAlias = "Inline | Pool | Unreliable"

#: No wait is longer at a time: on Windows a wait does not end when the user asks it to.
SLICE_SECONDS = 0.5

_AtLast = Literal["stop", "give up", "wait"]


class Inline:
    """Answers messages in the thread that asks for replies, in the order of sending.

    A time limit is checked between two messages and interrupts no app.
    """

    def __init__(self, answer: Callable[[Message], Message]) -> None:
        self._answer = answer
        self._waiting: deque[Message] = deque()

    def submit(self, message: Message) -> None:
        """Take a message."""
        self._waiting.append(message)

    def answers(self, timeout: float) -> list[Message]:
        """Answer the first waiting message."""
        del timeout  # what is begun is finished
        return [self._answer(self._waiting.popleft())] if self._waiting else []

    @property
    def pending(self) -> int:
        """Number of waiting messages."""
        return len(self._waiting)

    def close(self) -> None:
        """Forget waiting messages."""
        self._waiting.clear()


class Link:
    """The network between the server and its nodes: here all of them, always, and a clock.

    ``pull_seconds`` is the longest wait of one pull. None waits while replies are to come, which
    makes a run in one thread happen in one order.
    """

    #: For how many seconds replies are waited for at a time.
    longest_wait = SLICE_SECONDS

    def __init__(self, nodes: Sequence[int], pull_seconds: float | None) -> None:
        self.nodes, self.pull_seconds = nodes, pull_seconds

    def node_ids(self) -> Iterable[int]:
        """Return the present nodes."""
        return self.nodes

    def begin_push(self) -> None:
        """Note that messages will be sent."""

    def unreachable(self, waiting: Mapping[str, Metadata]) -> Collection[str]:
        """Return the waiting messages whose nodes are absent."""
        del waiting
        return ()

    def now(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def seconds_left(self, message: Metadata) -> float:
        """Return the time to live of a message sent now."""
        return message.created_at + message.ttl - time.time()


class InProcessGrid(Grid):
    """Sends messages to virtual nodes, and returns their replies, each once.

    Several threads may pull: one asks for replies for all, the others sleep.

    Parameters
    ----------
    answering : Answering
        Takes messages and gives replies.
    run_id : int
    link : Link
        The present nodes, and the clock of time limits.
    outcomes : Counter of str
        Counts replies: refusals by their code, all others under "".
    seal : bool
        Whether contents become protobuf when they are sent, so that later changes of records have
        no effect.
    watcher : Watcher
        Is called for messages that are sent, and for replies.
    """

    #: That send_and_receive returns at its time limit, whatever is on its way: strategies need no
    #: watch of their own, which would not show this grid's time.
    keeps_time_limits = True

    def __init__(
        self,
        answering: Answering,
        run_id: int,
        link: Link,
        *,
        outcomes: Counter[str],
        seal: bool,
        watcher: Watcher,
    ) -> None:
        self._answering, self._link = answering, link
        self._run = Run.create_empty(run_id)
        self._sealer = flower_api.MessageEncoder() if seal else None
        self._outcomes, self._watcher = outcomes, watcher
        self._numbers = itertools.count(1)
        #: Held where what follows is read or changed, and told of replies and passing time.
        self._changed = threading.Condition()
        self._open: dict[str, Metadata] = {}  # of messages without a reply
        self._ends: list[tuple[float, str]] = []  # of their times to live, the next one first
        self._replies: dict[str, Message] = {}
        self._limits: list[float] = []  # until when threads that pull wait
        self._asking = False  # whether one of them asks for replies

    def set_run(self, run: Run) -> None:
        """Take another description of the same run; ValueError for another run."""
        if run.run_id != self._run.run_id:
            raise ValueError(f"this grid is of run {self._run.run_id}, got run {run.run_id}")
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    @property
    def now(self) -> float:
        """The time in seconds that time limits use."""
        return self._link.now()

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the present nodes; ConfigError if Flower's sampling waits for more."""
        awaited, there = flower_api.awaited_nodes(), len(self._link.nodes)
        if awaited > there:
            raise ConfigError(
                f"the app waits for {awaited} nodes, and this run has {there} for good: run "
                f"it with {awaited}, or lower min_train_nodes, min_evaluate_nodes and "
                "min_available_nodes"
            )
        return list(self._link.node_ids())

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, or none where :func:`outgoing` raises; return their identities."""
        messages = list(messages)
        # All of them before the first is sent: nobody pays for a push that failed.
        outgoing = [
            flower_api.outgoing(
                message, f"{next(self._numbers):032x}", self.run.run_id, self._sealer
            )
            for message in messages
        ]
        if outgoing:
            self._link.begin_push()
            with self._changed:
                self._watcher.sent(messages)
        for one in outgoing:
            where = one.metadata
            with self._changed:
                self._open[where.message_id] = where
                end = self._link.now() + self._link.seconds_left(where)
                heapq.heappush(self._ends, (end, where.message_id))
                self._answering.submit(one)
        return [one.metadata.message_id for one in outgoing]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there, once all are or no more come for now."""
        return self._pull(list(dict.fromkeys(message_ids)), self._link.pull_seconds, "stop")

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return the replies that arrive in time.

        Without a time limit, a reply that never comes is at once the error of its time to live.
        """
        names = list(self.push_messages(messages))
        return self._pull(names, timeout, "give up" if timeout is None else "wait")

    def _pull(self, names: list[str], seconds: float | None, at_last: _AtLast) -> list[Message]:
        """Wait for replies; call ``at_last`` if none will come by itself."""
        limit = math.inf if seconds is None else self._link.now() + seconds
        with self._changed:
            waiting = {name: self._open[name] for name in names if name in self._open}
            for name in self._link.unreachable(waiting):
                self._give_up(name, flower_api.NODE_GONE, "the node is not there")
            missing = list(waiting)
            self._limits.append(limit)
            try:
                while limit > self._link.now():
                    while missing and missing[-1] not in self._open:
                        missing.pop()
                    if not missing or not self._wait(missing, at_last):
                        break
                    self._expire()
            finally:
                self._limits.remove(limit)
                self._changed.notify_all()  # another may ask, which slept while this one did
            return [self._replies.pop(name) for name in names if name in self._replies]

    def _wait(self, missing: list[str], at_last: _AtLast) -> bool:
        """Wait for replies for a while; return whether more may come."""
        ends = [*self._limits, *(end for end, _ in self._ends[:1])]
        left = max(min(ends) - self._link.now(), 0)
        if not self._asking and self._answering.pending:
            self._ask(min(left, self._link.longest_wait))
        elif self._asking or at_last == "wait":
            self._changed.wait(min(left, SLICE_SECONDS))
        elif at_last == "give up":
            for name in missing:
                self._give_up(name, flower_api.TOO_LATE, flower_api.OVER)
        else:
            return False
        return True

    def _ask(self, timeout: float) -> None:
        self._asking = True
        self._changed.release()
        try:
            replies = self._answering.answers(timeout)
        finally:
            self._changed.acquire()
            self._asking = False
        self._expire()  # before: a reply that was too late is none
        for reply in replies:
            self._arrived(reply)
        self._changed.notify_all()

    def _arrived(self, reply: Message) -> None:
        name = reply.metadata.reply_to_message_id
        if self._open.pop(name, None) is None:
            return
        reason = (reply.error.reason or "") if reply.has_error() else ""
        self._outcomes[":".join(reason.split(":")[:3]) if is_code(reason) else ""] += 1
        flower_api.name_message(reply, f"{next(self._numbers):032x}")
        self._replies[name] = reply
        self._watcher.answered(len(self._open))

    def _expire(self) -> None:
        now = self._link.now()
        while self._ends and (self._ends[0][0] <= now or self._ends[0][1] not in self._open):
            self._give_up(heapq.heappop(self._ends)[1], flower_api.TOO_LATE, flower_api.OVER)

    def _give_up(self, name: str, code: int, reason: str) -> None:
        where = self._open.get(name)
        if where is not None:
            self._arrived(flower_api.error_reply(where, code, reason))
