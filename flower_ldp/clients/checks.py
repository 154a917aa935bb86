"""Plain mistakes in how a gate is set up, refused at once, and refusals logged once per run."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping

from flower_ldp.clients.calling import cut_middle
from flower_ldp.clients.rehearsal import Rehearsal
from flower_ldp.clients.release import Release
from flower_ldp.errors import RefusalError
from flower_ldp.own_log import say

_log = logging.getLogger("flower_ldp")
_MOST_REMEMBERED = 1_000
_said: OrderedDict[tuple[int, str], None] = OrderedDict()


def checked_releases(given: Mapping[str, Release | None]) -> dict[str, Release]:
    """Return the releases that were given, by type of message.

    Raises
    ------
    TypeError
        If one is a class, or opens no proposals.
    """
    for kind, release in given.items():
        if isinstance(release, type):
            raise TypeError(
                f"{kind} must be a release, got the class {release.__name__}: write "
                f"{kind}={release.__name__}()"
            )
        if release is not None and not callable(getattr(release, "open", None)):
            raise TypeError(
                f"{kind} must be a release, as SignDSRelease() or ProtectedEvalRelease(), got "
                f"{release!r:.100}; mechanisms and their epsilons are the server's to propose"
            )
    return {kind: release for kind, release in given.items() if release is not None}


def checked_rehearsal(given: Rehearsal | None) -> Rehearsal:
    """Return the rehearsal, or one of nothing.

    Raises
    ------
    TypeError
        If it is something else, as the function alone.
    """
    if given is not None and not isinstance(given, Rehearsal):
        raise TypeError(
            f"rehearsal must be a Rehearsal, as Rehearsal(train=...), got {given!r:.100}"
        )
    return Rehearsal() if given is None else given


def log_refusal(run_id: int, refusal: RefusalError) -> None:
    """Warn of a refusal, once per run, process and code; what is like it is logged as INFO."""
    key = (run_id, refusal.code)
    text = cut_middle(str(refusal))
    if key in _said:
        say(_log, logging.INFO, "refused: %s", text)
        return
    _said[key] = None
    while len(_said) > _MOST_REMEMBERED:
        _said.popitem(last=False)
    again = "refused: %s (refusals like it in this run are logged as INFO)"
    say(_log, logging.WARNING, again, text)
