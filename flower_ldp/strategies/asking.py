"""Who is asked: anybody in every round, as Flower does it, or each client so many times in a run.

A client that is asked once spends one report's epsilon, and that is then the whole run's total.
Being asked counts, whether an answer comes or not: what was never answered may have been charged.
Of who was asked this server's memory is no promise to a client, whose own ledger and policy bound
it: a node that comes back under another name is a new one here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from flower_ldp.errors import ConfigError
from flower_ldp.files import replacing
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.subset import uniform_subset

_KIND = "flower-ldp clients asked, 1"


class ClientPool:
    """Clients of a run, of whom each is asked at most so many times.

    Give one pool to a training strategy and to the evaluation around it, and they share the
    clients: nobody is asked more often in all.

    Parameters
    ----------
    answers_per_client : int
        How often; at least 1.
    checkpoint : path-like, optional
        JSON file that remembers who was asked, written before they are. A server that begins
        again with it goes on with those who are left. Its folder exists.

    Raises
    ------
    ValueError
        If ``answers_per_client`` is not a positive integer.
    ConfigError
        If the checkpoint is there and is no such file, or is of another number of answers.

    Examples
    --------
    >>> pool = ClientPool(answers_per_client=1)
    >>> sorted(pool.choose([7, 8, 9], 2) + pool.choose([7, 8, 9], 2))
    [7, 8, 9]
    """

    def __init__(self, answers_per_client: int = 1, checkpoint: str | Path | None = None) -> None:
        times = answers_per_client
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise ValueError(f"answers_per_client must be an integer of at least 1, got {times!r}")
        self.answers_per_client = times
        self._file = None if checkpoint is None else Path(checkpoint)
        self._asked: Counter[int] = Counter()
        if self._file is not None and self._file.exists():
            self._asked = _read(self._file, times)

    def left(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes that may be asked once more, in ascending order."""
        return [node for node in sorted(nodes) if self._asked[node] < self.answers_per_client]

    def asked(self) -> dict[int, int]:
        """Return how often each node was asked so far; those that never were are left out."""
        return {node: times for node, times in sorted(self._asked.items()) if times > 0}

    def choose(self, nodes: Iterable[int], count: int) -> list[int]:
        """Choose who is asked now, uniformly, and remember it before it is returned.

        Those who were asked less often come first.

        Parameters
        ----------
        nodes : iterable of int
            Who is there.
        count : int
            How many are wanted.

        Returns
        -------
        list of int
            So many nodes, or all that are left if there are fewer.

        Raises
        ------
        OSError
            If the checkpoint cannot be written. Nobody may be asked then.
        """
        left, chosen = self.left(nodes), list[int]()
        for times in range(self.answers_per_client):
            same = [node for node in left if self._asked[node] == times]
            wanted = min(count - len(chosen), len(same))
            places = uniform_subset(RandomSource.from_os(), len(same), wanted)
            chosen += [same[place] for place in places.tolist()]
        self._asked.update(chosen)
        if chosen and self._file is not None:
            self._write(self._file)
        return chosen

    def _write(self, path: Path) -> None:
        body = {
            "kind": _KIND,
            "answers-per-client": self.answers_per_client,
            "asked": {str(node): times for node, times in sorted(self._asked.items())},
        }
        with replacing(path) as file:
            file.write(json.dumps(body).encode("ascii"))


def pool_of(asked: int | ClientPool | None) -> ClientPool | None:
    """Return the pool that a strategy's argument means; None asks anybody in every round.

    Raises
    ------
    ValueError
        If it is neither a pool nor a positive integer.
    """
    return asked if asked is None or isinstance(asked, ClientPool) else ClientPool(asked)


def _read(path: Path, times: int) -> Counter[int]:
    try:
        body = json.loads(path.read_text(encoding="ascii"))
        asked = Counter({int(node): int(count) for node, count in body["asked"].items()})
        kind, of = body["kind"], body["answers-per-client"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is no record of who was asked: {error}") from error
    if kind != _KIND or of != times:
        raise ConfigError(
            f"{path} is of a run that asks each client {of!r} times, and this one asks {times}: "
            "another run needs another file"
        )
    return asked
