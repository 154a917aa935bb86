"""One step for all: a top and bottoms that were trained together go on together.

A step moves the top first and then each bottom, in as many processes and places as there are
parties. If one of them is killed in between, or is restored from an older copy, their files
are of different steps. Training would go on without a complaint, with bottoms and a top that
never belonged together. So each of them keeps the name of its last step, and the state one
step before; all that is asked of a party names the step that it must be at.

Nobody is ever more than one step from the others while every file is written at every step:
gradients of a step leave after the top's file is there, and the next step begins when all
parties have made this one. So there is always a step that all can be at, and a run begins by
putting those that are ahead back to it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from flwr.app import ConfigRecord, RecordDict

from flower_ldp.files import give_name
from flower_ldp.strategies.split.align import AlignedParty
from flower_ldp.strategies.split.exchange import Exchange, PartyError, payloads
from flower_ldp.strategies.split.top import SavedTop, Top
from flower_ldp.wire.embedding import REWIND, STEP_KEY

_log = logging.getLogger("flwr")


class TopFile:
    """A file that holds a top after each step, and beside it the top of the step before.

    Parameters
    ----------
    path : path-like
        The file; its folder must exist. The one before has ``.previous`` at its end.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._previous = self._path.with_name(self._path.name + ".previous")

    def save(self, top: SavedTop) -> None:
        """Write the top; what the file held becomes the one before."""
        new = self._path.with_name(self._path.name + ".next")
        top.save(new)
        give_name(new, self._path, keep=self._previous if self._path.exists() else None)

    def load(self, top: SavedTop) -> Iterator[bool]:
        """Read the files into the top, the last one first, and say whether it is the last.

        If there are none yet, the top stays as it is, once.
        """
        found = [path for path in (self._path, self._previous) if path.exists()]
        for path in found:
            top.load(path)
            yield path == self._path
        if not found:
            yield False


def saved(top: Top) -> SavedTop:
    """Return the top as one that can be saved.

    Raises
    ------
    TypeError
        If it cannot.
    """
    if not isinstance(top, SavedTop):
        raise TypeError(f"checkpoint needs a top with save and load, got {type(top).__name__}")
    return top


def settle(
    exchange: Exchange,
    parties: Sequence[AlignedParty],
    top: Top,
    file: TopFile | None = None,
    *,
    any_step: bool = False,
) -> list[AlignedParty]:
    """Put the top and all parties that learn to one step, the latest that all of them have.

    Parameters
    ----------
    exchange : Exchange
        To ask parties that are ahead to go back.
    parties : sequence of AlignedParty
        With the steps that they have.
    top : Top
        Is read from the file, if that exists. One that sends no gradients goes with any step.
    file : TopFile, optional
        Without it the top stays as it is.
    any_step : bool
        Leave parties where they are.

    Returns
    -------
    list of AlignedParty
        The parties at their step.

    Raises
    ------
    PartyError
        If there is no such step, or a party fails to go back.
    """
    tried: list[str] = []
    for is_last in [True] if file is None else file.load(saved(top)):
        free = any_step or top.at is None
        tried.append(top.at or "")
        if free or all(_has(party, tried[-1]) for party in parties):
            if file is not None and not is_last:
                file.save(saved(top))
            return list(parties) if free else _go_back(exchange, parties, tried[-1])
    raise _different(parties, tried)


def _learns(party: AlignedParty) -> bool:
    return party.claim.kind == "conditional"


def _has(party: AlignedParty, step: str) -> bool:
    return not _learns(party) or step in (party.step, *party.earlier)


def _go_back(exchange: Exchange, parties: Sequence[AlignedParty], step: str) -> list[AlignedParty]:
    ahead = {p.node: p.name for p in parties if _learns(p) and p.step != step}
    for name in ahead.values():
        _log.info("party %s goes back to step %s, the latest that all have", name, step or "none")
    content = {node: RecordDict({STEP_KEY: ConfigRecord({"after": step})}) for node in ahead}
    if content:
        payloads(exchange.ask(REWIND, content), ahead)
    return [replace(party, step=step) if party.node in ahead else party for party in parties]


def _different(parties: Sequence[AlignedParty], tried: Sequence[str]) -> PartyError:
    party = next(p for p in parties if _learns(p) and not _has(p, tried[0]))
    own = " or ".join(step or "none" for step in dict.fromkeys((party.step, *party.earlier)))
    return PartyError(
        party.name,
        f"its bottom is at step {own}, the top at {' or '.join(step or 'none' for step in tried)}: "
        "they were not trained together. Give the top's own checkpoint, or files of one step to "
        "all parties, or new folders to begin anew; any_step=True trains them as they are",
    )
