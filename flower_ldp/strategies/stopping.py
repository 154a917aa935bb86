"""Ends of runs that could only go on in vain, each with its cause in words.

A run is stopped where no private reports come that it could learn from, and where going on would
cost clients budget or privacy for nothing: raw replies of apps without the gate, one refusal of all
clients, apps that fail (:mod:`flower_ldp.strategies.health`), and a run at whose end nothing was
learned. No end rests on fewer than half of the clients that were asked.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from flwr.app import MessageType, MetricRecord
from flwr.serverapp.strategy import Result

from flower_ldp.refusals import HINTS, is_code
from flower_ldp.strategies.replies import ReplyFilter

__all__ = ["RunStopped", "check_result", "stop_if_in_vain"]

_log = logging.getLogger("flwr")
_REJECTED = "rejected-"


class RunStopped(RuntimeError):  # noqa: N818  # a decision about the run
    """The run ended because going on would be in vain; the text says why and what to do."""


def stop_if_in_vain(replies: ReplyFilter, server_round: int) -> None:
    """Stop a run that was set up wrongly, after a round's replies; else log what they may mean.

    Only what more than half of the clients say that were asked stops a run, and their silence
    counts as no answer: one client must not be able to stop everybody's run. A node that sent a raw
    reply is asked no more, so that no second raw model crosses the network. A run that has learned
    something keeps its model, and refusals do not stop it.

    Raises
    ------
    RunStopped
        If raw replies outnumber the reports and refusals of gates, or nothing was learned so far
        and clients refuse with one code.
    """
    refusals = Counter({one: count for one, count in replies.rejected.items() if is_code(one)})
    half = replies.asked / 2
    if len(replies.raw) > max(replies.accepted + refusals.total(), half):
        raise RunStopped(
            f"round {server_round}: {len(replies.raw)} clients answered with raw replies and "
            f"{replies.accepted} with private reports. {raw_hint(replies.raw)} The run stops so "
            "that no more raw models cross the network"
        )
    if not replies.complaints.learned and max(refusals.values(), default=0) > half:
        causes = _causes(Counter(dict(refusals.most_common(1))))
        said = [text for text, count in replies.rehearsed.items() if count > half]
        raise RunStopped(f"round {server_round}: no report came. {': '.join([causes, *said])}")
    if replies.raw:
        _log.error(raw_hint(replies.raw))
    for reason in replies.rejected:
        if replies.accepted == 0 and reason in HINTS:
            replies.complaints.hint(reason, f"clients answer {reason}: {HINTS[reason]}")


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
    rejected = _counts(result.train_metrics_clientapp) + _counts(result.evaluate_metrics_clientapp)
    if rejected:
        _log.warning("replies rejected in this run: %s", _listed(rejected))
    if trains and not result.arrays:
        causes = _causes(_counts(result.train_metrics_clientapp))
        raise RunStopped(f"no round gave a model, and there is none to save. {causes}")
    if silent:
        causes = _causes(_counts(result.evaluate_metrics_clientapp))
        text = f"no evaluation had a usable report. {causes}"
        if not trains:
            raise RunStopped(text)
        _log.error(text)


def _usable(rounds: Mapping[int, MetricRecord]) -> bool:
    # What a strategy of another package returns counts as usable: it has no such number.
    return any(metrics.get("accepted", 1) for metrics in rounds.values())


def _causes(found: Counter[str]) -> str:
    """Return how often replies were rejected, by reason, and what each may mean."""
    if not found:
        return "No reply was rejected, and none was of use."
    told = [
        f"{reason} {count:,} times" + (f": {HINTS[reason]}" if reason in HINTS else "")
        for reason, count in found.most_common()
    ]
    return f"Replies rejected: {'; '.join(told)}"


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
