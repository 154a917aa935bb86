"""Questions for embeddings of blocks: of :class:`SplitStrategy`, and of an app's own loop."""

import math

from flwr.app import ConfigRecord, Message, RecordDict

from flower_ldp.errors import WireError
from flower_ldp.strategies.split_exchange import PartyError, payloads
from flower_ldp.strategies.split_tops import Rows
from flower_ldp.wire import embedding as wire
from flower_ldp.wire.proposal import PROPOSAL_KEY
from flower_ldp.wire.record_ids import RecordTables


class EmbeddingQuery:
    """Asks parties for embeddings of a block, in an app whose server has a loop of its own.

    The parties answer by :class:`~flower_ldp.clients.EmbeddingOnceRelease`.

    Parameters
    ----------
    mechanism : UnaryEncoding or CodebookEmbedding
        Each party accepts it or refuses.
    tables : RecordTables
        The ids, and the size of blocks, as the parties have them.

    Raises
    ------
    ValueError
        If the mechanism has no epsilon.

    Examples
    --------
    >>> from flower_ldp.mechanisms import UnaryEncoding
    >>> from flower_ldp.wire.record_ids import Records
    >>> tables = RecordTables({"train": Records.of(range(400))}, block_size=8)
    >>> query = EmbeddingQuery(UnaryEncoding(4.0, 1), tables)
    >>> query.mechanism.record_epsilon
    2.0
    """

    def __init__(self, mechanism: wire.EmbeddingMechanism, tables: RecordTables) -> None:
        if not math.isfinite(mechanism.record_epsilon):
            raise ValueError("mechanism must have an epsilon: quantization alone is no release")
        self.mechanism, self.tables = mechanism, tables

    def terms(self, table: str) -> wire.TableTerms:
        """Return the form of a table, on which parties must agree."""
        records = self.tables.tables[table]
        return wire.TableTerms(table, records.digest, len(records), self.tables.block_size)

    def content(self, table: str, block: int) -> RecordDict:
        """Return the content of a message that asks for a block, by its number from 0."""
        proposal = wire.EmbeddingProposal(self.mechanism, self.terms(table), block)
        return RecordDict({PROPOSAL_KEY: ConfigRecord({**proposal.to_fields()})})

    def read(self, reply: Message, table: str, block: int) -> Rows:
        """Return the embeddings in a reply to :meth:`content`: float32 of 0 and 1, a row each.

        Rows are in the order of ``tables.rows(table, block)``.

        Raises
        ------
        PartyError
            If the party refused or failed, or its report is malformed.
        RunStopped
            If it answered without a gate: its reply is not private.
        """
        node = reply.metadata.src_node_id
        name = f"at node {node}"
        found = payloads({node: reply}, {node: name})[node]
        return self.decoded(name, found, len(self.tables.rows(table, block)))

    def decoded(self, party: str, payload: bytes, records: int) -> Rows:
        """Return the embeddings in a party's payload, or raise PartyError."""
        try:
            return wire.decode_embeddings(payload, self.mechanism, records)
        except WireError as error:
            raise PartyError(party, f"its report is malformed: {error}") from error
