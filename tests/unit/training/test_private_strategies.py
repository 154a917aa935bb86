"""Flower's own strategies, unchanged, over clients that train privately through the gate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

import numpy as np
from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import DPSGDRelease
from flower_ldp.mechanisms import TrainingPlan
from flower_ldp.simulation import run_in_process
from flower_ldp.wire.training_plan import plan_fields
from tests.fixtures import record
from tests.unit.training.gated import MODEL, Site

CLIENTS, ROUNDS = 3, 2
#: Each takes the replies as they are; none is asked to evaluate.
STRATEGIES: dict[str, Callable[..., Strategy]] = {
    "FedAvg": flower.FedAvg,
    "FedAdam": flower.FedAdam,
    "FedYogi": flower.FedYogi,
    "FedAdagrad": flower.FedAdagrad,
    "FedTrimmedAvg": flower.FedTrimmedAvg,
    "Krum": flower.Krum,
    "FedProx": lambda **given: flower.FedProx(proximal_mu=0.1, **given),
}


def run(
    site: Site, strategy: Strategy, config: dict[str, Any] | None = None, key: str = "num-examples"
) -> Any:
    """Return the result of all rounds."""
    server, found = ServerApp(), []

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        given = ConfigRecord(config or {})
        found.append(strategy.start(grid, record(MODEL), num_rounds=ROUNDS, train_config=given))

    node = {"ldp-policy": str(site.folder / "policy.yaml")}
    run_in_process(server, site.app(DPSGDRelease(key)), CLIENTS, node_config=node)
    return found[0]


@pytest.mark.parametrize("name", STRATEGIES)
def test_flowers_strategies_work_unchanged(tmp_path: Path, name: str) -> None:
    site = Site(tmp_path, mode="simulation")
    result = run(site, STRATEGIES[name](fraction_evaluate=0.0))
    for name in MODEL:
        moved = result.arrays[name].numpy()
        assert (np.isfinite(moved) & (moved != 0)).all()
    with Ledger.open(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        assert sorted(ledger.accounts()) == [f"ward/{client}" for client in range(CLIENTS)]
        for client in range(CLIENTS):
            (label, example) = ledger.spending(f"ward/{client}")[::-1][:2]
            assert {label.unit.value, example.unit.value} == {"label", "example"}
            assert example.in_all.epsilon_text == "8"


def test_a_plan_travels_in_the_strategys_own_configuration(tmp_path: Path) -> None:
    site = Site(tmp_path, mode="simulation")
    plan = TrainingPlan(2, 3, 1.0, 2.1, 8.0, 1e-2, "first", clip=1.0)
    strategy = FedAvg(fraction_evaluate=0.0, weighted_by_key="patients")
    result = run(site, strategy, plan_fields(plan), "patients")
    assert result.arrays["weight"].numpy().shape == (1, 2)
