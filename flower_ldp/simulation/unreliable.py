"""Nodes that go and come, slow nodes and lost replies, put between the grid and those who answer.

The clock is not the machine's. It stands still while apps work. It jumps when somebody waits for
replies and nothing is left to be done: to the next reply, or to the end of the wait. So a minute
costs nothing, and what happens does not depend on how fast the machine is.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Message, Metadata

from flower_ldp.simulation import flower
from flower_ldp.simulation.answering import SLICE_SECONDS, Answering, Link
from flower_ldp.simulation.faults import Faults

#: How long Flower takes a node for there after its last heartbeat: twice their interval.
HEARTBEAT_PATIENCE_SECONDS = 60.0
#: How long one pull lets the clock run at most: as long as Flower's own loop sleeps between two.
PULL_SECONDS = 3.0
#: How often a strategy asks for the nodes before it sends a round's messages: Flower's ask twice,
#: this package's a third time. Who asks more often waits for others.
LOOKS = 3


@dataclass
class _Sent:
    """A message that has no reply yet."""

    partition: int
    number: int
    expires: float
    #: When the reply of a node that took the message is there; never, if it is lost.
    arrives: float = math.inf


class Unreliable(Link):
    """Passes messages to those who answer, and their replies on when they are due.

    It is an :class:`~flower_ldp.simulation.answering.Answering` and the grid's link at once: who
    is there and what time it is follows
    from what was sent.

    Parameters
    ----------
    answering : Answering
        Who works on the messages that arrive.
    nodes : sequence of int
        The identities of partition 0, 1 and so on.
    faults : Faults
        What goes wrong.
    """

    longest_wait = math.inf  # it is over at once

    def __init__(self, answering: Answering, nodes: Sequence[int], faults: Faults) -> None:
        super().__init__(nodes)
        self._answering = answering
        self._faults = faults
        self._lock = threading.Lock()
        self._now = 0.0
        self._turn = -1
        self._looks = 0
        self._away: frozenset[int] = frozenset()
        self._numbers: Counter[int] = Counter()
        self._open: dict[str, _Sent] = {}
        self._held: dict[str, Message] = {}  # their nodes are away
        self._free: dict[int, float] = {}  # when a node has done what it took
        self._order = itertools.count()
        self._under_way: list[tuple[float, int, Message]] = []

    def now(self) -> float:
        """Return the seconds since the run began."""
        return self._now

    def seconds_left(self, message: Metadata) -> float:
        """Return all of its time to live: to make a message takes no time by this clock."""
        return message.ttl

    def node_ids(self) -> Iterable[int]:
        """Return the nodes that are there; begin a turn, unless messages are to follow in this."""
        with self._lock:
            self._looks += 1
            if self._looks == 1 or self._looks > LOOKS:
                self._begin_turn()
            return [node for part, node in enumerate(self._nodes) if part not in self._away]

    def begin_push(self) -> None:
        """Begin a turn, unless somebody has asked for the nodes since messages were sent."""
        with self._lock:
            if self._looks == 0:
                self._begin_turn()
            self._looks = 0

    def unreachable(self, waiting: Mapping[str, Metadata]) -> Collection[str]:
        """Return the messages whose nodes are away, and forget them: a SuperLink does so too."""
        with self._lock:
            found = [n for n in waiting if n in self._open and self._is_away(self._open[n])]
            for name in found:
                del self._open[name]
                self._held.pop(name, None)
        return found

    def submit(self, message: Message) -> None:
        """Take a message. Its node gets it now, or in the turn in which it is back."""
        where = message.metadata
        if where.dst_node_id not in self._nodes:
            self._answering.submit(message)
            return
        with self._lock:
            partition = self._nodes.index(where.dst_node_id)
            expires = self._now + self.seconds_left(where)
            sent = _Sent(partition, self._numbers[partition], expires)
            self._numbers[partition] += 1
            self._open[where.message_id] = sent
            if self._is_away(sent):
                self._held[where.message_id] = message
            else:
                self._deliver(message, sent)

    def answers(self, timeout: float) -> list[Message]:
        """Return replies that are due; if nobody works on one, let so many seconds pass at most."""
        while self._answering.pending:
            due = self._pass_on(self._answering.answers(SLICE_SECONDS))
            if due:
                return due
        with self._lock:
            self._jump(timeout)
            self._forget_what_is_over()
            if timeout == math.inf and not self._under_way and not self._answering.pending:
                # Nothing comes any more, and none of these ends.
                self._open = {name: self._open[name] for name in self._held}
            return self._due()

    @property
    def pending(self) -> int:
        """How many messages may be answered in this turn, as far as a server can know.

        Those whose reply was lost are among them.
        """
        with self._lock:
            return max(self._answering.pending, len(self._open) - len(self._held))

    def close(self) -> None:
        """Close who answers."""
        self._answering.close()

    def _begin_turn(self) -> None:
        self._turn += 1
        self._away = self._faults.away_in(self._turn, len(self._nodes))
        for name in [name for name in self._held if not self._is_away(self._open[name])]:
            self._deliver(self._held.pop(name), self._open[name])

    def _is_away(self, sent: _Sent) -> bool:
        return sent.partition in self._away

    def _deliver(self, message: Message, sent: _Sent) -> None:
        """Have a node take a message; it works on one after another."""
        fate = self._faults.fate(sent.partition, sent.number)
        begins = max(self._now, self._free.get(sent.partition, 0.0))
        if begins >= sent.expires:
            return  # a SuperLink no longer gives it out
        if fate.leaves:
            missed = begins + HEARTBEAT_PATIENCE_SECONDS
            if missed < sent.expires:
                error = flower.error_reply(message.metadata, flower.NODE_GONE, "the node went away")
                self._send(missed, error)
            return
        ends = self._free[sent.partition] = begins + fate.late
        if ends < sent.expires and not fate.lost:
            sent.arrives = ends
        self._answering.submit(message)

    def _pass_on(self, replies: Iterable[Message]) -> list[Message]:
        """Send replies that were given on their way; return those that are due."""
        with self._lock:
            for reply in replies:
                sent = self._open.get(reply.metadata.reply_to_message_id)
                if sent is None:  # to a node that does not exist, or given up
                    self._send(self._now, reply)
                elif sent.arrives < math.inf:
                    self._send(sent.arrives, reply)
            return self._due()

    def _send(self, arrives: float, reply: Message) -> None:
        heapq.heappush(self._under_way, (arrives, next(self._order), reply))

    def _due(self) -> list[Message]:
        found = []
        while self._under_way and self._under_way[0][0] <= self._now:
            found.append(heapq.heappop(self._under_way)[2])
            self._open.pop(found[-1].metadata.reply_to_message_id, None)
        return found

    def _forget_what_is_over(self) -> None:
        for name in [name for name, sent in self._open.items() if sent.expires <= self._now]:
            del self._open[name]
            self._held.pop(name, None)

    def _jump(self, seconds: float) -> None:
        """Let time pass until the next reply is there, or these seconds are over."""
        next_reply = self._under_way[0][0] if self._under_way else math.inf
        target = min(next_reply, self._now + seconds)
        if target < math.inf:
            # A wait too short for the clock's precision ends all the same.
            self._now = max(target, math.nextafter(self._now, math.inf) if seconds > 0 else target)
