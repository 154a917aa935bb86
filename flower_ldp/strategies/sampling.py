"""Who a round samples: anybody in every round, or each client so many times in a run.

**The file** remembers who was asked. Two servers overlap at a restart: the old one still asks while
the new one has begun. So whoever chooses holds the file's lock (``NAME.lock`` beside it) while it
reads, chooses and writes.

**The pool.** A client that is asked once spends one report's epsilon, and that is then the whole
run's total. Being asked counts, whether an answer comes or not: what was never answered may have
been charged. A refusal from before the charge does not count, and who refuses is asked again after
all others. Of who was asked this server's memory is no promise to a client, whose own ledger and
policy bound it: a node that comes back under another name is a new one here.

**A round.** Who may be asked is known first, and who is asked is chosen last. Between the two all
is made that a configuration may not allow: the round's proposal, the outlook. Whom a pool chose
counts as asked, so an error that comes after it would use clients up.
"""

import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from flwr.serverapp import Grid
from flwr.serverapp.strategy.strategy_utils import sample_nodes

from flower_ldp.errors import ConfigError, quoted
from flower_ldp.mechanisms.random import RandomSource, uniform_subset
from flower_ldp.parameter_bounds import check_in
from flower_ldp.safe_files import replacing

#: What a file of another form raises.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
_KIND = "flower-ldp clients asked, 1"
# A server holds the lock for as long as it takes to read and write a file.
_WAIT_SECONDS = 60.0
#: No run has so many rounds.
MOST_ANSWERS = 1_000_000
_log = logging.getLogger("flwr")


def _read(path: Path, most: int) -> Counter[int]:
    """Return how often each node was asked; of none if there is no file.

    Parameters
    ----------
    path : Path
        Of the file.
    most : int
        How often a client is asked at most.

    Raises
    ------
    ConfigError
        If it is no such file, or of another number of answers.
    """
    if not path.exists():
        return Counter()
    if not path.is_file():
        raise ConfigError(f"{path} is no file")
    try:
        body = json.loads(path.read_text("ascii"), object_pairs_hook=_different)
        kind, of, asked = body["kind"], body["answers-per-client"], body["asked"]
        counts = {name: (int(name), times) for name, times in asked.items()}
    except _UNREADABLE as error:
        raise ConfigError(f"{path} is no record of who was asked: {error}") from error
    if kind != _KIND or type(of) is not int or of != most:
        raise ConfigError(
            f"{path} is of a run that asks each client {quoted(of)} times, and this one asks "
            f"{most}: another run needs another file"
        )
    for name, (node, times) in counts.items():
        # A node that is written in two ways would be asked twice.
        if str(node) != name or type(times) is not int or not 0 <= times <= most:
            raise ConfigError(
                f"{path} is no record of who was asked: node {quoted(name)}, "
                f"{quoted(times)} of 0 to {most} times"
            )
    return Counter(dict(counts.values()))


def _different(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON; a name twice would have the later value count."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands in it twice")
    return found


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
        exists. What a link leads to is read and written, and the link stays.

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
        check_in(f"[1, {MOST_ANSWERS}]", "answers_per_client", answers_per_client, int)
        self.answers_per_client = answers_per_client
        self._asked, self._refused = Counter[int](), Counter[int]()
        self._path: Path | None = None
        if checkpoint is not None:
            named = Path(checkpoint)
            if named.is_symlink() and not named.exists():  # a store that is away is no new run
                raise ConfigError(f"{named} is a link that leads to nothing")
            self._path = Path(os.path.realpath(named))
            self._asked = _read(self._path, answers_per_client)

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
        """Keep other pools of the same checkpoint from choosing, and know what they chose.

        Raises
        ------
        OSError
            If the folder is missing or has no locks, or another server keeps the lock.
        """
        path = self._path
        if path is None:
            yield
            return
        if not path.parent.is_dir():  # the lock would make it
            raise FileNotFoundError(f"no folder {path.parent} for {path.name}")
        # Of its own for each call: threads exclude each other too.
        lock = FileLock(f"{path}.lock", timeout=_WAIT_SECONDS, is_singleton=False)
        try:
            acquired = lock.acquire()
        except NotImplementedError as error:
            raise OSError(f"the file system of {path.parent} has no locks") from error
        with acquired:
            # Of each node the larger number.
            self._asked |= _read(path, self.answers_per_client)
            yield

    def _remember(self, asked: Counter[int]) -> None:
        """Have these numbers on disk in place of the old ones, which stay if that fails."""
        if self._path is not None:
            body = {
                "kind": _KIND,
                "answers-per-client": self.answers_per_client,
                "asked": {str(node): times for node, times in sorted(asked.items())},
            }
            with replacing(self._path) as file:
                file.write(json.dumps(body).encode("ascii"))
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


