"""How each randomizer of embeddings travels: its fields, and the bytes of a block's records.

A table for the proposals and reports of :mod:`flower_ldp.wire.embedding`, which hold what all of
them share.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError
from flower_ldp.mechanisms.base import row_of
from flower_ldp.mechanisms.embeddings import CodebookEmbedding, UnaryEncoding

#: Randomizers of embeddings.
EmbeddingMechanism: TypeAlias = UnaryEncoding | CodebookEmbedding
EmbeddingT = TypeVar("EmbeddingT")


class EmbeddingCodec(Protocol[EmbeddingT]):
    """What is special about one randomizer of embeddings on the wire."""

    mechanism: ClassVar[str]
    """Its name in a proposal."""

    def is_one_hot(self, mechanism: EmbeddingT) -> bool:
        """Return the field ``one-hot``."""

    def read(self, epsilon: float, width: int, one_hot: bool) -> EmbeddingT | None:
        """Return the mechanism that a proposal names, None if there is no such; may raise."""

    def record_bytes(self, mechanism: EmbeddingT) -> int:
        """Return the number of bytes of a record."""

    def encode(self, mechanism: EmbeddingT, reports: NDArray[np.integer]) -> bytes:
        """Return the bytes of a block's reports."""

    def decode(self, mechanism: EmbeddingT, body: bytes, records: int) -> NDArray[np.float32]:
        """Return rows of zeros and ones; raise WireError if no client can have sent the bytes."""


class UnaryBits:
    """Bits: each record is padded with zeros to a whole byte."""

    mechanism: ClassVar[str] = "embedding_dp"

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

    mechanism: ClassVar[str] = "codebook_embedding"

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


_BY_CLASS: Mapping[type, EmbeddingCodec[Any]] = MappingProxyType(
    {UnaryEncoding: UnaryBits(), CodebookEmbedding: Codes()}
)
#: Every codec by its mechanism's name in a proposal.
EMBEDDINGS: Mapping[str, EmbeddingCodec[Any]] = MappingProxyType(
    {codec.mechanism: codec for codec in _BY_CLASS.values()}
)


def codec_of(mechanism: EmbeddingMechanism) -> EmbeddingCodec[Any]:
    """Return how a mechanism's embeddings travel."""
    return row_of(_BY_CLASS, mechanism)
