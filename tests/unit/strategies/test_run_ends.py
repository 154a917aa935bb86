"""Ends of runs: waiting for nodes has a limit, and the best model is on disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
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
from tests.fixtures import message, record


class Clock:
    """Seconds that pass only when something sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class SomeGrid:
    """A grid whose nodes leave when the test says so."""

    run = "the run"

    def __init__(self) -> None:
        self.nodes = [1, 2, 3]

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def push_messages(self, messages: Any) -> list[str]:
        return []

    def pull_messages(self, message_ids: Any) -> list[Message]:
        return []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Flower's own waiting, on a clock of the test's."""
    clock = Clock()
    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", clock.sleep)

    def make(self: FedAvg, content: RecordDict, nodes: list[int], kind: str) -> list[Message]:
        return [message(content, node=node, kind=kind) for node in nodes]

    monkeypatch.setattr(FedAvg, "_construct_messages", make)
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
    some.nodes = [1]
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
    some.nodes = [1]
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


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_wait_must_be_a_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="wait_seconds must be in"):
        grid_with_deadlines(cast(Grid, SomeGrid()), seconds)


def model(value: float) -> ArrayRecord:
    return ArrayRecord({"layer.weight": Array(np.full((2, 3), value, dtype=np.float32))})


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


def test_without_an_evaluation_the_latest_model_is_kept(tmp_path: Path) -> None:
    keeper = BestModel(tmp_path / "best.npz")
    for number in range(3):
        assert keeper(number, model(number)) is None
    assert saved(tmp_path / "best.npz") == 2


def test_a_round_that_was_not_evaluated_does_not_replace_one_that_was(tmp_path: Path) -> None:
    keeper = BestModel(
        tmp_path / "best.npz",
        lambda number, _: MetricRecord({"accuracy": 0.5}) if number == 1 else None,
    )
    for number in range(4):
        keeper(number, model(number))
    assert saved(tmp_path / "best.npz") == 1


def test_wrong_use_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.npz"):
        BestModel(tmp_path / "best.pt")
    keeper = BestModel(tmp_path / "best.npz", lambda *_: MetricRecord({"loss": 1.0}))
    with pytest.raises(ValueError, match="'accuracy'"):
        keeper(1, model(1))
