"""Split learning on the wire: a proposal down, packed embeddings up, gradients down (docs/wire.md).

A report is a version byte, then the randomized embeddings of the block's records in the common
order: bits, each record padded with zeros to a whole byte; or one code as an unsigned integer of 1
or 2 bytes, least significant byte first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.base import typed
from flower_ldp.mechanisms.embeddings import CodebookEmbedding, UnaryEncoding
from flower_ldp.wire.proposal import check_version, in_domain

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
ALIGN, REWIND, PREPARE = "query.align", "train.rewind", "train.prepare"
FORWARD, BACKWARD, EVALUATE = "train.forward", "train.backward", "evaluate.forward"

_VERSION = 1
_TABLE: dict[str, type[Any]] = {"table": str, "ids": str, "records": int, "block-size": int}
_FIELDS: dict[str, type[Any]] = {
    "version": int,
    "mechanism": str,
    "epsilon": float,
    "width": int,
    "one-hot": bool,
    "block": int,
    **_TABLE,
}


#: Randomizers of embeddings.
EmbeddingMechanism: TypeAlias = UnaryEncoding | CodebookEmbedding


#: Their names in a proposal.
EMBEDDINGS = "embedding_dp", "codebook_embedding"


def named(name: str, epsilon: float, width: int, one_hot: bool) -> EmbeddingMechanism:
    """Return the proposed mechanism under its default name."""
    if name == EMBEDDINGS[0]:
        return UnaryEncoding(epsilon, width, one_hot)
    if name == EMBEDDINGS[1] and not one_hot:
        return CodebookEmbedding(epsilon, width)
    told = f"{quoted(name)}, one-hot {quoted(one_hot)}"
    raise WireError("fields", f"not an embedding's proposal: {told}")


def _record_bytes(mechanism: EmbeddingMechanism) -> int:
    if isinstance(mechanism, UnaryEncoding):
        return -(-mechanism.bits // 8)
    return _code_type(mechanism).itemsize


def _code_type(mechanism: CodebookEmbedding) -> np.dtype[np.unsignedinteger]:
    return np.dtype("<u1" if mechanism.codes <= 256 else "<u2")


@dataclass(frozen=True)
class TableTerms:
    """The agreed form of a table: name, digest of its ids, number of records, block size."""

    table: str
    ids: str
    records: int
    block_size: int

    def to_fields(self) -> dict[str, int | str]:
        """Return the record's fields."""
        return dict(zip(_TABLE, astuple(self), strict=True))

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> TableTerms:
        """Parse the fields; raise WireError if they are others."""
        return cls(*_read(fields, _TABLE))


@dataclass(frozen=True)
class EmbeddingProposal:
    """A block of records that the server asks a party to release, by its number."""

    mechanism: EmbeddingMechanism
    terms: TableTerms
    block: int

    @property
    def shape(self) -> tuple[int, int]:
        """Records of the block, and the embedding's width."""
        left = self.terms.records - self.block * self.terms.block_size
        return min(self.terms.block_size, left), self.mechanism.width

    def to_fields(self) -> dict[str, int | float | str | bool]:
        """Return the record's fields; ValueError if the mechanism adds no noise."""
        mechanism = self.mechanism
        if mechanism.epsilon is None:
            raise ValueError("a proposal needs an epsilon: quantization alone is no release")
        name, epsilon = type(mechanism).name, mechanism.epsilon
        own = _VERSION, name, float(epsilon), mechanism.width, mechanism.one_hot, self.block
        return dict(zip(_FIELDS, (*own, *astuple(self.terms)), strict=True))

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
        _, name, epsilon, width, one_hot, block, *table = _read(fields, _FIELDS)
        with in_domain():
            mechanism = named(name, epsilon, width, one_hot)
        return cls(mechanism, TableTerms(*table), block)


def _read(fields: Mapping[str, object], wanted: Mapping[str, type[Any]]) -> list[Any]:
    if set(fields) != set(wanted):
        raise WireError(
            "fields", f"expected {quoted(sorted(wanted))}, found {quoted(sorted(fields))}"
        )
    return [typed(fields, name, kind) for name, kind in wanted.items()]


def embeddings_length(mechanism: EmbeddingMechanism, records: int) -> int:
    """Return the number of bytes of every report about so many records."""
    return 1 + records * _record_bytes(mechanism)


def encode_embeddings(reports: NDArray[np.integer], mechanism: EmbeddingMechanism) -> bytes:
    """Return the payload of a block's randomized embeddings."""
    if isinstance(mechanism, UnaryEncoding):
        return bytes([_VERSION]) + np.packbits(reports.astype(np.uint8), axis=1).tobytes()
    return bytes([_VERSION]) + reports.astype(_code_type(mechanism)).tobytes()


def decode_embeddings(
    payload: bytes, mechanism: EmbeddingMechanism, records: int
) -> NDArray[np.float32]:
    """Return a block's randomized embeddings as float32 rows of 0 and 1; codes as one-hot rows.

    Raises
    ------
    WireError
        ``"version"``, ``"length"``, ``"padding"`` for set bits without meaning, ``"code"`` for an
        unknown code.
    """
    if payload[:1] != bytes([_VERSION]):
        raise WireError("version", f"report version {payload[:1]!r}")
    body, size = payload[1:], _record_bytes(mechanism)
    if len(body) != records * size:
        raise WireError("length", f"{len(body)} bytes for {records} records of {size}")
    if isinstance(mechanism, UnaryEncoding):
        packed = np.frombuffer(body, dtype=np.uint8).reshape(records, size)
        bits = np.unpackbits(packed, axis=1)
        if bits[:, mechanism.bits :].any():
            raise WireError("padding", "bits are set behind the end of a record")
        return bits[:, : mechanism.bits].astype(np.float32)
    codes = np.frombuffer(body, dtype=_code_type(mechanism)).astype(np.int64)
    if (codes >= mechanism.codes).any():
        raise WireError("code", f"a code is not below {mechanism.codes}")
    rows = np.zeros((records, mechanism.codes), dtype=np.float32)
    rows[np.arange(records), codes] = 1.0
    return rows
