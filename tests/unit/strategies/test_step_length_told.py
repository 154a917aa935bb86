"""A fixed rate's first step is told beside the weights' own length; one as long is warned of."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest

from flower_ldp.mechanisms import MagRR, RandomSource, SignDS
from flower_ldp.strategies import AgreedLength, FixedStep, LearnedStep, SignDSStrategy
from tests.fixtures import record
from tests.unit.strategies.rounds import aggregated, answer, ask

pytestmark = pytest.mark.usefixtures("outside_a_run")
MODEL = {"w": np.full(400, 0.5, dtype=np.float32)}
SELECTION = SignDS(8.0, 0.2)


def told(
    strategy: SignDSStrategy, caplog: pytest.LogCaptureFixture, model: dict[str, np.ndarray] = MODEL
) -> tuple[list[logging.LogRecord], float]:
    """Return what two rounds said of the step, and the first step's share of the weights."""
    strategy.expect(2, record(model))
    caplog.clear()
    share = math.nan
    with caplog.at_level(logging.INFO, logger="flwr"):
        for number in (1, 2):
            source = RandomSource.seeded(number)
            update = np.arange(400, dtype=np.float32)
            replies = [answer(sent, update, source) for sent in ask(strategy, model, number)]
            after, _ = aggregated(strategy, replies, number)
            if number == 1:
                step = np.linalg.norm(after["w"] - model["w"])
                share = float(step / max(np.linalg.norm(model["w"]), 1e-30))
    return [one for one in caplog.records if "times as long" in one.message], share


@pytest.mark.parametrize(("rate", "level"), [(0.1, logging.INFO), (100.0, logging.WARNING)])
def test_it_is_told_once_in_a_run_and_warned_of_where_it_is_as_long_as_the_weights(
    rate: float, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = SignDSStrategy(SELECTION, FixedStep(rate))
    for _ in range(2):  # a strategy serves several runs
        (found,), share = told(strategy, caplog)
        assert found.levelno == level
        assert f"{share:.2g} times as long" in found.message
        assert (level == logging.WARNING) == (share >= 1.0) == ("sign_global_lr" in found.message)


def test_nothing_is_told_of_steps_that_are_learned_planned_or_from_zero(
    caplog: pytest.LogCaptureFixture,
) -> None:
    learned = SignDSStrategy(SELECTION, LearnedStep(MagRR(1.0, initial_estimate=100.0)))
    planned = SignDSStrategy(SELECTION, FixedStep(100.0), server_optimizer=AgreedLength())
    zeros = {"w": np.zeros(400, dtype=np.float32)}
    assert told(learned, caplog)[0] == []
    assert told(planned, caplog)[0] == []
    assert told(SignDSStrategy(SELECTION, FixedStep(100.0)), caplog, zeros)[0] == []
