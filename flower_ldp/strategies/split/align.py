"""The first step of a split run: who is there, and is it the same data.

The server sends the digest of each table's ids; a party whose ids differ refuses, so a run
cannot begin on rows that do not belong together. Ids are public among the parties of a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from flwr.app import ConfigRecord, RecordDict

from flower_ldp.mechanisms.embeddings import BottomClaim
from flower_ldp.strategies.split.exchange import Exchange, PartyError, payloads
from flower_ldp.wire.embedding import ALIGN, TableTerms
from flower_ldp.wire.fields import PROPOSAL_KEY


@dataclass(frozen=True)
class AlignedParty:
    """A party that has the server's records.

    Parameters
    ----------
    node : int
        Where it is in this run.
    name : str
        Who it is in every run; embeddings are given to the top in the order of names.
    claim : BottomClaim
        How its bottom came to be.
    step : str
        Name of the last step that its bottom has made; empty before the first.
    earlier : tuple of str
        Steps that its bottom can be put back to.
    """

    node: int
    name: str
    claim: BottomClaim
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
    replies = exchange.ask(ALIGN, {node: RecordDict({**terms}) for node in nodes})
    found = payloads(replies, {node: f"at node {node}" for node in nodes})
    aligned = sorted((_party(node, data) for node, data in found.items()), key=attrgetter("name"))
    for one, other in pairwise(aligned):
        if one.name == other.name:
            raise PartyError(one.name, f"two nodes have this name: {one.node} and {other.node}")
    return aligned


def _party(node: int, payload: bytes) -> AlignedParty:
    try:
        fields = json.loads(payload)
        claim = BottomClaim(fields["claim"], fields["epsilon"], fields["delta"])
        step, earlier = str(fields["step"]), tuple(str(one) for one in fields["earlier"])
        return AlignedParty(node, str(fields["name"]), claim, step, earlier)
    except (ValueError, KeyError, TypeError) as error:
        raise PartyError(f"at node {node}", f"malformed introduction: {error}") from error
