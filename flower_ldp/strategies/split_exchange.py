"""The parties of a split run: asking, alignment and noisy labels.

**Alignment** compares digests of each table's ids, which are public among the parties. **Labels**
are randomized, charged and sent once, and bottoms are trained on nothing else. This protects labels
from the parties, not from their holder, which runs the top.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid
from flwr.serverapp.strategy.strategy_utils import sample_nodes

from flower_ldp.errors import LdpError, WireError
from flower_ldp.labels.stages import RandomizedLabels
from flower_ldp.mechanisms.embeddings import BottomModelClaim
from flower_ldp.mechanisms.inputs import check_labels
from flower_ldp.mechanisms.randomized_response import KaryResponse
from flower_ldp.refusals import MEANINGS, REFUSED_MESSAGE
from flower_ldp.strategies.deadlines import grid_with_deadlines
from flower_ldp.strategies.replies import RunStopped, is_raw, payload_of
from flower_ldp.wire.embedding import ALIGN, CHANNEL_KEY, LABELS_KEY, PREPARE, TableTerms
from flower_ldp.wire.proposal import PROPOSAL_KEY
from flower_ldp.wire.record_ids import Records


class PartyError(LdpError):
    """A party did not answer, or not correctly.

    ``party`` is its name or node, ``reason`` the code that it sent or the fault of its reply, and
    ``others`` are errors of other parties in the same exchange.
    """

    def __init__(self, party: str, reason: str, others: Sequence[PartyError] = ()) -> None:
        known = MEANINGS.get(reason)
        explained = "" if known is None else f" ({known.meaning}: {known.remedy})"
        if reason == REFUSED_MESSAGE:
            explained = " (its bottom is frozen and takes no gradients)"
        own = f"party {party}: {reason}{explained}"
        super().__init__("; ".join([own, *map(str, others)]))
        self.party = party
        self.reason = reason


class Exchange(ABC):
    """A way to ask parties; a base class."""

    @abstractmethod
    def nodes(self, least: int) -> list[int]:
        """Return the nodes of all parties, once ``least`` are available."""

    @abstractmethod
    def ask(self, kind: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        """Send each node its content and return the replies by node."""


class GridExchange(Exchange):
    """Asks over Flower's grid.

    :func:`grid_with_deadlines` sets another limit than an hour on too few parties. All answers to
    one question may take ``timeout`` seconds.
    """

    def __init__(self, grid: Grid, timeout: float | None = 3_600.0) -> None:
        self._grid = grid_with_deadlines(grid)
        self._timeout = timeout

    def nodes(self, least: int) -> list[int]:
        """Return the connected nodes."""
        return sorted(sample_nodes(self._grid, least, 0)[1])

    def ask(self, kind: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        """Send messages and wait for replies."""
        messages = [
            Message(content=content, dst_node_id=node, message_type=kind)
            for node, content in contents.items()
        ]
        replies = self._grid.send_and_receive(messages, timeout=self._timeout)
        return {reply.metadata.src_node_id: reply for reply in replies}


class LocalExchange(Exchange):
    """Asks apps in this process, without engine or network, by the same messages and gate.

    ``apps`` has, by node, each party's ``ClientApp`` and its context; ``run_id`` is Flower's run.
    """

    def __init__(
        self, apps: Mapping[int, tuple[ClientAppCallable, Context]], *, run_id: int = 1
    ) -> None:
        self._apps = dict(apps)
        self._run_id = run_id
        self._asked = 0

    def nodes(self, least: int) -> list[int]:
        """Return all nodes."""
        return sorted(self._apps)

    def ask(self, kind: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        """Call the apps one after the other."""
        replies = {}
        for node, content in contents.items():
            self._asked += 1
            name, now = f"local-{self._asked}", time.time()
            # Outside of a run Flower makes messages only from metadata that are complete.
            metadata = Metadata(self._run_id, name, 0, node, "", "", now, 3_600.0, kind)
            app, context = self._apps[node]
            replies[node] = app(cast(Any, Message)(content=content, metadata=metadata), context)
        return replies


def payloads(replies: Mapping[int, Message], names: Mapping[int, str]) -> dict[int, bytes]:
    """Return each node's payload; RunStopped for an answer without a gate."""
    sent = {node for node, one in replies.items() if not one.has_error() and is_raw(one.content)}
    raw = [name for node, name in names.items() if node in sent]
    if raw:
        raise RunStopped(
            f"{'party' if len(raw) == 1 else 'parties'} {', '.join(raw)} answered with raw "
            "replies: the app has no gate. Make it by split_client_app(load), which has one, or "
            "put LdpMod first in an app of your own (mods=[LdpMod(...)]). What was sent is not "
            "private, and no epsilon is counted for it. The run stops so that no more crosses the "
            "network"
        )
    found, failed = {}, []
    for node, name in names.items():
        reply = replies.get(node)
        if reply is None:
            failed.append(PartyError(name, "no answer within the time that it had"))
        elif reply.has_error():
            failed.append(PartyError(name, reply.error.reason or "an error without a reason"))
        else:
            try:
                found[node] = payload_of(reply.content)
            except WireError as error:
                failed.append(PartyError(name, str(error)))
    if failed:
        raise PartyError(failed[0].party, failed[0].reason, failed[1:])
    return found


