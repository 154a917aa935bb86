"""One round of SignDS as the server sees it: what was asked, and what came back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Message
from numpy.typing import NDArray

from flower_ldp.mechanisms.selection import Selection
from flower_ldp.mechanisms.signds import SelectionPlan
from flower_ldp.strategies.health import HealthWatch
from flower_ldp.strategies.replies import Complaints, ReplyFilter
from flower_ldp.wire.health import health_length
from flower_ldp.wire.layout import ModelLayout
from flower_ldp.wire.signds import SignDSProposal, decode_report


@dataclass(frozen=True)
class Round:
    """What the server must remember between asking and aggregating.

    Parameters
    ----------
    server_round : int
        From 1.
    model : mapping of str to ndarray
        The arrays that were sent.
    layout : ModelLayout
        How they flatten to d entries.
    plan : SelectionPlan
        h, v_th and the law for that d.
    proposal : SignDSProposal
        What clients were asked for.
    nodes : tuple of int
        Who was asked.
    """

    server_round: int
    model: Mapping[str, NDArray[Any]]
    layout: ModelLayout
    plan: SelectionPlan
    proposal: SignDSProposal
    nodes: tuple[int, ...]


class Tally:
    """Counts of one round's replies, filled while they are decoded.

    Attributes
    ----------
    filter : ReplyFilter
        How many were accepted, and rejected by reason.
    ones : int
        Magnitude bits that are 1.
    payload_bytes : int
        Sum of the accepted payloads' sizes.
    """

    def __init__(self, current: Round, health: HealthWatch, complaints: Complaints) -> None:
        self.filter = ReplyFilter(current.nodes, complaints)
        self.ones = 0
        self.payload_bytes = 0
        self._current = current
        self._health = health
        health.begin()

    def selections(self, replies: Iterable[Message]) -> Iterator[Selection]:
        """Yield the valid selections, counting bits and bytes on the way."""
        yield from self.filter.decode(replies, self._health.decoder(self._decode))

    def _decode(self, payload: bytes) -> Selection:
        indices, sign, bit = decode_report(
            payload,
            dimension=self._current.layout.dimension,
            dim_out=self._current.plan.dim_out,
            has_bit=self._current.proposal.magnitude is not None,
        )
        self.ones += bit or 0
        self.payload_bytes += len(payload) + health_length(self._current.proposal.health_epsilon)
        return Selection(indices, sign)
