"""Embeddings on the wire: strict both ways."""

from __future__ import annotations

import numpy as np
import pytest

from flower_ldp.errors import WireError
from flower_ldp.mechanisms import CodebookEmbedding, RandomSource, UnaryEncoding
from flower_ldp.wire.embedding import (
    EmbeddingMechanism,
    EmbeddingProposal,
    TableTerms,
    decode_embeddings,
    encode_embeddings,
)

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


GOOD = EmbeddingProposal(UnaryEncoding(5.0, 128), TERMS, 3).to_fields()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "version"),
        ({"version": True}, "version"),
        ({"version": 1.0}, "version"),
        ({"extra": 1}, "fields"),
        ({"epsilon": 5}, "fields"),
        ({"width": 128.0}, "fields"),
        ({"width": True}, "fields"),
        ({"one-hot": 1}, "fields"),
        ({"block": "3"}, "fields"),
        ({"table": b"train"}, "fields"),
        ({"records": 1.0}, "fields"),
        ({"mechanism": "laplace"}, "fields"),
        ({"mechanism": "codebook_embedding", "one-hot": True}, "fields"),
        ({"epsilon": -1.0}, "domain"),
        ({"epsilon": float("nan")}, "domain"),
        ({"epsilon": 101.0}, "domain"),
        ({"width": 0}, "domain"),
        ({"mechanism": "codebook_embedding", "epsilon": 0.0}, "domain"),
    ],
)
def test_anything_else_is_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(WireError) as caught:
        EmbeddingProposal.from_fields({**GOOD, **change})
    assert caught.value.reason == reason


@pytest.mark.parametrize("name", list(GOOD))
def test_no_field_may_be_left_out(name: str) -> None:
    fields = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(WireError):
        EmbeddingProposal.from_fields(fields)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_a_report_comes_back_as_rows(mechanism: EmbeddingMechanism) -> None:
    width = mechanism.bits if isinstance(mechanism, UnaryEncoding) else mechanism.codes
    values = np.eye(width)[np.arange(9) % width]
    reports = mechanism.randomize(values, RandomSource.seeded(1))
    payload = encode_embeddings(reports, mechanism)
    rows = decode_embeddings(payload, mechanism, 9)
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
        (b"\x02\x00\x00", UnaryEncoding(1.0, 3), "version"),
        (b"\x01\x00", UnaryEncoding(1.0, 3), "length"),
        (b"\x01\x00\x00\x00", UnaryEncoding(1.0, 3), "length"),
        (b"\x01\x00\x10", UnaryEncoding(1.0, 3), "padding"),
        (b"\x01\x00\x0a", CodebookEmbedding(1.0, 10), "code"),
        (b"\x01\x00\x00\x2c\x01", CodebookEmbedding(1.0, 300), "code"),
        (b"\x01\x00", CodebookEmbedding(1.0, 10), "length"),
    ],
)
def test_what_is_no_report_of_two_records_is_refused(
    payload: bytes, mechanism: EmbeddingMechanism, reason: str
) -> None:
    with pytest.raises(WireError) as caught:
        decode_embeddings(payload, mechanism, 2)
    assert caught.value.reason == reason
