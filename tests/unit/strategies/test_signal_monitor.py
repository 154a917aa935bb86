"""The verdict of the first round, and warnings of steps that are noise or lost, once if at all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from flower_ldp.advice import UtilityForecast
from flower_ldp.mechanisms import Codeword, Gaussian, Laplace, MagRR, RandomSource, SignDS
from flower_ldp.strategies import (
    ClientPool,
    CodewordStrategy,
    FixedLength,
    FixedStep,
    GaussianStrategy,
    LaplaceEvalStrategy,
    LearnedStep,
    SignDSStrategy,
)
from flower_ldp.strategies.forecast import SignalMonitor
from flower_ldp.strategies.training import precision_loss
from flower_ldp.wire.layout import ModelLayout
from tests.fixtures import record
from tests.unit.strategies.rounds import answer, ask

DIMENSION = 400
MODEL = {"w": np.zeros(DIMENSION, dtype=np.float32)}
STEP = FixedLength(0.5, rounds=4)
MECHANISM = Codeword(8.0)


def outlook(rounds: int, each: int, dimension: int = DIMENSION) -> UtilityForecast:
    return UtilityForecast(MECHANISM.plan, dimension, rounds * each, rounds, each)


def rounds_of(
    watched: UtilityForecast, update: Callable[[], np.ndarray], caplog: pytest.LogCaptureFixture
) -> list[str]:
    """Return what is warned of while a run's reports come in, the verdict apart."""
    watch, source = SignalMonitor(watched), RandomSource.seeded(7)
    caplog.clear()
    for _ in range(watched.rounds):
        named = [
            MECHANISM.randomize(update(), source, watched.weights)
            for _ in range(watched.clients_per_round)
        ]
        watch.add(MECHANISM.total(named, watched.weights), len(named))
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def test_updates_without_a_direction_are_noise_and_are_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (said,) = rounds_of(outlook(8, 25), lambda: np.zeros(DIMENSION), caplog)
    assert said.startswith("the steps cannot be told from noise yet: the sum of 75 reports")
    assert "have little in common" in said


def test_clients_with_directions_of_their_own_alone_are_noise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    draw = np.random.default_rng(1)
    assert len(rounds_of(outlook(8, 25), lambda: draw.normal(size=DIMENSION), caplog)) == 1


def test_clients_that_agree_are_none(caplog: pytest.LogCaptureFixture) -> None:
    update = np.random.default_rng(1).normal(size=DIMENSION)
    assert rounds_of(outlook(8, 25), lambda: update, caplog) == []


def test_steps_are_called_noise_where_the_run_can_be_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The more weights, the less a sum of so many reports varies in length."""
    (said,) = rounds_of(outlook(4, 25, 32_768), lambda: np.zeros(32_768), caplog)
    assert said.startswith("the steps are noise: the sum of 25 reports")


def test_a_little_in_common_is_not_called_noise(caplog: pytest.LogCaptureFixture) -> None:
    """Runs of the README's app show one standard deviation of noise, and learn."""
    draw, shared = np.random.default_rng(3), np.random.default_rng(4).normal(size=DIMENSION)
    said = rounds_of(outlook(10, 6), lambda: 0.5 * shared + draw.normal(size=DIMENSION), caplog)
    assert not any("are noise" in one for one in said)


def test_a_hopeless_run_is_told_what_to_change(caplog: pytest.LogCaptureFixture) -> None:
    update = np.random.default_rng(1).normal(size=3_000)
    (said,) = rounds_of(outlook(8, 5, 3_000), lambda: update, caplog)
    assert said.startswith("the steps ")
    assert "Good would be at most" in said


@pytest.mark.parametrize("mechanism", [SignDS(8.0), Codeword(8.0), Codeword(8.0, blocks=7)])
def test_one_report_tells_nothing(mechanism: SignDS | Codeword, caplog: Any) -> None:
    plan = partial(mechanism.plan, quiet=True) if isinstance(mechanism, SignDS) else mechanism.plan
    one = UtilityForecast(plan, DIMENSION, 1, 1, 1)
    watch = SignalMonitor(one)
    caplog.clear()
    watch.add(np.zeros(DIMENSION), 1)
    assert not caplog.records


