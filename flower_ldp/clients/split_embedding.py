"""Embeddings on the client: a block of records goes in, their randomized embeddings come out.

The release is opened from public facts: the proposal, the ids, how the bottom came to be. The
party's :class:`~flower_ldp.mechanisms.BottomModelClaim` decides under which names the cost goes on
the ledger. The report of a block is kept under the proposal, the digest of the bottom's weights
and, where it takes gradients, its step: while the bottom is unchanged, a block is drawn for once
and given again, at no charge, in every epoch, run and process after that.

The claim is about single records, so what is invalid is neutral record by record. What is neutral
as a whole, a reply without any array and one that is late, is covered by the claim for no record.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from flower_ldp.clients import release
from flower_ldp.clients.permit import PriorCharge, canonical
from flower_ldp.clients.release import KeptRelease, Release
from flower_ldp.errors import RefusalError, WireError, quoted
from flower_ldp.mechanisms.embeddings import BottomModelClaim
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.randomized_response import KaryResponse
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.refusals import REFUSED_RECORDS
from flower_ldp.wire import embedding as wire
from flower_ldp.wire.proposal import PROPOSAL_KEY
from flower_ldp.wire.record_ids import RecordTables

_log = logging.getLogger("flower_ldp")


def read_block(
    tables: RecordTables, content: RecordDict
) -> tuple[wire.EmbeddingProposal, NDArray[np.int64]]:
    """Return what a message asks about a block, and the block's rows of the party's own table.

    Parameters
    ----------
    tables : RecordTables
        The party's.
    content : RecordDict
        The message's.

    Raises
    ------
    WireError, ValueError
        If there is no well-formed proposal.
    RefusalError
        If the records are not the party's.
    """
    proposal = wire.EmbeddingProposal.from_fields(read_record(content, PROPOSAL_KEY))
    check_table(tables, proposal.terms)
    return proposal, tables.rows(proposal.terms.table, proposal.block)


def read_record(content: RecordDict, key: str) -> ConfigRecord:
    """Return a message's record of fields; raise WireError if there is none of the name."""
    record = content.config_records.get(key)
    if record is None:
        raise WireError("record", f"the message has no {key!r} record")
    return record


def check_table(tables: RecordTables, terms: wire.TableTerms) -> None:
    """Refuse a table that is not the party's own.

    Raises
    ------
    RefusalError
        With code ``REFUSED_RECORDS``; the text, for the party's log, says what differs.
    """
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
    """The holder of some columns, with a bottom model of its own.

    A party of one's own inherits from it: what has a body here fits a bottom that takes nothing in.
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
        """Return the steps that the bottom can be put back to."""
        return ()

    def rewind(self, step: str) -> None:
        """Put the bottom back to the step; raise ValueError if that cannot be."""
        if step != self.step:
            raise ValueError(f"there is no bottom of step {step or 'none'}")

    @abstractmethod
    def digest(self) -> str:
        """Return a digest of the bottom's weights; equal only for equal bottoms.

        It is another one after each step that a bottom that takes gradients made or skipped, so
        that no report is given again because a step did not move it.
        """

    def prepare(self, table: str, labels: NDArray[np.int64], response: KaryResponse) -> None:
        """Train the bottom on labels that went through ``response``, one for each own row.

        Labels that it was trained on before change nothing. A training that fails leaves the
        weights as they were and another digest, as one that does not would.
        """
        raise ValueError("this bottom takes no labels")

    @abstractmethod
    def embed(self, table: str, rows: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
        """Return the bottom's outputs for these rows of a table, shape (rows, width)."""

    def learn(
        self, table: str, rows: NDArray[np.int64], gradient: NDArray[np.float32], step: str
    ) -> None:
        """Move the bottom by the gradient of a loss with respect to the bits of these rows.

        ``step`` names the step: one that was the last to be made is not made again.
        """
        raise ValueError("this bottom is frozen")

    def skip(self, step: str) -> None:
        """Stand at the step without the bottom of it: what was to lead there failed or is late.

        At which step a party stands is public, so it must not tell whether its app failed. What
        is still under way must not move the party afterwards.
        """
        self.step = step


@dataclass(frozen=True)
class EmbeddingRelease(Release):
    """Releases the embeddings of one block of records.

    Parameters
    ----------
    party : Party
        Whose embeddings.
    """

    party: Party

    def open(self, content: RecordDict) -> OpenEmbedding:
        """Read the proposal and compare its table with the party's.

        Raises
        ------
        WireError, ValueError
            If there is no well-formed proposal, or no ledger could keep the report.
        RefusalError
            If the records are not the party's.
        """
        claim, tables = self.party.claim, self.party.tables
        proposal, rows = read_block(tables, content)
        release.check_storable(wire.embeddings_length(proposal.mechanism, len(rows)))
        _log.info("epsilon is about %s", claim.covers)
        step = self.party.step if claim.kind == "conditional" else ""
        return OpenEmbedding(proposal, tables.layout, self.party.digest(), claim, step)


@dataclass(frozen=True)
class OpenEmbedding(KeptRelease):
    """An accepted proposal about one block.

    Parameters
    ----------
    proposal : EmbeddingProposal
        What is asked for.
    layout : str
        Digest of how the party's tables are cut into blocks.
    bottom : str
        Digest of the bottom's weights.
    claim : BottomModelClaim
        How the bottom came to be.
    step : str
        Where a bottom that takes gradients stands. It belongs to the question: a bottom that a
        step did not move, because the app failed, must not be known by the same report.
    """

    proposal: wire.EmbeddingProposal
    layout: str
    bottom: str
    claim: BottomModelClaim
    step: str = ""

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """What it costs each record of the block."""
        return self.claim.events(self.proposal.mechanism.events())

    @property
    def part(self) -> str:
        """The block's account."""
        return f"{self.layout[:16]}/{self.proposal.terms.table}/{self.proposal.block}"

    @property
    def parameters(self) -> str:
        """The proposal, the bottom and the claim, as canonical JSON."""
        return canonical({**self.proposal.to_fields(), **self._bottom})

    @property
    def memo(self) -> str:
        """The same parameters: one report answers every message that has them."""
        return self.parameters

    @property
    def basis(self) -> PriorCharge | None:
        """The bottom's private training, which all records have paid for once."""
        training = self.claim.training()
        return PriorCharge(training, canonical(self._bottom)) if training and self.events else None

    @property
    def _bottom(self) -> dict[str, str | float]:
        """What is claimed of which bottom; amounts in full, which ``covers`` shortens."""
        claim = self.claim
        fields = {"bottom": self.bottom, "claim": claim.kind, "covers": claim.covers}
        amounts = {"training-epsilon": claim.epsilon, "training-delta": claim.delta}
        stands = {"step": self.step} if self.step else {}
        return {**fields, **stands, **(amounts if claim.kind == "dp" else {})}

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return the packed report.

        Neutral where a record's embedding cannot be read, and in all records if the app's reply
        is not one array of the block's.
        """
        return self._report(release.array_or_none(reply), rng)

    def neutral(self, rng: RandomSource) -> bytes:
        """Return a packed report of neutral embeddings."""
        return self._report(None, rng)

    def complaint(self, reply: RecordDict) -> str | None:
        """Return what makes a report of this reply neutral in part; None if nothing does."""
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