@dataclass(frozen=True)
class AlignedParty:
    """A party that has the server's records.

    ``node`` is of this run, and ``name`` of every run: the top gets embeddings in the order of
    names. ``step`` is that of its bottom, empty before the first, and ``earlier`` are steps that it
    can be set back to.
    """

    node: int
    name: str
    claim: BottomModelClaim
    step: str = ""
    earlier: tuple[str, ...] = ()

    def statement(self, epsilon: float) -> str:
        """Return what ``epsilon`` covers, and how often it is paid."""
        again = "for each state of its bottom" if self.claim.kind == "conditional" else "once"
        return (
            f"party {self.name}: epsilon {epsilon:g} per record and release, paid {again}; "
            f"it is about {self.claim.covers}"
        )


def align(exchange: Exchange, tables: Iterable[TableTerms], parties: int) -> list[AlignedParty]:
    """Wait for parties, check their ids, and return them by name."""
    nodes = exchange.nodes(parties)
    if len(nodes) != parties:
        raise ValueError(f"{len(nodes)} nodes are there and {parties} parties were expected")
    terms = {f"{PROPOSAL_KEY}.{one.table}": ConfigRecord({**one.to_fields()}) for one in tables}
    contents = {node: RecordDict({**terms}) for node in nodes}
    found = payloads(exchange.ask(ALIGN, contents), {node: f"at node {node}" for node in nodes})
    aligned = sorted((_party(node, data) for node, data in found.items()), key=attrgetter("name"))
    for one, other in pairwise(aligned):
        if one.name == other.name:
            raise PartyError(one.name, f"two nodes have this name: {one.node} and {other.node}")
    return aligned


def _party(node: int, payload: bytes) -> AlignedParty:
    try:
        fields = json.loads(payload)
        claim = BottomModelClaim(fields["claim"], fields["epsilon"], fields["delta"])
        step, earlier = str(fields["step"]), tuple(str(one) for one in fields["earlier"])
        return AlignedParty(node, str(fields["name"]), claim, step, earlier)
    except (ValueError, KeyError, TypeError) as error:
        raise PartyError(f"at node {node}", f"malformed introduction: {error}") from error


@dataclass(frozen=True)
class NoisyLabels:
    """Randomized labels for the parties; anyone may have them.

    ``private`` is the result of :func:`~flower_ldp.clients.private_labels` for the training table,
    in the order of its ids.
    """

    private: RandomizedLabels

    @property
    def response(self) -> KaryResponse:
        """The channel; ValueError if it is not KaryResponse."""
        mechanism = self.private.mechanism
        # Parties are sent an epsilon and a number of categories, and make the channel of them.
        if type(mechanism) is not KaryResponse:
            raise ValueError(f"parties correct for KaryResponse, not for {mechanism!r}")
        return mechanism

    def check(self, records: int) -> None:
        """Raise ValueError unless every record has a label from KaryResponse."""
        labels = check_labels("labels", self.private.reports, self.response.categories)
        if labels.shape != (records,):
            raise ValueError(f"labels must be {records}, got shape {labels.shape}")
        if not np.array_equal(self.private.members, np.arange(records)):
            raise ValueError("labels must be of all records, in the order of the ids")

    def statement(self) -> str:
        """Return the cost of a label and the account that paid."""
        account = self.private.account
        paid = f"charged to {account}" if account else "charged in no ledger"
        return f"labels: epsilon {self.response.epsilon:g} per label, in all; {paid}"


#: The first name of :class:`NoisyLabels`: the same class, for good.
ToldLabels = NoisyLabels


def send_labels(
    exchange: Exchange,
    parties: Sequence[AlignedParty],
    terms: TableTerms,
    records: Records,
    noisy: NoisyLabels,
) -> None:
    """Send the labels to all parties that are not frozen."""
    labels = noisy.private.reports.astype(np.int64)[records.order]
    channel = {"epsilon": float(noisy.response.epsilon), "categories": noisy.response.categories}
    content: dict[str, ConfigRecord | ArrayRecord] = {
        PROPOSAL_KEY: ConfigRecord({**terms.to_fields()}),
        CHANNEL_KEY: ConfigRecord({**channel}),
        LABELS_KEY: ArrayRecord({LABELS_KEY: Array(labels)}),
    }
    names = {party.node: party.name for party in parties if party.claim.kind != "public"}
    if names:
        payloads(exchange.ask(PREPARE, {node: RecordDict({**content}) for node in names}), names)
