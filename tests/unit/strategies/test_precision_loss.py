"""Steps that half precision cannot tell are told of."""

from __future__ import annotations

import logging
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from flower_ldp.mechanisms import Codeword, RandomSource
from flower_ldp.strategies import CodewordStrategy, FixedLength
from flower_ldp.strategies.training import precision_loss
from flower_ldp.wire.layout import ModelLayout
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY
from tests.fixtures import message, parsed, record
from tests.unit.strategies.fake_grid import FakeGrid, make_messages_outside_a_run


def moved_by(model: dict[str, NDArray[Any]], length: float) -> str | None:
    layout = ModelLayout.of(model)
    step = np.full(layout.dimension, length / layout.dimension**0.5)
    return precision_loss(layout, model, layout.add(model, step), step)


@pytest.mark.parametrize(
    ("model", "length", "lost"),
    [
        ({"w": np.ones(60_000, np.float16)}, 0.05, True),
        ({"w": np.ones(60_000, np.float16)}, 5.0, False),
        ({"w": np.zeros(60_000, np.float16)}, 0.05, False),
        ({"w": np.ones(60_000, np.float32)}, 0.05, False),
        ({"w": np.ones(60_000, np.float16)}, 0.0, False),
        ({"b": np.ones((), np.float32), "w": np.ones((60, 100), np.float16)}, 0.001, True),
    ],
)
def test_a_step_that_half_precision_does_not_tell(
    model: dict[str, NDArray[Any]], length: float, lost: bool
) -> None:
    found = moved_by(model, length)
    assert (found is not None) == lost
    assert found is None or ("'w'" in found and "float32" in found)


@pytest.mark.parametrize(("dtype", "lost"), [(np.float16, True), (np.float32, False)])
def test_a_strategy_says_so(
    dtype: type[Any],
    lost: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_messages_outside_a_run(monkeypatch)
    caplog.set_level(logging.WARNING, logger="flwr")
    strategy = CodewordStrategy(Codeword(8.0), FixedLength(1e-4, rounds=3))
    model, replies = record({"w": np.ones(200, dtype)}), []
    grid = cast(Any, FakeGrid(3))
    for one in strategy.configure_train(1, model, ConfigRecord(), grid):
        asked = parsed(one.content.config_records[PROPOSAL_KEY])
        drawn = asked.mechanism.randomize(np.ones(200), RandomSource.seeded(1), 200)
        payload = asked.mechanism.encode(drawn, 200)
        content = RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: payload})})
        replies.append(message(content, node=one.metadata.dst_node_id, reply=True))
    strategy.aggregate_train(1, replies)
    assert ("round 1: most of the step is lost" in caplog.text) == lost