@dataclass(frozen=True)
class RoundSample:
    """The clients available to one round, before sampling.

    Parameters
    ----------
    pool : ClientPool or None
        Who was asked; None samples anew in every round.
    left : tuple of int
        Nodes that are there and may be asked once more; without a pool those that were sampled.
    wanted : int
        How many the round wants; at least 1.
    present : int
        Nodes that are there.
    least : int
        Fewer are not asked at all: another server may have asked some meanwhile.
    """

    pool: ClientPool | None
    left: tuple[int, ...]
    wanted: int
    present: int
    least: int = 1

    @property
    def size(self) -> int:
        """How many are asked: as many as are wanted, or all that are left."""
        return min(self.wanted, len(self.left))

    def answers_left(self) -> tuple[int, ...] | None:
        """Return how often each node of ``left`` may be asked still; None without a limit."""
        if self.pool is None:
            return None
        asked = self.pool.asked()
        return tuple(self.pool.answers_per_client - asked.get(node, 0) for node in self.left)

    def draw(self) -> list[int]:
        """Choose who is asked; from here on they count as asked.

        Raises
        ------
        OSError
            If the pool's checkpoint cannot be written. Nobody may be asked then.
        """
        if self.pool is None:
            return list(self.left)
        chosen = self.pool.choose(self.left, self.wanted, least=self.least)
        left = len(self.pool.left(self.left))
        _log.info("%s nodes are asked; %s of %s are left", len(chosen), left, self.present)
        return chosen


def sample_round(
    grid: Grid,
    pool: ClientPool | None,
    fraction: float,
    least: int,
    least_available: int,
    *,
    most: int | None = None,
) -> RoundSample | None:
    """Find who a round may ask; wait as Flower does until enough nodes are there.

    Parameters
    ----------
    grid : Grid
        Of the run.
    pool : ClientPool or None
        Who was asked; None samples as Flower does.
    fraction, least, least_available
        As in FedAvg: share of **all** nodes that are there, the least number of a round, and of
        nodes that have to be there.
    most : int, optional
        No more than so many; of a pool ``least`` at least.

    Returns
    -------
    RoundSample or None
        None where fewer than ``least`` are left, or none are wanted.
    """
    if fraction == 0.0:
        return None
    if pool is None:
        size = max(int(len(list(grid.get_node_ids())) * fraction), least)
        sampled, every = sample_nodes(grid, least_available, size)
        _log.info("%s nodes are asked, out of %s", len(sampled[:most]), len(every))
        return RoundSample(None, tuple(sampled[:most]), size, len(every)) if sampled else None
    _, present = sample_nodes(grid, max(least_available, least), least)
    wanted = int(len(present) * fraction)
    wanted = max(wanted if most is None else min(wanted, most), least)
    left = tuple(pool.left(present))
    if len(left) < max(least, 1):
        _log.info(
            "every client was asked %s: no report is asked for in this round",
            "once" if pool.answers_per_client == 1 else f"{pool.answers_per_client} times",
        )
        return None
    return RoundSample(pool, left, wanted, len(present), max(least, 1)) if wanted > 0 else None
