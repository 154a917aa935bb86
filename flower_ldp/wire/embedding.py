"""What crosses in split learning: a proposal down, packed embeddings up, gradients down.

The proposal names the randomizer with all its parameters, the table by the digest of its ids,
and one block. A report is a version byte, then the randomized embeddings of the block's records
in the common order: one bit per bit, each record padded with zeros to a whole byte; or one code
as an unsigned integer of 1 or 2 bytes, least significant byte first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError, quoted
from flower_ldp.wire.embedding_codecs import EMBEDDINGS, EmbeddingMechanism, codec_of
from flower_ldp.wire.fields import check_version

#: Keys of a message's records: where in the training it is (``after``, the last step that the
#: bottom must have made, and ``step``, the one to make), and its gradient.
STEP_KEY = "ldp.step"
GRADIENT_KEY = "ldp.gradient"
#: Keys of randomized labels: the channel that they went through, and the labels.
CHANNEL_KEY = "ldp.channel"
LABELS_KEY = "ldp.labels"
#: Types of message: is it the same data; back to an earlier step; randomized labels to train a
#: bottom on; embeddings of a block; gradients for a block; embeddings of a block that is only
#: predicted.
ALIGN, REWIND, PREPARE, FORWARD, BACKWARD, EVALUATE = (
    "query.align",
    "train.rewind",
    "train.prepare",
    "train.forward",
    "train.backward",
    "evaluate.forward",
)

_VERSION = 1
_TABLE = {"table": str, "ids": str, "records": int, "block-size": int}
_FIELDS = {
    "version": int,
    "mechanism": str,
    "epsilon": float,
    "width": int,
    "one-hot": bool,
    "block": int,
    **_TABLE,
}


@dataclass(frozen=True)
class TableTerms:
    """A table as server and party must agree on it.

    Parameters
    ----------
    table : str
        Its name.
    ids : str
        Digest of its ids (:attr:`Records.digest <flower_ldp.wire.records.Records.digest>`).
    records, block_size : int
        Number of records, and of records in a block.
    """

    table: str
    ids: str
    records: int
    block_size: int

    def to_fields(self) -> dict[str, int | str]:
        """Return the record's fields."""
        return {
            "table": self.table,
            "ids": self.ids,
            "records": self.records,
            "block-size": self.block_size,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> TableTerms:
        """Parse the fields; raise WireError if they are others."""
        _check(fields, _TABLE)
        values = (fields[name] for name in _TABLE)
        return cls(*values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class EmbeddingProposal:
    """A block of records that the server asks a party to release.

    Parameters
    ----------
    mechanism : UnaryEncoding or CodebookEmbedding
        The randomizer, under the name it has by default.
    terms : TableTerms
        The table.
    block : int
        Number of the block.
    """

    mechanism: EmbeddingMechanism
    terms: TableTerms
    block: int

    def to_fields(self) -> dict[str, int | float | str | bool]:
        """Return the record's fields.

        Raises
        ------
        ValueError
            If the mechanism adds no noise: there is nothing to propose.
        """
        mechanism = self.mechanism
        if mechanism.epsilon is None:
            raise ValueError("a proposal needs an epsilon: quantization alone is no release")
        codec = codec_of(mechanism)
        return {
            "version": _VERSION,
            "mechanism": codec.mechanism,
            "epsilon": float(mechanism.epsilon),
            "width": mechanism.width,
            "one-hot": codec.is_one_hot(mechanism),
            "block": self.block,
            **self.terms.to_fields(),
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> EmbeddingProposal:
        """Parse the record's fields, refusing anything unknown.

        Raises
        ------
        WireError
            ``"version"``, ``"fields"`` for missing, unknown or ill-typed fields, ``"domain"``
            for values outside their intervals.
        """
        check_version(fields, _VERSION)
        _check(fields, _FIELDS)
        epsilon, width, one_hot = (fields[name] for name in ("epsilon", "width", "one-hot"))
        try:
            terms = TableTerms.from_fields({name: fields[name] for name in _TABLE})
            return cls(
                _mechanism(str(fields["mechanism"]), epsilon, width, one_hot),
                terms,
                fields["block"],  # type: ignore[arg-type]
            )
        except WireError:
            raise
        except ValueError as error:
            raise WireError("domain", str(error)) from None


def _mechanism(name: str, epsilon: object, width: object, one_hot: object) -> EmbeddingMechanism:
    codec = EMBEDDINGS.get(name)
    found = None if codec is None else codec.read(epsilon, width, one_hot)  # type: ignore[arg-type]
    if found is None:
        raise WireError(
            "fields", f"not an embedding's proposal: {quoted(name)}, one-hot {quoted(one_hot)}"
        )
    return found  # type: ignore[no-any-return]


def _check(fields: Mapping[str, object], wanted: Mapping[str, type]) -> None:
    if set(fields) != set(wanted):
        raise WireError(
            "fields", f"expected {quoted(sorted(wanted))}, found {quoted(sorted(fields))}"
        )
    for name, kind in wanted.items():
        if type(fields[name]) is not kind:
            raise WireError("fields", f"{name} must be {kind.__name__}, got {quoted(fields[name])}")


def embeddings_length(mechanism: EmbeddingMechanism, records: int) -> int:
    """Return the number of bytes of every report about so many records."""
    return 1 + records * codec_of(mechanism).record_bytes(mechanism)


def encode_embeddings(reports: NDArray[np.integer], mechanism: EmbeddingMechanism) -> bytes:
    """Return the payload of a block's randomized embeddings."""
    return bytes([_VERSION]) + codec_of(mechanism).encode(mechanism, reports)


def decode_embeddings(
    payload: bytes, mechanism: EmbeddingMechanism, records: int
) -> NDArray[np.float32]:
    """Return a block's randomized embeddings as rows of zeros and ones; codes as one-hot rows.

    Returns
    -------
    ndarray of float32, shape (records, width)

    Raises
    ------
    WireError
        ``"version"``, ``"length"``, ``"padding"`` for bits that are set and mean nothing,
        ``"code"`` for a code that there is not.
    """
    if payload[:1] != bytes([_VERSION]):
        raise WireError("version", f"report version {payload[:1]!r}")
    codec, body = codec_of(mechanism), payload[1:]
    size = codec.record_bytes(mechanism)
    if len(body) != records * size:
        raise WireError("length", f"{len(body)} bytes for {records} records of {size}")
    return codec.decode(mechanism, body, records)
