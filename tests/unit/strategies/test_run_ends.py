"""Ends of runs: waiting for nodes has a limit, and the best model is on disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy

from flower_ldp.mechanisms import Gaussian, Laplace, SignDS
from flower_ldp.strategies import (
    BestModel,
    FixedStep,
    GaussianStrategy,
    LaplaceEvalStrategy,
    NodesUnavailableError,
    SignDSStrategy,
    grid_with_deadlines,
)
from tests.fixtures import record


class Clock:
    """Seconds that pass only when something sleeps."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class SomeGrid:
    """A grid whose nodes leave when the test says so."""

    run = "the run"
    nodes = (1, 2, 3)

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Any) -> list[str]:
        return []

    def pull_messages(self, message_ids: Any) -> list[Message]:
        return []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, outside_a_run: None) -> Clock:
    """Flower's own waiting, on a clock of the test's."""
    clock = Clock()
    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", clock.sleep)
    return clock


def test_waiting_for_nodes_ends_with_an_error(clock: Clock) -> None:
    some = SomeGrid()
    grid = grid_with_deadlines(cast(Grid, some), 30.0, clock=clock)
    strategy = SignDSStrategy(SignDS(epsilon=8.0, k=0.2), FixedStep(0.1), min_available_nodes=3)
    arrays = record({"w": np.zeros(1_000, dtype=np.float32)})
    for server_round in (1, 2, 3):
        clock.now += 100.0  # rounds may take as long as they like
        grid.send_and_receive(
            strategy.configure_train(server_round, arrays, ConfigRecord(), grid), timeout=0.1
        )
    some.nodes = (1,)
    begun = clock.now
    with pytest.raises(NodesUnavailableError, match="1 are there"):
        strategy.configure_train(4, arrays, ConfigRecord(), grid)
    assert 30.0 < clock.now - begun <= 32.0


def test_nodes_that_come_back_in_time_end_the_wait(clock: Clock) -> None:
    some = SomeGrid()
    grid = grid_with_deadlines(cast(Grid, some), 30.0, clock=clock)
    for _ in range(3):
        grid.get_node_ids()
        clock.now += 29.0
        grid.push_messages([])
    assert grid.run == "the run"  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    "strategy",
    [
        SignDSStrategy(SignDS(epsilon=8.0, k=0.2), FixedStep(0.1)),
        GaussianStrategy(Gaussian(epsilon=8.0, delta=1e-6, clip_norm=0.5)),
        LaplaceEvalStrategy(FedAvg(), Laplace(1.0, 10, rows=4)),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_a_strategy_that_is_started_does_not_wait_for_ever(
    strategy: Strategy, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = SomeGrid()
    some.nodes = (1,)
    with pytest.raises(NodesUnavailableError, match="1 are there"):
        strategy.start(grid_with_deadlines(cast(Grid, some), 60.0, clock=clock), model(0.0))
    assert 60.0 < clock.now <= 62.0
    monkeypatch.setattr(
        "flower_ldp.strategies.deadlines.grid_with_deadlines",
        partial(grid_with_deadlines, clock=clock),
    )
    clock.now = 0.0
    with pytest.raises(NodesUnavailableError, match="1 are there"):
        strategy.start(cast(Grid, some), model(0.0))
    assert 3_600.0 < clock.now <= 3_602.0


def model(value: float) -> ArrayRecord:
    return record({"layer.weight": np.full((2, 3), value, dtype=np.float32)})


def saved(path: Path) -> float:
    with np.load(path) as file:
        assert list(file) == ["layer.weight"]
        return float(file["layer.weight"][0, 0])


@pytest.mark.parametrize(("higher", "best"), [(True, 2), (False, 0)])
def test_the_best_model_is_kept(higher: bool, best: int, tmp_path: Path) -> None:
    values = [0.1, 0.5, 0.9, float("nan"), 0.7]
    keeper = BestModel(
        tmp_path / "best.npz",
        lambda number, _: MetricRecord({"accuracy": values[number]}),
        higher_is_better=higher,
    )
    for number in range(5):
        found = keeper(number, model(number))
        assert found is not None
    assert (keeper.server_round, keeper.value) == (best, values[best])
    assert saved(tmp_path / "best.npz") == best
    assert [path.name for path in tmp_path.iterdir()] == ["best.npz"]


@pytest.mark.parametrize("evaluated", [[], [1]], ids=["the latest", "the one evaluated"])
def test_without_evaluations_of_all_the_latest_or_the_one_that_was_is_kept(
    evaluated: list[int], tmp_path: Path
) -> None:
    def evaluate(number: int, _: ArrayRecord) -> MetricRecord | None:
        return MetricRecord({"accuracy": 0.5}) if number in evaluated else None

    keeper = BestModel(tmp_path / "best.npz", evaluate if evaluated else None)
    for number in range(4):
        assert (keeper(number, model(number)) is not None) is (number in evaluated)
    assert saved(tmp_path / "best.npz") == max(evaluated, default=3)
