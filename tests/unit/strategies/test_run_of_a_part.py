"""What a run is told of itself counts what reports are about: a part of the model, a subspace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from flower_ldp.mechanisms import Codeword, Gaussian, RandomSource, SignDS, Subspace
from flower_ldp.strategies import (
    CodewordStrategy,
    FixedLength,
    FixedStep,
    GaussianStrategy,
    SignDSStrategy,
)
from flower_ldp.strategies.training import TrainingStrategy
from tests.fixtures import record
from tests.unit.strategies.rounds import answer, ask, proposed

pytestmark = pytest.mark.usefixtures("outside_a_run")

MECHANISM = Codeword(8.0)
TRUNK = {"trunk": np.zeros(64_511, dtype=np.float32), "head": np.zeros(1_025, dtype=np.float32)}
#: Model, what of it is trained, and how many entries a report has.
PARTS: Mapping[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "trainable": (TRUNK, {"trainable": "head"}, 1_025),
    "subspace": (TRUNK, {"subspace": Subspace(1_024)}, 1_024),
    "both": (TRUNK, {"trainable": "head", "subspace": Subspace(1_000)}, 1_000),
}
EVERY_PART = pytest.mark.parametrize(("model", "part", "entries"), PARTS.values(), ids=PARTS)


def strategy_of(part: Mapping[str, Any]) -> CodewordStrategy:
    step = FixedLength(0.5, rounds=4)
    return CodewordStrategy(MECHANISM, step, answers_per_client=1, fraction_train=0.25, **part)


def said(caplog: pytest.LogCaptureFixture, start: str) -> list[str]:
    texts = [one.getMessage() for one in caplog.records]
    return [text for text in texts if text.startswith(start)]


@EVERY_PART
def test_the_verdict_and_the_sizes_are_those_of_the_reports(
    model: dict[str, Any], part: dict[str, Any], entries: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 65,536 weights 300 clients would learn next to nothing."""
    strategy = strategy_of(part)
    strategy.expect(4, record(model))
    sent = ask(strategy, model, nodes=300)
    assert len(said(caplog, "outlook: good")) == 1
    assert len(said(caplog, "these cosines are within the")) == int("subspace" in part)
    caplog.clear()
    strategy.summary()
    plan = MECHANISM.plan(entries)
    proposal = proposed(sent[0])
    assert f"Bytes up of an answer: {proposal.report_bytes(entries)}" in caplog.text
    assert f"Sizes: K = {plan.favoured}" in caplog.text
    assert f"Entries of an update that answers are about: {entries:,}" in caplog.text
    assert "Verdict: good" in caplog.text


@pytest.mark.parametrize(
    ("strategy", "line"),
    [
        (GaussianStrategy(Gaussian(1.0, 1e-6), trainable="head"), "of an answer: 1,026"),
        (SignDSStrategy(SignDS(8.0, 0.2), FixedStep(0.1), subspace=Subspace(64)), "K = 12, h = 8"),
    ],
)
def test_other_strategies_count_them_too(
    strategy: TrainingStrategy[Any], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    strategy.expect(4, record(TRUNK))
    strategy.summary()
    assert line in caplog.text


def test_a_frozen_trunk_may_be_larger_than_any_report(caplog: pytest.LogCaptureFixture) -> None:
    model = {"trunk": np.zeros(2**24 + 1, dtype=np.float16), "head": np.zeros(200)}
    strategy = strategy_of({"trainable": "head"})
    strategy.expect(4, record(model))
    strategy.summary()
    assert len(ask(strategy, model, nodes=300)) == 75
    assert len(said(caplog, "outlook: good")) == 1


def warned(
    part: Mapping[str, Any],
    model: Mapping[str, Any],
    update: Callable[[], np.ndarray],
    caplog: pytest.LogCaptureFixture,
) -> list[str]:
    """Return what is said of noise in four rounds of 100 clients with such updates."""
    strategy, source = strategy_of(part), RandomSource.seeded(5)
    strategy.expect(4, record(model))
    for server_round in range(1, 5):
        asked = ask(strategy, model, server_round, nodes=400)
        replies = [answer(one, update(), source) for one in asked]
        strategy.aggregate_train(server_round, replies)
    return said(caplog, "the steps ")


@EVERY_PART
def test_clients_that_agree_are_not_called_noise(
    model: dict[str, Any], part: dict[str, Any], entries: int, caplog: pytest.LogCaptureFixture
) -> None:
    update = np.random.default_rng(1).normal(size=entries)
    assert warned(part, model, lambda: update, caplog) == []


@pytest.mark.parametrize(
    ("model", "part", "entries"),
    [*PARTS.values(), ({"w": np.zeros(1_025, dtype=np.float32)}, PARTS["subspace"][1], 1_024)],
    ids=[*PARTS, "twice as many rows"],
)
def test_clients_that_do_not_agree_are(
    model: dict[str, Any], part: dict[str, Any], entries: int, caplog: pytest.LogCaptureFixture
) -> None:
    draw = np.random.default_rng(1)
    (text,) = warned(part, model, lambda: draw.normal(size=entries), caplog)
    assert "have little in common" in text
