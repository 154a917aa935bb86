"""Embeddings on the client: randomized embeddings of one block of records.

The party's :class:`~flower_ldp.mechanisms.BottomModelClaim` decides what is charged. A report is
kept under proposal, digest of the bottom's weights and a learning bottom's step, and sent again for
free. Invalid records are neutral one by one; the claim does not cover a reply that is neutral as a
whole.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from flower_ldp.clients import release
from flower_ldp.clients.permit import PriorCharge, ReplyTiming
from flower_ldp.clients.release import KeptRelease, Release
from flower_ldp.errors import RefusalError, ReleaseError, WireError, quoted
from flower_ldp.mechanisms.embeddings import BottomModelClaim
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.randomized_response import KaryResponse
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.refusals import REFUSED_RECORDS
from flower_ldp.wire import embedding as wire
from flower_ldp.wire.proposal import PROPOSAL_KEY, canonical
from flower_ldp.wire.record_ids import RecordTables

_log = logging.getLogger("flower_ldp")


def read_block(
    tables: RecordTables, content: RecordDict
) -> tuple[wire.EmbeddingProposal, NDArray[np.int64]]:
    """Return the proposal and the block's rows."""
    proposal = wire.EmbeddingProposal.from_fields(read_record(content, PROPOSAL_KEY))
    check_table(tables, proposal.terms)
    return proposal, tables.rows(proposal.terms.table, proposal.block)


def read_record(content: RecordDict, key: str) -> ConfigRecord:
    """Return a message's ConfigRecord, or raise WireError."""
    record = content.config_records.get(key)
    if record is None:
        raise WireError("record", f"the message has no {key!r} record")
    return record


def check_table(tables: RecordTables, terms: wire.TableTerms) -> None:
    """Refuse (``REFUSED_RECORDS``) another table than the party's."""
    own, asked = tables.tables.get(terms.table), quoted(terms.table)
    if own is None:
        differs = f"the server asks for table {asked}; this party has {list(tables.tables)}"
    elif len(own) != terms.records:
        differs = f"table {asked}: {terms.records} records at the server, {len(own)} here"
    elif own.digest != terms.ids:
        differs = f"table {asked}: as many records as the server has, but other ids"
    elif tables.block_size != terms.block_size:
        differs = f"blocks of {terms.block_size} at the server, of {tables.block_size} here"
    else:
        return
    raise RefusalError(REFUSED_RECORDS, differs)


#: Under this key the app answers with one array, the embeddings of the block's records.
EMBEDDING_KEY = "embedding"


