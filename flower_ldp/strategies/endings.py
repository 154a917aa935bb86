"""Ends of runs that could only go on in vain, each with its cause in words.

A run is stopped where no private reports come that it could learn from, and where going on would
cost clients budget or privacy for nothing: raw replies of apps without the gate, apps that fail
(:mod:`flower_ldp.strategies.health`), and a run at whose end nothing was learned.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from flwr.app import MessageType, MetricRecord
from flwr.serverapp.strategy import Result

from flower_ldp.refusals import REFUSED_REHEARSAL, is_code
from flower_ldp.strategies.replies import HINTS, ReplyFilter

__all__ = ["RunStopped", "check_result", "stop_if_in_vain"]

_log = logging.getLogger("flwr")
_REJECTED = "rejected-"


class RunStopped(RuntimeError):  # noqa: N818  # a decision about the run
    """The run ended because going on would be in vain; the text says why and what to do."""


def stop_if_in_vain(replies: ReplyFilter, server_round: int) -> None:
    """Stop a run whose clients' app is known to be wrong after a round's replies were read.

    One raw reply among many of gates is left out as any other bad reply: one client must not be
    able to stop everybody's run, in a round without reports either. Its node is asked no more in
    this run, so that no second raw model crosses the network.

    Raises
    ------
    RunStopped
        If raw replies outnumber the reports and refusals of gates, or no report came and more
        gates say that their app failed its rehearsal than refuse for another cause.
    """
    refusals = sum(count for reason, count in replies.rejected.items() if is_code(reason))
    if len(replies.raw) > replies.accepted + refusals:
        raise RunStopped(
            f"round {server_round}: {len(replies.raw)} clients answered with raw replies and "
            f"{replies.accepted} with private reports. {raw_hint(replies.raw)} The run stops so "
            "that no more raw models cross the network"
        )
    rehearsals = replies.rejected[REFUSED_REHEARSAL]
    if replies.accepted == 0 and rehearsals > refusals - rehearsals:
        raise RunStopped(
            f"round {server_round}: the clients' app failed its rehearsal on its own public sample "
            f"data, and nothing was charged: {replies.rehearsed}"
        )


def raw_hint(nodes: list[int]) -> str:
    """Return what a raw reply means, and what to do."""
    first = ", ".join(map(str, nodes[:5])) + (", ..." if len(nodes) > 5 else "")
    return (
        f"The app of clients {first} has no LdpMod: write ClientApp(mods=[LdpMod(...)]). What they "
        "sent is not private, and no epsilon is counted for it."
    )


def check_result(result: Result, asked: Mapping[str, int]) -> None:
    """Raise unless a run that is over has learned something.

    Parameters
    ----------
    result : Result
        Of Flower's ``Strategy.start``.
    asked : mapping of str to int
        Messages that were sent, by type.

    Raises
    ------
    RunStopped
        If clients were asked to train and no round gave a model, or they were asked to evaluate
        alone and no round had a usable report.
    """
    trains, evaluates = asked.get(MessageType.TRAIN, 0), asked.get(MessageType.EVALUATE, 0)
    silent = evaluates and not _usable(result.evaluate_metrics_clientapp)
    rejected = _rejected(result)
    if rejected:
        _log.warning("replies rejected in this run: %s", _listed(rejected))
    if trains and not result.arrays:
        causes = _causes(result.train_metrics_clientapp)
        raise RunStopped(f"no round gave a model, and there is none to save. {causes}")
    if silent:
        causes = _causes(result.evaluate_metrics_clientapp)
        text = f"no evaluation had a usable report. {causes}"
        if not trains:
            raise RunStopped(text)
        _log.error(text)


def _usable(rounds: Mapping[int, MetricRecord]) -> bool:
    # What a strategy of another package returns counts as usable: it has no such number.
    return any(metrics.get("accepted", 1) for metrics in rounds.values())


def _causes(rounds: Mapping[int, MetricRecord]) -> str:
    """Return how often replies were rejected, by reason, and what each may mean."""
    found = _counts(rounds)
    if not found:
        return f"In {len(rounds)} rounds no reply was rejected, and none was of use."
    hints = [HINTS[reason] for reason, _ in found.most_common() if reason in HINTS]
    return ". ".join([f"Replies rejected: {_listed(found)}", *hints])


def _rejected(result: Result) -> Counter[str]:
    return _counts(result.train_metrics_clientapp) + _counts(result.evaluate_metrics_clientapp)


def _counts(rounds: Mapping[int, MetricRecord]) -> Counter[str]:
    """Return how many replies of some rounds were rejected, by reason."""
    found: Counter[str] = Counter()
    for metrics in rounds.values():
        for name, count in metrics.items():
            if name.startswith(_REJECTED) and isinstance(count, int | float):
                found[name.removeprefix(_REJECTED)] += int(count)
    return found


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{reason} {count:,} times" for reason, count in counts.most_common())
