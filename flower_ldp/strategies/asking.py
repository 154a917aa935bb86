"""Who is asked: anybody in every round, as Flower does it, or each client so many times in a run.

A client that is asked once spends one report's epsilon, and that is then the whole run's total.
Being asked counts, whether an answer comes or not: what was never answered may have been charged.
A refusal from before the charge does not count, and who refuses is asked again after all others.
Of who was asked this server's memory is no promise to a client, whose own ledger and policy bound
it: a node that comes back under another name is a new one here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.subset import uniform_subset
from flower_ldp.strategies.asked_file import AskedFile

#: No run has so many rounds.
MOST_ANSWERS = 1_000_000


class ClientPool:
    """Clients of a run, of whom each is asked at most so many times.

    Give one pool to a training strategy and to the evaluation around it, and they share the
    clients: nobody is asked more often in all.

    Parameters
    ----------
    answers_per_client : int
        How often; at least 1, and a million at most.
    checkpoint : path-like, optional
        JSON file that remembers who was asked, written before they are. A server that begins
        again with it goes on with those who are left, also while the old one still runs: both
        read it again before they choose, under a lock (``NAME.lock`` beside it). Its folder
        exists.

    Raises
    ------
    ValueError
        If ``answers_per_client`` is no such integer.
    ConfigError
        If the checkpoint is there and is no such file, is of another number of answers, or is a
        link that leads to nothing.

    Examples
    --------
    >>> pool = ClientPool(answers_per_client=1)
    >>> sorted(pool.choose([7, 8, 9], 2) + pool.choose([7, 8, 9], 2))
    [7, 8, 9]
    """

    def __init__(self, answers_per_client: int = 1, checkpoint: str | Path | None = None) -> None:
        times = answers_per_client
        is_integer = isinstance(times, int) and not isinstance(times, bool)
        if not is_integer or not 1 <= times <= MOST_ANSWERS:
            raise ValueError(
                f"answers_per_client must be an integer of 1 to {MOST_ANSWERS:,}, got {times!r}"
            )
        self.answers_per_client = times
        self._file = None if checkpoint is None else AskedFile(checkpoint, times)
        self._asked = Counter[int]() if self._file is None else self._file.read()
        self._refused = Counter[int]()

    def left(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes that may be asked once more, in ascending order."""
        return [node for node in sorted(nodes) if self._asked[node] < self.answers_per_client]

    def asked(self) -> dict[int, int]:
        """Return how often each node was asked so far; those that never were are left out."""
        return {node: times for node, times in sorted(self._asked.items()) if times > 0}

    def choose(self, nodes: Iterable[int], count: int, *, least: int = 0) -> list[int]:
        """Choose who is asked now, uniformly, and remember it before it is returned.

        Those who were asked less often come first, refusals included.

        Parameters
        ----------
        nodes : iterable of int
            Who is there.
        count : int
            How many are wanted.
        least : int
            Nobody is chosen if fewer are left.

        Returns
        -------
        list of int
            So many nodes, or all that are left if there are fewer. None was chosen by another
            pool of the same checkpoint as often as it may be.

        Raises
        ------
        OSError
            If the checkpoint cannot be locked or written. Nobody may be asked then.
        ConfigError
            If it is no such file by now. Nobody may be asked then.
        """
        with self._held():
            left = self.left(set(nodes))
            chosen = self._draw(left, count) if len(left) >= least else []
            if chosen:
                self._remember(self._asked + Counter(chosen))
        return chosen

    def put_back(self, nodes: Iterable[int]) -> None:
        """Take off one time of asking of each node: it refused before it was charged.

        Raises
        ------
        OSError
            If the checkpoint cannot be locked or written. They count as asked then.
        ConfigError
            If it is no such file by now. They count as asked then.
        """
        refused = Counter(set(nodes))
        if not refused:
            return
        with self._held():
            self._remember(self._asked - refused)
            self._refused += refused

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Keep other pools of the same checkpoint from choosing, and know what they chose."""
        if self._file is None:
            yield
            return
        with self._file.held():
            self._asked |= self._file.read()  # of each node the larger number
            yield

    def _remember(self, asked: Counter[int]) -> None:
        if self._file is not None:
            self._file.write(asked)
        self._asked = asked

    def _draw(self, left: list[int], count: int) -> list[int]:
        """Draw so many of these at most, those who were asked less often first."""
        chosen, called = list[int](), self._asked + self._refused
        for times in sorted({called[node] for node in left}):
            if len(chosen) >= count:
                break
            same = [node for node in left if called[node] == times]
            wanted = min(count - len(chosen), len(same))
            places = uniform_subset(RandomSource.from_os(), len(same), wanted)
            chosen += [same[place] for place in places.tolist()]
        return chosen


def pool_of(asked: int | ClientPool | None) -> ClientPool | None:
    """Return the pool that a strategy's argument means; None asks anybody in every round.

    Raises
    ------
    ValueError
        If it is neither a pool nor a positive integer.
    """
    return asked if asked is None or isinstance(asked, ClientPool) else ClientPool(asked)
