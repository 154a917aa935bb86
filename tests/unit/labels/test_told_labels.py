"""Labels that parties are told: in the ledger of their holder, once, whatever runs come after."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import private_labels, split_client_app
from flower_ldp.mechanisms import BottomModelClaim, CodebookEmbedding, KaryResponse
from flower_ldp.privacy import Unit
from flower_ldp.strategies import CodeTop, LocalExchange, NoisyLabels, SplitStrategy
from tests import fixtures
from tests.split_world import Side, labels, tables

POLICY = """
data_id: {name}
ledger: {name}.sqlite
mode: deployment
messages:
  train:
    kary_response: {{epsilon: 4.0, unit: label}}
  train.forward: &codes
    "codebook_embedding:conditional": {{epsilon: 8.0, unit: example}}
  evaluate.forward: *codes
budgets:
  label: {{life: {{epsilon: 100.0}}}}
  example: {{life: {{epsilon: 100.0}}}}
"""


def context(folder: Path, name: str) -> Context:
    path = folder / f"{name}.yaml"
    path.write_text(POLICY.format(name=name))
    if not (folder / f"{name}.sqlite").exists():
        Ledger.open(folder / f"{name}.sqlite", create=True).close()
    return dataclasses.replace(fixtures.context(), node_config={"ldp-policy": str(path)})


def spent(folder: Path, name: str) -> dict[str, dict[Unit, str]]:
    with Ledger.open(folder / f"{name}.sqlite") as ledger:
        ledger.verify()
        return {
            account: {unit: amount.epsilon_text for unit, amount in ledger.totals(account).items()}
            for account in ledger.data_ids()
        }


def run(folder: Path) -> NoisyLabels:
    """Let the labels' holder train with one party, both with a policy and a ledger."""
    own, server, party = tables(block=75), context(folder, "labels"), context(folder, "left")
    response = KaryResponse(4.0, 10, unit=Unit.LABEL)
    told = private_labels(server, labels(own)["train"], mechanism=response, name="train")
    noisy = NoisyLabels(told)
    strategy = SplitStrategy(
        CodeTop(10), CodebookEmbedding(8.0, 10), own, labels(own), parties=1, noisy_labels=noisy
    )
    side = Side("left", folder / "bottoms", BottomModelClaim("conditional"), width=10, block=75)
    strategy.start(LocalExchange({1: (split_client_app(side), party)}), epochs=1)
    return noisy


def test_a_second_run_tells_the_same_labels_and_nobody_pays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="flwr"):
        first = run(tmp_path)
    assert "labels: epsilon 4 per label, in all; charged to labels" in caplog.text
    assert spent(tmp_path, "labels") == {"labels": {Unit.LABEL: "4"}}
    party = spent(tmp_path, "left")
    assert {units[Unit.EXAMPLE] for units in party.values()} == {"8"}
    again = run(tmp_path)
    np.testing.assert_array_equal(again.private.reports, first.private.reports)
    assert spent(tmp_path, "labels") == {"labels": {Unit.LABEL: "4"}}
    assert spent(tmp_path, "left") == party
