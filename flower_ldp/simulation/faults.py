"""Faults of nodes and replies, for tests of strategies, by a seed (docs/simulation_faults.md).

A fault depends on the seed, the node and a running number alone, so the same messages are affected
for any number of workers and any order. The grid's clock is simulated: it stands still while apps
work, and jumps when somebody waits.
"""

import hashlib
import heapq
import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from flwr.app import Message, Metadata

from flower_ldp.parameter_bounds import Bounded, Checked, check_fields
from flower_ldp.simulation import flower_api
from flower_ldp.simulation.grid import SLICE_SECONDS, Answering, Link

#: How long Flower takes a node for there after its last heartbeat: twice their interval.
HEARTBEAT_PATIENCE_SECONDS = 60.0
#: How long one pull lets the clock run at most: as long as Flower's own loop sleeps between two.
PULL_SECONDS = 3.0
#: How often a strategy asks for the nodes before it sends a round's messages: Flower's ask twice,
#: this package's a third time. Who asks more often waits for others.
LOOKS = 3


@dataclass(frozen=True)
class Fate(Checked):
    """The outcome of one message at a node.

    Parameters
    ----------
    late : float
        Seconds of the grid's time until the node answers; not negative, or ValueError.
    lost : bool
        Whether the reply is lost. The node has done its work and paid for it.
    leaves : bool
        Whether the node leaves before it answers; the grid reports it as gone a minute later.
    """

    late: Annotated[float, Bounded("[0, inf)")] = 0.0
    lost: bool = False
    leaves: bool = False


@dataclass(frozen=True, kw_only=True)
class Faults:
    """The faults of a run.

    A *turn*, counted from 0, begins when the strategy first asks for nodes after it has sent
    messages, or sends messages without asking. A strategy that waits for more nodes begins a turn
    with each question from the fourth on. Probabilities and shares are in [0, 1].

    Parameters
    ----------
    seed : int
        Of the faults alone, never of a mechanism's noise; TypeError for other types.
    away : float
        Probability that a node is absent, drawn for each node and turn.
    schedule : callable, optional
        Maps a turn to the partitions that are present, or None for all; such as ``{2: {0,
        1}}.get``. ``away`` applies to these.
    slow, slow_seconds : float
        Share of nodes that are slow for the whole run, and their time to answer by the grid's
        clock.
    lost, leaving : float
        Probabilities that a reply is lost, or that a node leaves before it answers, for each
        message.
    plan : callable, optional
        Maps a partition and its message's number (from 0) to a Fate, or None to draw it.

    Raises
    ------
    ValueError
        If a probability is not in [0, 1], or the seconds are negative or not finite.

    Examples
    --------
    >>> tenth = Faults(seed=3, away=0.1, slow=0.05, slow_seconds=90.0)
    >>> sorted(tenth.away_in(0, nodes=20))
    [4, 8]
    >>> only_two = Faults(schedule={1: {0, 1}}.get)
    >>> sorted(only_two.away_in(1, nodes=4)), sorted(only_two.away_in(2, nodes=4))
    ([2, 3], [])
    """

    seed: int = 0
    away: Annotated[float, Bounded("[0, 1]")] = 0.0
    schedule: Callable[[int], Collection[int] | None] | None = None
    slow: Annotated[float, Bounded("[0, 1]")] = 0.0
    slow_seconds: Annotated[float, Bounded("[0, inf)")] = 60.0
    lost: Annotated[float, Bounded("[0, 1]")] = 0.0
    leaving: Annotated[float, Bounded("[0, 1]")] = 0.0
    plan: Callable[[int, int], Fate | None] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"seed must be an integer, got {self.seed!r}")
        check_fields(self)

    def away_in(self, turn: int, nodes: int) -> frozenset[int]:
        """Return the partitions, of so many nodes, that are absent in a turn."""
        here = None if self.schedule is None else self.schedule(turn)
        scheduled = range(nodes) if here is None else frozenset(here)
        return frozenset(
            partition
            for partition in range(nodes)
            if partition not in scheduled or self._happens("away", self.away, partition, turn)
        )

    def fate(self, partition: int, number: int) -> Fate:
        """Return the Fate of a partition's message with this number, from 0."""
        planned = None if self.plan is None else self.plan(partition, number)
        if planned is not None:
            return planned
        return Fate(
            late=self.slow_seconds if self._happens("slow", self.slow, partition, 0) else 0.0,
            lost=self._happens("lost", self.lost, partition, number),
            leaves=self._happens("leaving", self.leaving, partition, number),
        )

    def _happens(self, what: str, probability: float, partition: int, number: int) -> bool:
        """Decide by a hash: a generator's state would depend on the order of the questions."""
        if probability == 0:
            return False
        text = f"{self.seed} {what} {partition} {number}".encode()
        draw = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
        return draw < probability * 2**64


