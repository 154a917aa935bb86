"""Embeddings on the wire: strict both ways."""

from __future__ import annotations

import numpy as np
import pytest

from flower_ldp.mechanisms import CodebookEmbedding, RandomSource, UnaryEncoding
from flower_ldp.wire import embedding
from flower_ldp.wire.embedding import EmbeddingMechanism, EmbeddingProposal, TableTerms
from tests.fixtures import reason_of

TERMS = TableTerms("train", "ab" * 32, 100, 8)
MECHANISMS: list[EmbeddingMechanism] = [
    UnaryEncoding(5.0, 128),
    UnaryEncoding(0.0, 3),
    UnaryEncoding(2.5, 7, one_hot=True),
    CodebookEmbedding(8.0, 10),
    CodebookEmbedding(4.0, 300),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_a_proposal_comes_back_as_it_was(mechanism: EmbeddingMechanism) -> None:
    proposal = EmbeddingProposal(mechanism, TERMS, 3)
    assert EmbeddingProposal.from_fields(proposal.to_fields()) == proposal


def test_quantization_alone_is_no_proposal() -> None:
    with pytest.raises(ValueError, match="no release"):
        EmbeddingProposal(UnaryEncoding(None, 8), TERMS, 0).to_fields()


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_a_report_comes_back_as_rows(mechanism: EmbeddingMechanism) -> None:
    width = mechanism.bits if isinstance(mechanism, UnaryEncoding) else mechanism.codes
    values = np.eye(width)[np.arange(9) % width]
    reports = mechanism.randomize(values, RandomSource.seeded(1))
    payload = embedding.encode_embeddings(reports, mechanism)
    rows = embedding.decode_embeddings(payload, mechanism, 9)
    assert rows.shape == (9, width)
    assert rows.dtype == np.float32
    if isinstance(mechanism, UnaryEncoding):
        np.testing.assert_array_equal(rows, reports)
        assert len(payload) == 1 + 9 * -(-width // 8)
    else:
        np.testing.assert_array_equal(rows.argmax(axis=1), reports)
        assert (rows.sum(axis=1) == 1).all()
        assert len(payload) == 1 + 9 * (1 if width <= 256 else 2)


@pytest.mark.parametrize(
    ("payload", "mechanism", "reason"),
    [
        (b"", UnaryEncoding(1.0, 3), "version"),
        (b"\x01\x00\x0a", CodebookEmbedding(1.0, 10), "code"),
        (b"\x01\x00", CodebookEmbedding(1.0, 10), "length"),
    ],
)
def test_what_is_no_report_of_two_records_is_refused(
    payload: bytes, mechanism: EmbeddingMechanism, reason: str
) -> None:
    assert reason_of(embedding.decode_embeddings, payload, mechanism, 2) == reason
