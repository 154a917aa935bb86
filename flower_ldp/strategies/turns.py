"""The clients of a round: who may be asked is known first, and who is asked is chosen last.

Between the two all is made that a configuration may not allow: the round's proposal, the outlook.
Whom a pool chose counts as asked, so an error that comes after it would use clients up.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from flwr.serverapp import Grid
from flwr.serverapp.strategy.strategy_utils import sample_nodes

from flower_ldp.strategies.asking import ClientPool

_log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Turn:
    """A round that can be asked for; nobody is chosen yet.

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

    def choose(self) -> list[int]:
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


def find_turn(
    grid: Grid,
    pool: ClientPool | None,
    fraction: float,
    least: int,
    least_available: int,
    *,
    most: int | None = None,
) -> Turn | None:
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
    Turn or None
        None where fewer than ``least`` are left, or none are wanted.
    """
    if fraction == 0.0:
        return None
    if pool is None:
        size = max(int(len(list(grid.get_node_ids())) * fraction), least)
        sampled, every = sample_nodes(grid, least_available, size)
        _log.info("%s nodes are asked, out of %s", len(sampled[:most]), len(every))
        return Turn(None, tuple(sampled[:most]), size, len(every)) if sampled else None
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
    return Turn(pool, left, wanted, len(present), max(least, 1)) if wanted > 0 else None
