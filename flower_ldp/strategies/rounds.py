"""A round of training or evaluation, and the parts of a strategy that follow it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from flower_ldp.privacy import PrivacyEvent, Unit, compose
from flower_ldp.strategies.replies import Complaints, ReplyFilter
from flower_ldp.strategies.sampling import Turn
from flower_ldp.strategies.spending import Proposals
from flower_ldp.strategies.stopping import stop_if_in_vain
from flower_ldp.wire.fields import PROPOSAL_KEY, Field
from flower_ldp.wire.layout import ModelLayout
from flower_ldp.wire.proposal import UpdateProposal

#: What a record of metrics is made from.
Metrics: TypeAlias = dict[str, int | float]


@dataclass
class Round:
    """What the server must remember between asking and aggregating.

    Parameters
    ----------
    server_round : int
        From 1.
    turn : Turn
        Who may be asked.
    events : tuple of PrivacyEvent
        What an answer costs a client.
    nodes : list of int
        Who was asked; nobody yet.
    """

    server_round: int
    turn: Turn
    events: tuple[PrivacyEvent, ...]
    nodes: list[int] = field(default_factory=list, kw_only=True)


@dataclass
class TrainingRound(Round):
    """A round of training.

    Parameters
    ----------
    model : mapping of str to ndarray
        That was sent.
    layout : ModelLayout
        What of it reports are about.
    proposal : UpdateProposal
        What clients are asked for.
    """

    model: Mapping[str, NDArray[Any]]
    layout: ModelLayout
    proposal: UpdateProposal[Any]


RoundT = TypeVar("RoundT", bound=Round)


class RoundCallback(Generic[RoundT]):
    """A part of a strategy that follows its rounds; a hook that is left out does nothing.

    A strategy calls its callbacks in the order of its list.
    """

    def on_run_start(self, rounds: int, layout: ModelLayout | None) -> None:
        """Learn of a run that begins; there is no layout for an evaluation."""

    def before_ask(self, current: RoundT) -> None:
        """Refuse a round, or prepare for it, before anybody is chosen.

        It raises ValueError or RuntimeError to refuse. Later hooks refuse nothing.
        """

    def after_replies(self, current: RoundT, replies: ReplyFilter) -> None:
        """Learn what came back. It raises RunStopped if going on would be in vain."""

    def after_step(self, current: RoundT, total: NDArray[Any], reports: int) -> None:
        """Learn the sum of a round's reports, at least one, by which the model was moved."""

    def metrics(self, current: RoundT) -> Metrics:
        """Return the round's metrics, once its replies were judged."""
        return {}


class SpendingLog(RoundCallback[Round]):
    """Counts what clients were asked for, and takes off what cost nothing.

    Parameters
    ----------
    proposals : Proposals
        The strategy's record.
    """

    def __init__(self, proposals: Proposals) -> None:
        self._proposals = proposals

    def before_ask(self, current: Round) -> None:
        """Count what the pool remembers of earlier runs."""
        pool = current.turn.pool
        if pool is not None:
            self._proposals.inherit(pool, pool.asked(), current.events)

    def after_replies(self, current: Round, replies: ReplyFilter) -> None:
        """Take off what was refused before it was charged, and what no gate ever saw."""
        for node in replies.uncharged:
            self._proposals.withdraw(node, current.events)
        for node in replies.raw:
            self._proposals.unguarded(node, current.events)
        if current.turn.pool is not None:
            current.turn.pool.put_back(replies.uncharged)

    def metrics(self, current: Round) -> Metrics:
        """Return ``epsilon-total`` and ``epsilon-round``, and the deltas where there are any."""
        asked = compose(current.events)[Unit.CLIENT]
        worst = self._proposals.worst().get(Unit.CLIENT)
        values: Metrics = {
            "epsilon-total": worst.epsilon if worst else 0.0,
            "epsilon-round": asked.epsilon,
        }
        if asked.delta or (worst and worst.delta):
            values["delta-total"] = worst.delta if worst else 0.0
            values["delta-round"] = asked.delta
        return values


class StopRule(RoundCallback[Round]):
    """Stops a run in vain, and keeps what was complained of in it.

    Attributes
    ----------
    complaints : Complaints
        Of the run.
    """

    def __init__(self) -> None:
        self.complaints = Complaints()

    def on_run_start(self, rounds: int, layout: ModelLayout | None) -> None:
        """Forget the complaints of another run."""
        self.complaints = Complaints()

    def after_replies(self, current: Round, replies: ReplyFilter) -> None:
        """Stop the run as :func:`~flower_ldp.strategies.stopping.stop_if_in_vain` says."""
        stop_if_in_vain(replies, current.server_round)


def choose(
    current: Round, content: RecordDict, fields: Mapping[str, Field], proposals: Proposals
) -> None:
    """Put a round's proposal into its content, choose who is asked, and count it.

    The choice counts as asked, so nothing may go wrong after it. Nodes that answered without a gate
    before are asked no more.
    """
    content[PROPOSAL_KEY] = ConfigRecord({**fields})
    current.nodes = [node for node in current.turn.choose() if node not in proposals.raw]
    for node in current.nodes:
        proposals.record(node, current.events)


def reply_metrics(replies: ReplyFilter) -> Metrics:
    """Return ``accepted``, ``rejected`` and ``rejected-<reason>``."""
    values: Metrics = {"accepted": replies.accepted, "rejected": replies.rejected.total()}
    for reason, count in sorted(replies.rejected.items()):
        values[f"rejected-{reason}"] = count
    return values
