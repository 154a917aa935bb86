"""What a server optimizer keeps is of one run, and of steps that are finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from flower_ldp.mechanisms import SignDS
from flower_ldp.mechanisms.signds_round import encode_report
from flower_ldp.strategies import (
    Adagrad,
    Adam,
    FixedLength,
    FixedStep,
    Momentum,
    ServerOptimizer,
    SignDSStrategy,
    Yogi,
)
from flower_ldp.wire.proposal import PAYLOAD_KEY, REPORT_KEY
from tests.fixtures import message, record
from tests.unit.strategies.fake_grid import FakeGrid, make_messages_outside_a_run

SELECTION = SignDS(epsilon=20.0, k=0.2)
MODEL = record({"w": np.ones(300, dtype=np.float32)})
PROPOSED = np.linspace(-1.0, 1.0, 300, dtype=np.float32)
MAKERS = [Adam, Yogi, Adagrad, Momentum, lambda: FixedLength(0.5, rounds=3)]
every_optimizer = pytest.mark.parametrize("make", MAKERS)


@every_optimizer
def test_a_run_begins_with_nothing_of_another_runs_model(
    make: Callable[[], ServerOptimizer],
) -> None:
    used = make()
    strategy = SignDSStrategy(SELECTION, FixedStep(0.5), server_optimizer=used)
    used.step(np.ones(7, dtype=np.float32), 1)
    strategy.expect(3, MODEL)
    assert np.array_equal(used.step(PROPOSED, 1), make().step(PROPOSED, 1))


@every_optimizer
@pytest.mark.usefixtures("simulation_policy")
def test_a_step_that_is_not_finite_does_not_spoil_those_after_it(
    make: Callable[[], ServerOptimizer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_messages_outside_a_run(monkeypatch)
    caplog.set_level("ERROR", logger="flwr")
    used = make()
    # Of float32, in which steps are, this is an infinity.
    strategy = SignDSStrategy(SELECTION, FixedStep(1e39), server_optimizer=used)
    grid = cast(Any, FakeGrid(2))
    asked, _ = strategy.configure_train(1, MODEL, ConfigRecord(), grid)
    plan = SELECTION.plan(300)
    payload = encode_report(np.arange(plan.dim_out), 1, None, dimension=300)
    content = RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: payload})})
    answer = message(content, node=asked.metadata.dst_node_id, reply=True)
    arrays, metrics = strategy.aggregate_train(1, [answer])
    assert arrays is None
    assert metrics is not None
    assert metrics["accepted"] == 1
    assert "not finite" in caplog.text
    assert np.array_equal(used.step(PROPOSED, 2), make().step(PROPOSED, 2))
