"""The block of records that a message is about: read once, by public facts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from flower_ldp.errors import RefusalError, WireError, quoted
from flower_ldp.refusals import REFUSED_RECORDS
from flower_ldp.wire.embedding import EmbeddingProposal, TableTerms
from flower_ldp.wire.fields import PROPOSAL_KEY
from flower_ldp.wire.records import RecordTables


@dataclass(frozen=True)
class Block:
    """A block of a party's records that the server asks about.

    Parameters
    ----------
    proposal : EmbeddingProposal
        What it asks.
    rows : ndarray of int64, shape (records,)
        The block's rows of the party's own table.
    """

    proposal: EmbeddingProposal
    rows: NDArray[np.int64]

    @property
    def table(self) -> str:
        """Name of the table."""
        return self.proposal.terms.table


def read_block(tables: RecordTables, content: RecordDict) -> Block:
    """Return the block that a message is about.

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
    proposal = EmbeddingProposal.from_fields(read_record(content, PROPOSAL_KEY))
    check_table(tables, proposal.terms)
    return Block(proposal, tables.rows(proposal.terms.table, proposal.block))


def read_record(content: RecordDict, key: str) -> ConfigRecord:
    """Return a message's record of fields; raise WireError if there is none of the name."""
    record = content.config_records.get(key)
    if record is None:
        raise WireError("record", f"the message has no {key!r} record")
    return record


def check_table(tables: RecordTables, terms: TableTerms) -> None:
    """Refuse a table that is not the party's own.

    Raises
    ------
    RefusalError
        With code ``REFUSED_RECORDS``; the text, for the party's log, says what differs.
    """
    own = tables.tables.get(terms.table)
    if own is None:
        asked, known = quoted(terms.table), list(tables.tables)
        differs = f"the server asks for table {asked}; this party has {known}"
    elif len(own) != terms.records:
        differs = (
            f"table {quoted(terms.table)}: {terms.records} records at the server, {len(own)} here"
        )
    elif own.digest != terms.ids:
        differs = f"table {quoted(terms.table)}: as many records as the server has, but other ids"
    elif tables.block_size != terms.block_size:
        differs = f"blocks of {terms.block_size} at the server, of {tables.block_size} here"
    else:
        return
    raise RefusalError(REFUSED_RECORDS, differs)