def test_where_noise_cannot_be_told_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Of a dozen weights a good run would not show."""
    assert rounds_of(outlook(4, 3, 12), lambda: np.zeros(12), caplog) == []


def said(caplog: pytest.LogCaptureFixture, start: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.getMessage().startswith(start)]


def run(strategy: CodewordStrategy, rounds: int) -> None:
    """Run rounds in which each node answers an update of zeros, as an honest gate would."""
    strategy.expect(rounds, record(MODEL))
    zeros = np.zeros(DIMENSION)
    for server_round in range(1, rounds + 1):
        asked = ask(strategy, MODEL, server_round, nodes=20)
        replies = [answer(one, zeros, RandomSource.seeded(1)) for one in asked]
        strategy.aggregate_train(server_round, replies)


@pytest.mark.usefixtures("outside_a_run")
def test_a_run_that_will_not_learn_is_told_in_its_first_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy = CodewordStrategy(
        Codeword(0.5), STEP, answers_per_client=1, fraction_train=0.25, min_train_nodes=5
    )
    run(strategy, 4)
    (verdict,) = said(caplog, "outlook")
    assert verdict.levelno == logging.WARNING
    assert "hopeless" in verdict.getMessage()
    assert "Good would be at least" in verdict.getMessage()
    run(strategy, 1)  # a new run, whose clients were all asked
    assert len(said(caplog, "outlook")) == 1


@pytest.mark.usefixtures("outside_a_run")
def test_a_good_outlook_is_no_warning_and_noise_still_is(caplog: pytest.LogCaptureFixture) -> None:
    strategy = CodewordStrategy(MECHANISM, STEP, answers_per_client=4)
    run(strategy, 4)
    (verdict,) = said(caplog, "outlook")
    assert verdict.levelno == logging.INFO
    assert verdict.getMessage().startswith("outlook: good")


@pytest.mark.parametrize(
    ("strategy", "lines"),
    [
        (
            CodewordStrategy(MECHANISM, STEP, answers_per_client=1, fraction_train=0.25),
            ["a client by training: at most epsilon 8 per client, asked once", "Rounds: 4 of 5",
             f"Sizes: K = {MECHANISM.plan(DIMENSION).favoured}",
             "FixedLength(length=0.5, ", "Bytes up of an answer: 3"],
        ),
        (
            SignDSStrategy(
                SignDS(4.0, 0.2), LearnedStep(MagRR(1.0)), answers_per_client=2, fraction_train=1.0
            ),
            ["at most epsilon 10 per client, asked 2 times", "Rounds: 2 of 20", "h = ",
             "Step rule: learned by MagRR"],
        ),
        (
            SignDSStrategy(SignDS(4.0, 0.2), FixedStep(1.0)),
            ["at most epsilon 120 per client, asked 30 times", "means nothing", "fixed rate",
             "Answers of a client: 1 in every round"],
        ),
        (
            GaussianStrategy(Gaussian(1.0, 1e-6, 0.5), answers_per_client=ClientPool(1)),
            ["epsilon 1, delta 1e-06 per client, asked once", "Bytes up of an answer: 401"],
        ),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("outside_a_run")
def test_the_summary_leads_with_the_total_and_ends_with_the_verdict(
    strategy: Any, lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    strategy.expect(30, record(MODEL))
    ask(strategy, MODEL, nodes=20)
    caplog.clear()
    strategy.summary()
    texts = [one.getMessage() for one in caplog.records]
    assert "Total of a client" in texts[0]
    for line in [*lines, "Cosine of a round's step: ", "Cosine of the run's steps: ", "Verdict: "]:
        assert any(line in text for text in texts), line


def test_what_is_not_known_yet_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    strategy = SignDSStrategy(SignDS(4.0), FixedStep(1.0))
    strategy.summary()
    assert "at most epsilon 4 per client for each round" in caplog.text
    assert "Bytes" not in caplog.text
    strategy.expect(30, record(MODEL))
    strategy.summary()
    assert "Rounds: 30; the first says" in caplog.text
    assert "Bytes up of an answer" in caplog.text
    assert "Verdict" not in caplog.text


def test_a_strategy_around_it_tells_it_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    inner = CodewordStrategy(MECHANISM, STEP, answers_per_client=None)
    around = LaplaceEvalStrategy(inner, Laplace(9.0, classes=4, rows=2))
    around.expect(30, record(MODEL))
    around.summary()
    assert "at most epsilon 240 per client, asked 30 times" in caplog.text
    LaplaceEvalStrategy(FedAvg(), Laplace(9.0, classes=4, rows=2)).expect(30, record(MODEL))


def test_a_run_of_no_rounds_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    strategy = SignDSStrategy(SignDS(4.0), FixedStep(1.0))
    strategy.expect(0, record(MODEL))
    strategy.summary()
    assert "Total of a client by training: nothing" in caplog.text
    assert "Verdict" not in caplog.text


def test_plans_are_asked_for_quietly() -> None:
    """Whose top set is small is said by the strategy, once, and not by its outlook."""
    assert UtilityForecast(partial(SignDS(1.0).plan, quiet=True), 40, 9, 1, 9).run_cosine > 0


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
    strategy = CodewordStrategy(Codeword(8.0), FixedLength(1e-4, 3), answers_per_client=None)
    source = RandomSource.seeded(1)
    asked = ask(strategy, {"w": np.ones(200, dtype)}, nodes=3)
    strategy.aggregate_train(1, [answer(one, np.ones(200), source) for one in asked])
    assert ("round 1: most of the step is lost" in caplog.text) == lost