class Party(ABC):
    """The holder of some columns, with its own bottom model: a base class.

    The default methods fit a bottom that learns nothing from the server.
    """

    #: Public, and different for each party.
    name: str
    #: How the bottom came to be.
    claim: BottomModelClaim
    #: The ids of the party's records.
    tables: RecordTables
    #: Name of the last step that the bottom has made; empty before the first.
    step: str = ""

    def earlier(self) -> Sequence[str]:
        """Return steps that the bottom can be set back to."""
        return ()

    def rewind(self, step: str) -> None:
        """Set the bottom back to the step, or raise ValueError."""
        if step != self.step:
            raise ValueError(f"there is no bottom of step {step or 'none'}")

    @abstractmethod
    def digest(self) -> str:
        """Return a digest of the bottom's weights, equal only for equal bottoms.

        It must change with each step made or skipped, or a repeated report would show that a step
        did not change the bottom.
        """

    def prepare(self, table: str, labels: NDArray[np.int64], response: KaryResponse) -> None:
        """Train the bottom on labels randomized by ``response``, one for each of its own rows.

        Do nothing for labels that it was trained on. A failed training must keep the weights and
        change the digest.
        """
        raise ValueError("this bottom takes no labels")

    @abstractmethod
    def embed(self, table: str, rows: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
        """Return the bottom's outputs for these rows of a table, shape (rows, width)."""

    def learn(
        self, table: str, rows: NDArray[np.int64], gradient: NDArray[np.float32], step: str
    ) -> None:
        """Update the bottom by the loss gradient with respect to the bits of these rows.

        Do nothing for the step made last.
        """
        raise ValueError("this bottom is frozen")

    def skip(self, step: str) -> None:
        """Advance the step without training, because the step failed or timed out.

        The step is public and must not show whether the app failed. Work still under way must not
        change it.
        """
        self.step = step


@dataclass(frozen=True)
class EmbeddingRelease(Release):
    """Releases the party's embeddings of one block of records."""

    party: Party

    def open(self, content: RecordDict) -> OpenEmbedding:
        """Read the proposal and compare its table with the party's.

        WireError or ValueError for a malformed proposal or a report too long for a ledger,
        RefusalError for records that are not the party's.
        """
        claim, proposal = self.party.claim, _proposal(self.party.tables, self.party.claim, content)
        step = self.party.step if claim.kind == "conditional" else ""
        layout = self.party.tables.layout
        return OpenEmbedding(proposal, layout, self.party.digest(), claim, step)


@dataclass(frozen=True)
class EmbeddingOnceRelease(Release):
    """Releases embeddings that an app's own handler answers with, those of each record once.

    The app answers with one array: an embedding of every record, table after table in the order of
    ``tables``. The block that was asked for leaves. Its report is kept for good: later questions
    get the same bits at no charge, whatever the bottom has learned since. That each embedding is
    made of its own record alone is taken on trust.

    Parameters
    ----------
    tables : RecordTables
        The ids, and the size of blocks.
    claim : BottomModelClaim
        How the bottom comes to be: ``conditional`` if gradients of these records train it.

    Examples
    --------
    >>> from flower_ldp.clients import EmbeddingOnceRelease, LdpMod
    >>> from flower_ldp.mechanisms import BottomModelClaim
    >>> from flower_ldp.wire.record_ids import Records, RecordTables
    >>> tables = RecordTables({"train": Records.of(range(400))}, block_size=8)
    >>> release = EmbeddingOnceRelease(tables, BottomModelClaim("conditional"))
    >>> gate = LdpMod(actions={"query.embed": release}, acknowledged=["train.gradients"])
    """

    tables: RecordTables
    claim: BottomModelClaim

    def open(self, content: RecordDict) -> OpenEmbedding:
        """Read the proposal; WireError, ValueError or RefusalError if it cannot be answered."""
        proposal = _proposal(self.tables, self.claim, content)
        return OpenOnce(proposal, self.tables.layout, "", self.claim, tables=self.tables)


def _proposal(
    tables: RecordTables, claim: BottomModelClaim, content: RecordDict
) -> wire.EmbeddingProposal:
    proposal, rows = read_block(tables, content)
    release.check_storable(wire.embeddings_length(proposal.mechanism, len(rows)))
    _log.info("epsilon is about %s", claim.covers)
    return proposal


@dataclass(frozen=True)
class OpenEmbedding(KeptRelease):
    """A proposal about one block; a learning bottom's step is part of the question."""

    proposal: wire.EmbeddingProposal
    layout: str
    bottom: str
    claim: BottomModelClaim
    step: str = ""

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Cost for each record of the block."""
        return self.claim.events(self.proposal.mechanism.events())

    @property
    def part(self) -> str:
        """The block's account."""
        return f"{self.layout[:16]}/{self.proposal.terms.table}/{self.proposal.block}"

    @property
    def parameters(self) -> str:
        """Proposal, bottom and claim as JSON."""
        return canonical({**self.proposal.to_fields(), **self._bottom})

    @property
    def memo(self) -> str:
        """The parameters."""
        return self.parameters

    @property
    def basis(self) -> PriorCharge | None:
        """The bottom's private training, charged once."""
        training = self.claim.training()
        return PriorCharge(training, canonical(self._bottom)) if training and self.events else None

    @property
    def _bottom(self) -> dict[str, str | float]:
        claim = self.claim
        fields = {"bottom": self.bottom, "claim": claim.kind, "covers": claim.covers}
        amounts = {"training-epsilon": claim.epsilon, "training-delta": claim.delta}
        stands = {"step": self.step} if self.step else {}
        return {**fields, **stands, **(amounts if claim.kind == "dp" else {})}

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return the report; unreadable records are neutral."""
        return self._report(release.array_or_none(reply), rng)

    def neutral(self, rng: RandomSource) -> bytes:
        """Return a neutral report."""
        return self._report(None, rng)

    def complaint(self, reply: RecordDict) -> str | None:
        """Return why a report would be partly neutral."""
        mechanism, shape = self.proposal.mechanism, self.proposal.shape

        def wrong(found: NDArray[Any]) -> int | None:
            fits = found.shape == shape and found.dtype.kind in "biuf"
            return int(mechanism.unread(found).sum()) if fits else None

        fault = "records are not one-hot" if mechanism.one_hot else "records cannot be read"
        return release.rows_complaint(reply, f"embeddings of shape {shape}", wrong, fault)

    def _report(self, values: NDArray[Any] | None, rng: RandomSource) -> bytes:
        mechanism = self.proposal.mechanism
        drawn = mechanism.randomize(values, rng, self.proposal.shape)
        return wire.encode_embeddings(drawn, mechanism)


@dataclass(frozen=True, kw_only=True)
class OpenOnce(OpenEmbedding):
    """A proposal about one block of what the app's own handler embeds."""

    tables: RecordTables

    def reply(self, ask: Callable[[], RecordDict], timing: ReplyTiming) -> RecordDict:
        """Call the app, and take the block out of all records; ReleaseError for other rows."""
        return self._block(ask())

    def rehearsed(self, ask: Callable[[], RecordDict]) -> tuple[RecordDict, OpenOnce]:
        """Return the block of a reply on public data."""
        return self._block(ask()), self

    def _block(self, reply: RecordDict) -> RecordDict:
        _, found = release.only_array(reply)
        records = sum(map(len, self.tables.tables.values()))
        if found.shape[:1] != (records,):
            told = f"embeddings of all {records} records, got shape {found.shape}"
            raise ReleaseError(f"the app must answer with {told}")
        rows = found[self.tables.places(self.proposal.terms.table, self.proposal.block)]
        return RecordDict({EMBEDDING_KEY: ArrayRecord({EMBEDDING_KEY: Array(rows)})})
