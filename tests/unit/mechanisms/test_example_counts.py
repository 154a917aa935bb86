"""Counts of examples in public intervals: sensitivity, weights, quantiles."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from flower_ldp.mechanisms import ExampleCounts, RandomSource
from flower_ldp.privacy import PrivacyEvent, Unit

EDGES = (0.0, 1.0, 10.0, 100.0)
#: What the rows of one example may say.
EXAMPLES: list[list[Any]] = [
    [],
    [0.5],
    [50.0],
    [0.5, 5.0, 50.0],
    [-7.0, 1e9],
    [math.nan],
    [None, "x", 5.0],
    [math.inf] * 100,
]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("steps", [1, 3, 64])
def test_replacing_one_example_moves_no_probability_by_more_than_epsilon(
    epsilon: float, steps: int
) -> None:
    mechanism = ExampleCounts(epsilon, EDGES, steps)
    worst = 0.0
    for one, other in itertools.product(EXAMPLES, EXAMPLES):
        for report in itertools.product((-5 * steps, 0, 5 * steps), repeat=3):
            told = np.array(report)
            pair = [mechanism.log_prob(told, [[0.5], each]) for each in (one, other)]
            worst = max(worst, abs(pair[0] - pair[1]))
    assert worst <= epsilon * (1 + 1e-9)
    assert worst == pytest.approx(epsilon)  # tight


@pytest.mark.parametrize("values", EXAMPLES)
def test_an_example_weighs_as_much_as_its_steps_at_most(values: list[Any]) -> None:
    weights = ExampleCounts(1.0, EDGES, 64).weights(values)
    assert (weights >= 0).all()
    assert weights.sum() <= 64


@pytest.mark.parametrize("steps", [1, 7, 64, 1 << 16])
@pytest.mark.parametrize("rows", [1, 33, 64, 65, 1_000])
def test_an_example_of_many_rows_weighs_as_much_as_one_of_few(rows: int, steps: int) -> None:
    mechanism = ExampleCounts(1.0, EDGES, steps)
    values = [0.5, 5.0, 50.0] * (rows // 3) + [5.0] * (rows % 3)
    weights = mechanism.weights([*values, None, math.nan])
    assert weights.sum() == steps
    assert (weights >= 0).all()
    shares = np.array([rows // 3, rows // 3 + rows % 3, rows // 3]) / rows
    assert (np.abs(weights - steps * shares) < 1).all()
    assert weights.dtype == np.int64


def test_weights_lie_in_the_intervals_of_the_rows() -> None:
    mechanism = ExampleCounts(1.0, EDGES, 6)
    assert mechanism.weights([0.5, 1.0, 99.0]).tolist() == [2, 2, 2]
    assert mechanism.weights([-1.0, 100.0]).tolist() == [3, 0, 3]
    assert mechanism.weights([None, math.nan]).tolist() == [0, 0, 0]


def test_the_cost_is_per_example() -> None:
    expected = (PrivacyEvent("example_counts", 0.5, unit=Unit.EXAMPLE),)
    assert ExampleCounts(0.5, EDGES).events() == expected


def test_quantiles_are_those_of_the_values_to_an_interval() -> None:
    edges = tuple(np.linspace(0.0, 10.0, 41))
    mechanism = ExampleCounts(5.0, edges)
    values = np.linspace(0.0, 8.0, 1_000)
    report = mechanism.randomize([[value] for value in values], RandomSource.seeded(3))
    for share in (0.25, 0.5, 0.9):
        assert abs(mechanism.quantile(report, share) - 8.0 * share) <= 0.5
    assert mechanism.quantile(report * 0 - 5, 0.5) in edges  # whatever the noise
    with pytest.raises(ValueError, match="share"):
        mechanism.quantile(report, 1.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.0},
        {"edges": (1.0,)},
        {"edges": (1.0, 1.0)},
        {"edges": (2.0, 1.0)},
        {"edges": (0.0, math.inf)},
        {"steps": 0},
        {"steps": 2.0},
    ],
)
def test_parameters_outside_their_intervals(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        ExampleCounts(**{"epsilon": 1.0, "edges": EDGES, **changes})
