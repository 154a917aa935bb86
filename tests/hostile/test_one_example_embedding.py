"""A record's embedding depends on that record alone, whatever the server taught the bottom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from flower_ldp.clients.release import IncompleteError
from flower_ldp.clients.split_app import embed
from flower_ldp.clients.split_embedding import EMBEDDING_KEY
from flower_ldp.mechanisms import BottomModelClaim, UnaryEncoding
from flower_ldp.split import TorchParty
from flower_ldp.wire.embedding import EmbeddingProposal, TableTerms
from flower_ldp.wire.record_ids import Records, RecordTables

RECORDS, COLUMNS, WIDTH = 91, 30, 2


class Bottom(nn.Module):
    """A linear layer that raises for records that are not finite."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(COLUMNS, WIDTH, bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not x.isfinite().all():
            raise ValueError("not finite")
        return self.layer(x)  # type: ignore[no-any-return]


def embedded(folder: Path, features: NDArray[Any], weights: torch.Tensor) -> NDArray[Any]:
    """Return what the gate makes noise of."""
    ids = Records.of(f"train-{row}" for row in range(len(features)))
    tables = RecordTables({"train": ids}, RECORDS)
    party = TorchParty(
        "ward", tables, lambda _: features, Bottom(weights), BottomModelClaim("public"), folder
    )
    terms = TableTerms("train", ids.digest, len(features), RECORDS)
    proposal, rows = EmbeddingProposal(UnaryEncoding(1.0, WIDTH), terms, 0), tables.rows("train", 0)
    try:
        content = embed(party, proposal, rows)
    except IncompleteError as error:
        content = error.content
    found: NDArray[Any] = content.array_records[EMBEDDING_KEY][EMBEDDING_KEY].numpy()
    return found[np.argsort(rows)]  # in the order of the records


def test_no_other_record_changes_a_bit_of_an_embedding(tmp_path: Path) -> None:
    """Weights of 1e8 that nearly cancel: by the last bit a number is above zero or not."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(RECORDS, COLUMNS)).astype(np.float32)
    weights = torch.from_numpy(generator.normal(size=(WIDTH, COLUMNS)) * 1e8)
    # Each record nearly cancels in the first of its numbers.
    column = -(features[:, 1:] @ weights[0, 1:].float().numpy()) / float(weights[0, 0])
    features[:, 0] = column
    honest = embedded(tmp_path / "all", features, weights)
    assert np.isfinite(honest).all()
    for place, value in ((3, np.nan), (0, np.inf), (90, 1e30), (45, 0.0)):
        other = features.copy()
        other[place] = value
        found = embedded(tmp_path / f"{place}", other, weights)
        rest = [row for row in range(RECORDS) if row != place]
        assert found[rest].tobytes() == honest[rest].tobytes()
