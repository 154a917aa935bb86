"""Reports that no ledger could keep are refused by public numbers, before the charge."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from flower_ldp.accounting.ledger.charges import MOST_REPORT
from flower_ldp.clients import (
    EmbeddingRelease,
    GaussianRelease,
    LaplaceEvalRelease,
    LdpMod,
    Release,
)
from flower_ldp.mechanisms import BottomModelClaim, Gaussian, Laplace, UnaryEncoding
from flower_ldp.refusals import REFUSED_PROPOSAL
from flower_ldp.wire.embedding import EmbeddingProposal, TableTerms
from flower_ldp.wire.evaluation import EvalProposal
from flower_ldp.wire.proposal import PROPOSAL_KEY, UpdateProposal
from flower_ldp.wire.record_ids import Records, RecordTables
from tests.extras import extra
from tests.fixtures import context, message
from tests.unit.clients.world import Watching, raising

nn = extra("torch.nn")
split = extra("flower_ldp.split")

BITS = 2**20


def embedding(records: int, folder: Path) -> tuple[Release, Mapping[str, object]]:
    tables = RecordTables({"train": Records.of(range(records))}, records)
    features = np.zeros((records, 1), dtype=np.float32)
    claim = BottomModelClaim("public")
    party = split.TorchParty("left", tables, lambda _: features, nn.Linear(1, 1), claim, folder)
    terms = TableTerms("train", tables.tables["train"].digest, records, records)
    return EmbeddingRelease(party), EmbeddingProposal(
        UnaryEncoding(1.0, BITS), terms, 0
    ).to_fields()


def evaluation(rows: int, _: Path) -> tuple[Release, Mapping[str, object]]:
    mechanism = Laplace(1.0, classes=256, rows=rows, grid_bits=16)
    return LaplaceEvalRelease(), EvalProposal(mechanism, {}).to_fields()


def asked_for(release: Release, fields: Mapping[str, object]) -> tuple[int, str | None]:
    """Return how often the authorizer was asked, and what the server was told."""
    authorizer = Watching(is_simulation=True)  # no report of that size is to be drawn
    gate = LdpMod(train=release, authorizer=authorizer)
    content = RecordDict({PROPOSAL_KEY: ConfigRecord({**fields})})  # type: ignore[dict-item]
    reply = gate(message(content), context(), raising(ValueError("computed")))
    return len(authorizer.requests), reply.error.reason


@pytest.mark.parametrize(
    ("make", "most"),
    # 2^17 bytes for each record and one before them; 4 for each entry of a row, two before them
    [(embedding, (MOST_REPORT - 1) // 2**17), (evaluation, (MOST_REPORT - 2) // (4 * 256))],
)
def test_the_largest_report_is_judged_and_a_larger_one_is_refused(
    make: type, most: int, tmp_path: Path
) -> None:
    assert asked_for(*make(most, tmp_path)) == (1, "ldp:failed")
    assert asked_for(*make(most + 1, tmp_path)) == (0, REFUSED_PROPOSAL)


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_model_of_more_entries_than_a_report_may_have_bytes_is_refused(
    beyond: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The model takes no memory: all of its entries are one.
    model = {"w": np.broadcast_to(np.float16(0), (MOST_REPORT - 1 + beyond,))}
    monkeypatch.setattr("flower_ldp.clients.release.single_model", lambda _: model)
    fields = UpdateProposal(Gaussian(1.0, 1e-5, 1.0)).to_fields()
    content = asked_for(GaussianRelease(), fields)
    assert content == ((0, REFUSED_PROPOSAL) if beyond else (1, "ldp:failed"))
