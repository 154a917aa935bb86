"""Steps that half precision cannot tell are told of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flower_ldp.mechanisms import Codeword, RandomSource
from flower_ldp.strategies import CodewordStrategy, FixedLength
from flower_ldp.strategies.training import precision_loss
from flower_ldp.wire.layout import ModelLayout
from tests.unit.strategies.rounds import answer, ask


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


@pytest.mark.usefixtures("outside_a_run")
@pytest.mark.parametrize(("dtype", "lost"), [(np.float16, True), (np.float32, False)])
def test_a_strategy_says_so(dtype: type[Any], lost: bool, caplog: pytest.LogCaptureFixture) -> None:
    strategy, source = CodewordStrategy(Codeword(8.0), FixedLength(1e-4, 3)), RandomSource.seeded(1)
    asked = ask(strategy, {"w": np.ones(200, dtype)}, nodes=3)
    strategy.aggregate_train(1, [answer(one, np.ones(200), source) for one in asked])
    assert ("round 1: most of the step is lost" in caplog.text) == lost
