"""Client sampling: anew in every round, or each client a limited number of times in a run.

Being asked counts, even without an answer, because the client may have been charged. A refusal
before the charge does not. Clients are chosen last in a round, since an error would use them up.
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
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands in it twice")
    return found


class ClientPool:
    """Clients of a run, each asked a limited number of times.

    Share one pool between a training strategy and the evaluation around it to limit their sum.

    Parameters
    ----------
    answers_per_client : int
        In [1, 1,000,000]; ValueError otherwise.
    checkpoint : path-like, optional
        JSON file, in an existing folder, that remembers who was asked, before they are. A restarted
        server continues with the remaining clients, even while the old one still runs, under a lock
        (``NAME.lock``).

    Raises
    ------
    ConfigError
        If the checkpoint is malformed, for another number of answers, or a dangling link.

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
        """Return nodes that may be asked once more, ascending."""
        return [node for node in sorted(nodes) if self._asked[node] < self.answers_per_client]

    def answers_left(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """Return how often each node may still be asked."""
        return tuple(max(self.answers_per_client - self._asked[node], 0) for node in nodes)

    def asked(self) -> dict[int, int]:
        """Return how often nodes were asked."""
        return {node: times for node, times in sorted(self._asked.items()) if times > 0}

    def choose(self, nodes: Iterable[int], count: int, *, least: int = 0) -> list[int]:
        """Choose ``count`` nodes uniformly, or all that are left; none if fewer than ``least`` are.

        Nodes that were asked or refused less often come first. The choice is stored before it is
        returned.

        Raises
        ------
        OSError, ConfigError
            If the checkpoint cannot be locked, written or read; no node may be asked.
        """
        with self._held():
            left = self.left(set(nodes))
            chosen = self._draw(left, count) if len(left) >= least else []
            if chosen:
                self._remember(self._asked + Counter(chosen))
        return chosen

    def put_back(self, nodes: Iterable[int]) -> None:
        """Uncount one asking of each node, because it refused before the charge.

        Raises
        ------
        OSError, ConfigError
            As :meth:`choose`; the nodes still count as asked.
        """
        refused = Counter(set(nodes))
        if not refused:
            return
        with self._held():
            self._remember(self._asked - refused)
            self._refused += refused

    @contextmanager
    def _held(self) -> Iterator[None]:
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
        """Write the counts; the old ones stay if that fails."""
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
    """Return the pool for a strategy's argument."""
    return asked if asked is None or isinstance(asked, ClientPool) else ClientPool(asked)


@dataclass(frozen=True)
class RoundSample:
    """The clients available to one round, before sampling."""

    pool: ClientPool | None
    left: tuple[int, ...]
    wanted: int
    present: int
    least: int = 1

    @property
    def size(self) -> int:
        """Number of nodes to ask."""
        return min(self.wanted, len(self.left))

    def answers_left(self) -> tuple[int, ...] | None:
        """Return how often each node of ``left`` may still be asked."""
        return None if self.pool is None else self.pool.answers_left(self.left)

    def draw(self) -> list[int]:
        """Choose nodes, which count as asked."""
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
    spread: int | None = None,
) -> RoundSample | None:
    """Return the nodes that a round may ask, or None, after waiting for enough.

    With a pool, ``spread`` is how many rounds its answers are to last, in place of the fraction.
    """
    if fraction == 0.0:
        return None
    if pool is None:
        size = max(int(len(list(grid.get_node_ids())) * fraction), least)
        sampled, every = sample_nodes(grid, least_available, size)
        _log.info("%s nodes are asked, out of %s", len(sampled[:most]), len(every))
        return RoundSample(None, tuple(sampled[:most]), size, len(every)) if sampled else None
    _, present = sample_nodes(grid, max(least_available, least), least)
    left = tuple(pool.left(present))
    wanted = sum(pool.answers_left(left)) // spread if spread else int(len(present) * fraction)
    wanted = max(wanted if most is None else min(wanted, most), least)
    if len(left) < max(least, 1):
        _log.info(
            "every client was asked %s: no report is asked for in this round",
            "once" if pool.answers_per_client == 1 else f"{pool.answers_per_client} times",
        )
        return None
    return RoundSample(pool, left, wanted, len(present), max(least, 1)) if wanted > 0 else None
