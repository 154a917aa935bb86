"""What a round of training and one of evaluation share: propose, settle, and say what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from flwr.app import ConfigRecord, RecordDict

from flower_ldp.privacy import PrivacyEvent, Unit, compose
from flower_ldp.strategies.replies import ReplyFilter
from flower_ldp.strategies.sampling import ClientPool, Turn
from flower_ldp.strategies.spending import Proposals
from flower_ldp.strategies.stopping import stop_if_in_vain
from flower_ldp.wire.fields import PROPOSAL_KEY, Field

#: What a record of metrics is made from.
Metrics: TypeAlias = dict[str, int | float]


def propose(
    turn: Turn,
    content: RecordDict,
    fields: Mapping[str, Field],
    events: tuple[PrivacyEvent, ...],
    proposals: Proposals,
) -> list[int]:
    """Put a round's proposal into its content, choose who is asked, and count it.

    The choice counts as asked, so nothing may go wrong after it. Nodes that answered without a gate
    before are asked no more.
    """
    content[PROPOSAL_KEY] = ConfigRecord({**fields})
    if turn.pool is not None:
        proposals.inherit(turn.pool, turn.pool.asked(), events)
    nodes = [node for node in turn.choose() if node not in proposals.raw]
    for node in nodes:
        proposals.record(node, events)
    return nodes


def settle(
    replies: ReplyFilter,
    events: tuple[PrivacyEvent, ...],
    proposals: Proposals,
    pool: ClientPool | None,
    server_round: int,
) -> None:
    """Take off what was refused before it was charged, and what no gate ever saw.

    Raises
    ------
    RunStopped
        As :func:`~flower_ldp.strategies.stopping.stop_if_in_vain`.
    """
    for node in replies.uncharged:
        proposals.withdraw(node, events)
    for node in replies.raw:
        proposals.unguarded(node, events)
    if pool is not None:
        pool.put_back(replies.uncharged)
    stop_if_in_vain(replies, server_round)


def reply_metrics(replies: ReplyFilter) -> Metrics:
    """Return ``accepted``, ``rejected`` and ``rejected-<reason>``."""
    values: Metrics = {"accepted": replies.accepted, "rejected": replies.rejected.total()}
    for reason, count in sorted(replies.rejected.items()):
        values[f"rejected-{reason}"] = count
    return values


def cost_metrics(events: tuple[PrivacyEvent, ...], proposals: Proposals) -> Metrics:
    """Return ``epsilon-total`` and ``epsilon-round``, and the deltas where there are any."""
    asked = compose(events)[Unit.CLIENT]
    worst = proposals.worst().get(Unit.CLIENT)
    values: Metrics = {
        "epsilon-total": worst.epsilon if worst else 0.0,
        "epsilon-round": asked.epsilon,
    }
    if asked.delta or (worst and worst.delta):
        values["delta-total"] = worst.delta if worst else 0.0
        values["delta-round"] = asked.delta
    return values
