"""What strategies here share around their own arithmetic: propose, account, move the model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from numpy.typing import NDArray

from flower_ldp.privacy import PrivacyEvent, Unit, compose
from flower_ldp.strategies.endings import raw_hint
from flower_ldp.strategies.replies import HINTS, Complaints, ReplyFilter
from flower_ldp.strategies.spending import Proposals
from flower_ldp.wire.fields import PROPOSAL_KEY, Field
from flower_ldp.wire.layout import ModelLayout

_log = logging.getLogger("flwr")


def propose(
    messages: list[Message],
    fields: Mapping[str, Field],
    events: tuple[PrivacyEvent, ...],
    proposals: Proposals,
) -> tuple[int, ...]:
    """Put a round's proposal into its messages, count it, and return who is asked.

    Messages to nodes that answered without a gate before are taken out: they are asked no more.
    """
    messages[:] = [one for one in messages if one.metadata.dst_node_id not in proposals.raw]
    record = ConfigRecord({**fields})
    nodes = []
    for message in messages:
        message.content[PROPOSAL_KEY] = record
        nodes.append(message.metadata.dst_node_id)
        proposals.record(nodes[-1], events)
    return tuple(nodes)


def settle(
    replies: ReplyFilter,
    events: tuple[PrivacyEvent, ...],
    proposals: Proposals,
    complaints: Complaints,
) -> None:
    """Take off what was refused before it was charged, and what no gate ever saw."""
    for node in replies.uncharged:
        proposals.withdraw(node, events)
    for node in replies.raw:
        proposals.unguarded(node, events)
    if replies.raw:
        _log.error(raw_hint(replies.raw))
    for reason in replies.rejected:
        if replies.accepted == 0 and reason in HINTS:
            complaints.hint(reason, HINTS[reason])


def account(
    replies: ReplyFilter,
    events: tuple[PrivacyEvent, ...],
    proposals: Proposals,
    complaints: Complaints,
    server_round: int,
) -> None:
    """Take off what cost nothing, and log what came back."""
    settle(replies, events, proposals, complaints)
    proposals.answered(events, replies.accepted)
    _log.info(
        "aggregate_train: accepted %d reports, rejected %d %s",
        replies.accepted,
        replies.rejected.total(),
        dict(replies.rejected) or "",
    )
    if replies.accepted == 0:
        _log.warning("no usable report in round %d: the model stays as it is", server_round)


def reply_metrics(replies: ReplyFilter, payload_bytes: int) -> dict[str, int | float]:
    """Return ``accepted``, ``rejected``, ``rejected-<reason>`` and ``bytes-up``."""
    values: dict[str, int | float] = {
        "accepted": replies.accepted,
        "rejected": replies.rejected.total(),
    }
    for reason, count in sorted(replies.rejected.items()):
        values[f"rejected-{reason}"] = count
    if replies.accepted:
        values["bytes-up"] = payload_bytes / replies.accepted
    return values


def cost_metrics(events: tuple[PrivacyEvent, ...], proposals: Proposals) -> dict[str, float]:
    """Return ``epsilon-round`` and ``epsilon-total``, and the deltas where there are any."""
    asked = compose(events)[Unit.CLIENT]
    worst = proposals.worst().get(Unit.CLIENT)
    values = {
        "epsilon-round": asked.epsilon,
        "epsilon-total": worst.epsilon if worst else 0.0,
    }
    if asked.delta or (worst and worst.delta):
        values["delta-round"] = asked.delta
        values["delta-total"] = worst.delta if worst else 0.0
    return values


def moved_model(
    layout: ModelLayout, model: Mapping[str, NDArray[Any]], step: NDArray[np.floating[Any]]
) -> ArrayRecord | None:
    """Return the model moved by a flat step, or None if that is not finite.

    A model with an infinity in it could never be trained again: no client would answer.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        moved = layout.add(model, step)
    if not all(np.isfinite(array).all() for array in moved.values()):
        return None
    return ArrayRecord({name: Array(array) for name, array in moved.items()})
