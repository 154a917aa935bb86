"""Arguments that strategies and what they are made of refuse, by their names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from flwr.app import MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, FedXgbBagging, FedXgbCyclic, QFedAvg

from flower_ldp.mechanisms import Codeword, Gaussian, MagRR, SignDS
from flower_ldp.strategies import (
    Adagrad,
    Adam,
    AgreedLength,
    BestModel,
    ClientPool,
    CodewordStrategy,
    DPSGDStrategy,
    FixedLength,
    FixedStep,
    LearnedStep,
    Momentum,
    SignDSStrategy,
    Yogi,
    grid_with_deadlines,
)
from flower_ldp.strategies.evaluation_scores import ClusterScore
from flower_ldp.strategies.named import StepSize
from flower_ldp.strategies.sampling import MOST_ANSWERS
from tests.unit.strategies.rounds import FakeGrid

Make = Callable[..., object]
BELOW_ONE = ("[0, 1)", (-0.1, 1.0, math.nan))
POSITIVE = ("(0, inf)", (0.0, -1.0, math.inf, math.nan))
SHARE = ("[0, 1]", (-0.01, 1.01, math.nan))
SIGNDS = SignDS(4.0, 0.2)


@pytest.mark.parametrize(
    ("make", "name", "interval", "outside"),
    [
        (Momentum, "momentum", *BELOW_ONE),
        (Momentum, "learning_rate", *POSITIVE),
        (partial(FixedLength, 1.0, 1), "momentum", *BELOW_ONE),
        (partial(FixedLength, rounds=1), "length", *POSITIVE),
        (partial(FixedLength, 1.0, 1), "final_fraction", *SHARE),
        (AgreedLength, "momentum", *BELOW_ONE),
        *((kind, name, *POSITIVE) for kind in (Adam, Yogi, Adagrad) for name in ("eta", "tau")),
        *((kind, name, *BELOW_ONE) for kind in (Adam, Yogi) for name in ("beta_1", "beta_2")),
        (FixedStep, "global_lr", *POSITIVE),
        (partial(LearnedStep, MagRR(1.0)), "min_participation", *SHARE),
    ],
)
def test_numbers_outside_their_intervals(
    make: Make, name: str, interval: str, outside: tuple[float, ...]
) -> None:
    for value in outside:
        words = re.escape(f"{name} must be in {interval}, got {value}")
        with pytest.raises(ValueError, match=words):
            make(**{name: value})


@pytest.mark.parametrize(
    ("make", "values", "words"),
    [
        (partial(FixedLength, 1.0), (0, -1), "rounds must be an integer in .*, got"),
        (ClientPool, (0, -1, True, 1.5, None, MOST_ANSWERS + 1), "answers_per_client must be"),
        (
            lambda asked: SignDSStrategy(SIGNDS, FixedStep(0.1), answers_per_client=asked),
            (0, True, 1.5, "once"),
            "answers_per_client must be",
        ),
        (
            partial(grid_with_deadlines, cast(Grid, FakeGrid(1))),
            (0.0, -1.0, math.inf, math.nan),
            "wait_seconds must be in",
        ),
        (partial(StepSize, FixedStep(0.1)), ("mean",), "scaling must be one of .*, got 'mean'"),
        (BestModel, (Path("best.pt"),), r"must end in \.npz"),
        (
            lambda weight: DPSGDStrategy(FedAvg(), {5: weight}),
            (0, -1.0, math.nan, math.inf),
            "the weight of node 5",
        ),
        (
            partial(DPSGDStrategy, FedAvg()),
            ({1: 1e308, 2: 1e308},),
            "the sum of weights is infinite",
        ),
        (ClusterScore, ("silhouette",), "score must"),
    ],
)
def test_values_that_are_none(make: Make, values: tuple[object, ...], words: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=words):
            make(value)


@pytest.mark.parametrize(
    ("make", "given", "words"),
    [
        (CodewordStrategy, (Gaussian(1.0, 1e-6),), "mechanism must be a Codeword"),
        (CodewordStrategy, (Codeword,), "mechanism must be a Codeword"),
        (CodewordStrategy, (Codeword(8.0), "fixed"), "server_optimizer must be"),
        (CodewordStrategy, (Codeword(8.0), 0.5), "server_optimizer must be"),
        (DPSGDStrategy, (FedAvg,), "strategy must be a strategy of Flower's"),
        (DPSGDStrategy, (QFedAvg(0.1),), "QFedAvg needs losses or trees"),
        (DPSGDStrategy, (FedXgbBagging(),), "FedXgbBagging needs losses or trees"),
        (DPSGDStrategy, (FedXgbCyclic(),), "FedXgbCyclic needs losses or trees"),
    ],
)
def test_arguments_of_other_types(make: Make, given: tuple[Any, ...], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        make(*given)


def test_a_best_model_needs_the_metric_that_it_is_best_by(tmp_path: Path) -> None:
    keeper = BestModel(tmp_path / "best.npz", lambda *_: MetricRecord({"loss": 1.0}))
    with pytest.raises(ValueError, match="'accuracy'"):
        keeper(1, cast(Any, {}))