@dataclass
class _Sent:
    partition: int
    number: int
    expires: float
    #: When the reply of a node that took the message is there; never, if it is lost.
    arrives: float = math.inf


class Unreliable(Link):
    """Passes messages on, and replies when they are due; also the grid's link."""

    longest_wait = math.inf  # it is over at once

    def __init__(self, answering: Answering, nodes: Sequence[int], faults: Faults) -> None:
        super().__init__(nodes, PULL_SECONDS)
        self._answering, self._faults = answering, faults
        self._lock = threading.Lock()
        self._now = 0.0
        self._turn, self._looks = -1, 0
        self._away: frozenset[int] = frozenset()
        self._numbers: Counter[int] = Counter()
        self._open: dict[str, _Sent] = {}
        self._held: dict[str, Message] = {}  # their nodes are away
        self._free: dict[int, float] = {}  # when a node has done what it took
        self._order = itertools.count()
        self._under_way: list[tuple[float, int, Message]] = []

    def now(self) -> float:
        """Return the simulated time in seconds."""
        return self._now

    def seconds_left(self, message: Metadata) -> float:
        """Return all of its time to live."""
        return message.ttl

    def node_ids(self) -> Iterable[int]:
        """Return the present nodes; begin a turn, unless one has just begun."""
        with self._lock:
            self._looks += 1
            if self._looks == 1 or self._looks > LOOKS:
                self._begin_turn()
            return [node for part, node in enumerate(self.nodes) if part not in self._away]

    def begin_push(self) -> None:
        """Begin a turn, unless nodes were asked for since the last messages."""
        with self._lock:
            if self._looks == 0:
                self._begin_turn()
            self._looks = 0

    def unreachable(self, waiting: Mapping[str, Metadata]) -> Collection[str]:
        """Return and forget the messages whose nodes are absent."""
        with self._lock:
            sent = ((name, self._open[name]) for name in waiting if name in self._open)
            found = [name for name, one in sent if one.partition in self._away]
            for name in found:
                self._forget(name)
        return found

    def submit(self, message: Message) -> None:
        """Take a message, for now or for its node's return."""
        where = message.metadata
        if where.dst_node_id not in self.nodes:
            self._answering.submit(message)
            return
        with self._lock:
            partition = self.nodes.index(where.dst_node_id)
            expires = self._now + self.seconds_left(where)
            sent = _Sent(partition, self._numbers[partition], expires)
            self._numbers[partition] += 1
            self._open[where.message_id] = sent
            if partition in self._away:
                self._held[where.message_id] = message
            else:
                self._deliver(message, sent)

    def answers(self, timeout: float) -> list[Message]:
        """Return due replies; if nobody works on one, let time pass."""
        while self._answering.pending:
            due = self._pass_on(self._answering.answers(SLICE_SECONDS))
            if due:
                return due
        with self._lock:
            self._jump(timeout)
            for name in [name for name, sent in self._open.items() if sent.expires <= self._now]:
                self._forget(name)
            if timeout == math.inf and not self._under_way and not self._answering.pending:
                # Nothing comes any more, and none of these ends.
                self._open = {name: self._open[name] for name in self._held}
            return self._due()

    @property
    def pending(self) -> int:
        """Messages that may be answered in this turn, lost ones included."""
        with self._lock:
            return max(self._answering.pending, len(self._open) - len(self._held))

    def _begin_turn(self) -> None:
        self._turn += 1
        self._away = self._faults.away_in(self._turn, len(self.nodes))
        for name in list(self._held):
            if self._open[name].partition not in self._away:
                self._deliver(self._held.pop(name), self._open[name])

    def _deliver(self, message: Message, sent: _Sent) -> None:
        fate = self._faults.fate(sent.partition, sent.number)
        begins = max(self._now, self._free.get(sent.partition, 0.0))
        if begins >= sent.expires:
            return  # a SuperLink no longer gives it out
        if fate.leaves:
            missed = begins + HEARTBEAT_PATIENCE_SECONDS
            if missed < sent.expires:
                error = flower_api.error_reply(
                    message.metadata, flower_api.NODE_GONE, "the node went away"
                )
                self._send(missed, error)
            return
        ends = self._free[sent.partition] = begins + fate.late
        if ends < sent.expires and not fate.lost:
            sent.arrives = ends
        self._answering.submit(message)

    def _pass_on(self, replies: Iterable[Message]) -> list[Message]:
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

    def _forget(self, name: str) -> None:
        del self._open[name]
        self._held.pop(name, None)

    def _jump(self, seconds: float) -> None:
        next_reply = self._under_way[0][0] if self._under_way else math.inf
        target = min(next_reply, self._now + seconds)
        if target < math.inf:
            # A wait too short for the clock's precision ends all the same.
            self._now = max(target, math.nextafter(self._now, math.inf) if seconds > 0 else target)
