"""The parties of a split run: how they are asked, aligned, and sent labels.

A step of split learning needs the answer of every party, so a party that refuses or fails
stops the run with a :class:`PartyError` that names it and says why. A party that answers without a
gate stops it too, before all else that may be wrong: its embeddings have crossed the network.

**Alignment** is the first step of a run. The server sends the digest of each table's ids; a party
whose ids differ refuses, so a run cannot begin on rows that do not belong together. Ids are public
among the parties of a run.

**Labels** are randomized and sent once, and are all that bottoms are trained on. Parties then train
where their features are, and no feature leaves them for it. A label costs the epsilon of its
randomizer, in all: what is randomized lies in the ledger of the labels' holder, beside its charge,
and is given to every party and run alike. Randomizing again would pay again. It protects labels
from the parties; their holder, which runs the top, has them.
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
    """A party did not answer, or not as it should.

    Parameters
    ----------
    party : str
        Its name, or its node while the name is not known.
    reason : str
        The code that it sent, or what is wrong with its reply.
    others : sequence of PartyError
        Of parties that did not answer the same question either; the text names them too.
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
        """Return the nodes of all parties, once so many can be asked."""

    @abstractmethod
    def ask(self, kind: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        """Send each node its content and return what came back, by node."""


class GridExchange(Exchange):
    """Asks over Flower's grid: simulation, or SuperNodes.

    Parameters
    ----------
    grid : Grid
        Of the server app.
        Parties may be too few for an hour; pass ``grid_with_deadlines(grid, wait_seconds)`` for
        another time.
    timeout : float, optional
        Seconds to wait for all answers to one question.
    """

    def __init__(self, grid: Grid, timeout: float | None = 3_600.0) -> None:
        self._grid = grid_with_deadlines(grid)
        self._timeout = timeout

    def nodes(self, least: int) -> list[int]:
        """Return the nodes that are connected, once there are so many."""
        return sorted(sample_nodes(self._grid, least, 0)[1])

    def ask(self, kind: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        """Send the messages and wait."""
        messages = [
            Message(content=content, dst_node_id=node, message_type=kind)
            for node, content in contents.items()
        ]
        replies = self._grid.send_and_receive(messages, timeout=self._timeout)
        return {reply.metadata.src_node_id: reply for reply in replies}


class LocalExchange(Exchange):
    """Asks apps in this process: no engine, no network, the same messages and the same gate.

    For parties with an app, a node configuration and so a policy each, whose messages stay
    objects: a step of split learning is two of them a batch. One app for all nodes, whose messages
    go through bytes, runs by :func:`flower_ldp.simulation.run_in_process`.

    Parameters
    ----------
    apps : mapping of int to (app, context)
        By node, each party's ``ClientApp`` and the context that it is called with.
    run_id : int
        What the apps see as Flower's run.
    """

    def __init__(
        self, apps: Mapping[int, tuple[ClientAppCallable, Context]], *, run_id: int = 1
    ) -> None:
        self._apps = dict(apps)
        self._run_id = run_id
        self._asked = 0

    def nodes(self, least: int) -> list[int]:
        """Return all nodes: no more can come."""
        return sorted(self._apps)

    def ask(self, kind: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        """Call one app after the other."""
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
    """Return the payload of each named node's reply.

    Raises
    ------
    RunStopped
        If a party answered without a gate. No epsilon is counted for it.
    PartyError
        If a party has no payload: for the first of them, and it names the others.
    """
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

    Parameters
    ----------
    node : int
        Where it is in this run.
    name : str
        Who it is in every run; embeddings are given to the top in the order of names.
    claim : BottomModelClaim
        How its bottom came to be.
    step : str
        Name of the last step that its bottom has made; empty before the first.
    earlier : tuple of str
        Steps that its bottom can be put back to.
    """

    node: int
    name: str
    claim: BottomModelClaim
    step: str = ""
    earlier: tuple[str, ...] = ()

    def statement(self, epsilon: float) -> str:
        """Say what a release of ``epsilon`` per record covers, and how often it is paid."""
        again = "for each state of its bottom" if self.claim.kind == "conditional" else "once"
        return (
            f"party {self.name}: epsilon {epsilon:g} per record and release, paid {again}; "
            f"it is about {self.claim.covers}"
        )


def align(exchange: Exchange, tables: Iterable[TableTerms], parties: int) -> list[AlignedParty]:
    """Wait for the parties, check that their ids are the server's, and sort them by name.

    Raises
    ------
    PartyError
        If a party's records are others, or two have the same name.
    ValueError
        If there are more nodes than parties, or fewer and no more can come.
    """
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
    """Labels as parties get them, and as anyone may have them.

    Parameters
    ----------
    private : RandomizedLabels
        What :func:`~flower_ldp.clients.private_labels` returned for all labels of the training
        table, in the order of the ids: randomized once, charged to the ledger of whoever holds
        the labels, and the same in every run.
    """

    private: RandomizedLabels

    @property
    def response(self) -> KaryResponse:
        """The channel, which parties correct for. Its epsilon is what a label costs.

        Raises
        ------
        ValueError
            If another mechanism made the labels.
        """
        mechanism = self.private.mechanism
        # Parties are sent an epsilon and a number of categories, and make the channel of them.
        if type(mechanism) is not KaryResponse:
            raise ValueError(f"parties correct for KaryResponse, not for {mechanism!r}")
        return mechanism

    def check(self, records: int) -> None:
        """Raise ValueError unless all records have a label, by a response parties correct for."""
        labels = check_labels("labels", self.private.reports, self.response.categories)
        if labels.shape != (records,):
            raise ValueError(f"labels must be {records}, got shape {labels.shape}")
        if not np.array_equal(self.private.members, np.arange(records)):
            raise ValueError("labels must be of all records, in the order of the ids")

    def statement(self) -> str:
        """Say what a label costs, and where that stands."""
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
    """Send the labels to all parties whose bottoms are not frozen, and wait until they trained.

    Raises
    ------
    PartyError
        If a party refuses or fails.
    """
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
