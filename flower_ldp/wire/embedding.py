"""What crosses in split learning: a proposal down, packed embeddings up, gradients down.

The proposal names the randomizer with all its parameters, the table by the digest of its ids,
and one block. A report is a version byte, then the randomized embeddings of the block's records
in the common order: one bit per bit, each record padded with zeros to a whole byte; or one code
as an unsigned integer of 1 or 2 bytes, least significant byte first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.base import row_of, typed
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
ALIGN, REWIND, PREPARE, FORWARD, BACKWARD, EVALUATE = (
    "query.align",
    "train.rewind",
    "train.prepare",
    "train.forward",
    "train.backward",
    "evaluate.forward",
)

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


class UnaryBits:
    """Bits: each record is padded with zeros to a whole byte.

    ``mechanism`` is the name in a proposal.
    """

    mechanism = "embedding_dp"

    def is_one_hot(self, mechanism: UnaryEncoding) -> bool:
        """Return whether each embedding has exactly one positive entry."""
        return mechanism.one_hot

    def read(self, epsilon: float, width: int, one_hot: bool) -> UnaryEncoding:
        """Return the mechanism, under the name it has by default."""
        return UnaryEncoding(epsilon, width, one_hot)

    def record_bytes(self, mechanism: UnaryEncoding) -> int:
        """Return as many bytes as hold the bits."""
        return -(-mechanism.bits // 8)

    def encode(self, mechanism: UnaryEncoding, reports: NDArray[np.integer]) -> bytes:
        """Return the packed bits."""
        return np.packbits(reports.astype(np.uint8), axis=1).tobytes()

    def decode(self, mechanism: UnaryEncoding, body: bytes, records: int) -> NDArray[np.float32]:
        """Return the bits; none may be set behind the end of a record."""
        size = self.record_bytes(mechanism)
        packed = np.frombuffer(body, dtype=np.uint8).reshape(records, size)
        bits = np.unpackbits(packed, axis=1)
        if bits[:, mechanism.bits :].any():
            raise WireError("padding", "bits are set behind the end of a record")
        return bits[:, : mechanism.bits].astype(np.float32)


class Codes:
    """One code a record: an unsigned integer of 1 or 2 bytes, least significant byte first."""

    mechanism = "codebook_embedding"

    def is_one_hot(self, mechanism: CodebookEmbedding) -> bool:
        """Return False: a code needs no such promise."""
        return False

    def read(self, epsilon: float, width: int, one_hot: bool) -> CodebookEmbedding | None:
        """Return the mechanism, under the name it has by default."""
        return None if one_hot else CodebookEmbedding(epsilon, width)

    def record_bytes(self, mechanism: CodebookEmbedding) -> int:
        """Return the bytes of a code."""
        return _code_type(mechanism).itemsize

    def encode(self, mechanism: CodebookEmbedding, reports: NDArray[np.integer]) -> bytes:
        """Return the codes."""
        return reports.astype(_code_type(mechanism)).tobytes()

    def decode(
        self, mechanism: CodebookEmbedding, body: bytes, records: int
    ) -> NDArray[np.float32]:
        """Return one-hot rows; every code must exist."""
        codes = np.frombuffer(body, dtype=_code_type(mechanism)).astype(np.int64)
        if (codes >= mechanism.codes).any():
            raise WireError("code", f"a code is not below {mechanism.codes}")
        rows = np.zeros((records, mechanism.codes), dtype=np.float32)
        rows[np.arange(records), codes] = 1.0
        return rows


def _code_type(mechanism: CodebookEmbedding) -> np.dtype[np.unsignedinteger]:
    return np.dtype("<u1" if mechanism.codes <= 256 else "<u2")


_BY_CLASS: Mapping[type, Any] = MappingProxyType(
    {UnaryEncoding: UnaryBits(), CodebookEmbedding: Codes()}
)
#: Every codec by its mechanism's name in a proposal.
EMBEDDINGS: Mapping[str, Any] = MappingProxyType(
    {codec.mechanism: codec for codec in _BY_CLASS.values()}
)


def codec_of(mechanism: EmbeddingMechanism) -> Any:
    """Return how a mechanism's embeddings travel: the codec of its class."""
    return row_of(_BY_CLASS, mechanism)


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
        return dict(zip(_TABLE, astuple(self), strict=True))

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> TableTerms:
        """Parse the fields; raise WireError if they are others."""
        return cls(*_read(fields, _TABLE))


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

    @property
    def shape(self) -> tuple[int, int]:
        """Records of the block, and the embedding's width."""
        left = self.terms.records - self.block * self.terms.block_size
        return min(self.terms.block_size, left), self.mechanism.width

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
        _, name, epsilon, width, one_hot, block, *table = _read(fields, _FIELDS)
        codec = EMBEDDINGS.get(name)
        with in_domain():
            mechanism = None if codec is None else codec.read(epsilon, width, one_hot)
        if mechanism is None:
            told = f"{quoted(name)}, one-hot {quoted(one_hot)}"
            raise WireError("fields", f"not an embedding's proposal: {told}")
        return cls(mechanism, TableTerms(*table), block)


def _read(fields: Mapping[str, object], wanted: Mapping[str, type[Any]]) -> list[Any]:
    if set(fields) != set(wanted):
        raise WireError(
            "fields", f"expected {quoted(sorted(wanted))}, found {quoted(sorted(fields))}"
        )
    return [typed(fields, name, kind) for name, kind in wanted.items()]


def embeddings_length(mechanism: EmbeddingMechanism, records: int) -> int:
    """Return the number of bytes of every report about so many records."""
    record: int = codec_of(mechanism).record_bytes(mechanism)
    return 1 + records * record


def encode_embeddings(reports: NDArray[np.integer], mechanism: EmbeddingMechanism) -> bytes:
    """Return the payload of a block's randomized embeddings."""
    body: bytes = codec_of(mechanism).encode(mechanism, reports)
    return bytes([_VERSION]) + body


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
    rows: NDArray[np.float32] = codec.decode(mechanism, body, records)
    return rows
