"""Nodes that go and come, slow nodes and lost replies, for tests of strategies: all from a seed.

Nothing here keeps a state. What is decided follows from the seed, the node and a running number
alone, so the same faults befall the same messages however many workers there are and in whatever
order they finish.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

__all__ = ["Fate", "Faults"]


@dataclass(frozen=True)
class Fate:
    """What becomes of one message that a node takes.

    Parameters
    ----------
    late : float
        Seconds of the grid's time that the node takes to answer.
    lost : bool
        Whether the node answers and the reply never arrives. The node has done its work, and has
        paid for it.
    leaves : bool
        Whether the node goes away with the message in its hands: it does not answer, and a minute
        later the grid says that it is not there.

    Raises
    ------
    ValueError
        If ``late`` is negative or not finite.
    """

    late: float = 0.0
    lost: bool = False
    leaves: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.late < math.inf:
            raise ValueError(f"late must be in [0, inf), got {self.late!r}")


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong in a run, for the test of a strategy.

    Who is there holds for a *turn*. One begins when the strategy first asks for the nodes after it
    has sent messages, and with messages for which it did not ask. Turns are counted from 0: for a
    FedAvg without evaluation, turn ``r`` is round ``r + 1`` as long as enough nodes are there.
    Who waits for more nodes asks again and again: from the fourth question on, each begins a turn.

    Parameters
    ----------
    seed : int
        The same seed gives the same faults. No noise of a mechanism comes from it.
    away : float
        Probability that a node is not there, drawn for each node and turn, in [0, 1].
    schedule : callable, optional
        From a turn to the partitions that are there, or None for all of them; such as
        ``{2: {0, 1}}.get``. What ``away`` takes is taken from these.
    slow : float
        The share of nodes that are slow, in [0, 1]. A slow node is so for the whole run.
    slow_seconds : float
        How long a slow node takes to answer, by the grid's clock.
    lost : float
        Probability that a reply is lost, drawn for each message, in [0, 1].
    leaving : float
        Probability that a node goes away with a message in its hands, drawn for each message, in
        [0, 1].
    plan : callable, optional
        From a partition and the number of its message (from 0, in the order of sending) to what
        becomes of it, or None to have it drawn.

    Raises
    ------
    ValueError
        If a probability is none, or the seconds are negative or not finite.
    TypeError
        If the seed is no integer.

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
    away: float = 0.0
    schedule: Callable[[int], Collection[int] | None] | None = None
    slow: float = 0.0
    slow_seconds: float = 60.0
    lost: float = 0.0
    leaving: float = 0.0
    plan: Callable[[int, int], Fate | None] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"seed must be an integer, got {self.seed!r}")
        for name in ("away", "slow", "lost", "leaving"):
            value = getattr(self, name)
            if isinstance(value, bool) or not 0 <= value <= 1:
                raise ValueError(f"{name} must be a probability in [0, 1], got {value!r}")
        if not 0 <= self.slow_seconds < math.inf:
            raise ValueError(f"slow_seconds must be in [0, inf), got {self.slow_seconds!r}")

    def away_in(self, turn: int, nodes: int) -> frozenset[int]:
        """Return the partitions that are not there in a turn.

        Parameters
        ----------
        turn : int
            From 0.
        nodes : int
            How many partitions there are.
        """
        here = None if self.schedule is None else self.schedule(turn)
        scheduled = range(nodes) if here is None else frozenset(here)
        return frozenset(
            partition
            for partition in range(nodes)
            if partition not in scheduled or self._happens("away", self.away, partition, turn)
        )

    def fate(self, partition: int, number: int) -> Fate:
        """Return what becomes of a node's message.

        Parameters
        ----------
        partition : int
            The node's.
        number : int
            Of the message among those that were sent to this node, from 0.
        """
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
