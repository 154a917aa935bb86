"""A mean over examples: sensitivity, the law, what is no number."""

from __future__ import annotations

import itertools
import math

import pytest

from flower_ldp.mechanisms import ExampleMean, RandomSource
from flower_ldp.privacy import PrivacyEvent, Unit

VALUES = (0.0, 1.0, 0.4, -3.0, 7.0, math.nan, math.inf, None, "right", [1.0])


@pytest.mark.parametrize("steps", [1, 2, 1024])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_replacing_one_example_moves_no_probability_by_more_than_epsilon(
    epsilon: float, steps: int
) -> None:
    mechanism = ExampleMean(epsilon, 3, steps=steps)
    worst = 0.0
    for one, other in itertools.product(VALUES, VALUES):
        first, second = [1.0, one, 0.0], [1.0, other, 0.0]
        for report in (-3 * steps, 0, 1, steps, 2 * steps, 5 * steps):
            ratio = mechanism.log_prob(report, first) - mechanism.log_prob(report, second)
            worst = max(worst, abs(ratio))
    assert worst <= epsilon * (1 + 1e-12)
    assert worst == pytest.approx(epsilon)  # tight


def test_the_cost_is_per_example() -> None:
    assert ExampleMean(0.5, 91).events() == (PrivacyEvent("example_mean", 0.5, unit=Unit.EXAMPLE),)


def test_the_estimate_is_unbiased_and_as_wide_as_it_says() -> None:
    mechanism = ExampleMean(1.0, 50, lower=-1.0, upper=3.0)
    values = [3.0] * 20 + [-1.0] * 30
    rng = RandomSource.seeded(5)
    found = mechanism.estimate(mechanism.total(values) + mechanism.noise.sample(4_000, rng))
    assert mechanism.randomize(values, RandomSource.seeded(6)) == mechanism.total(values) + int(
        mechanism.noise.sample(1, RandomSource.seeded(6))[0]
    )
    spread = mechanism.standard_deviation
    assert abs(found.mean() - 0.6) <= 5 * spread / math.sqrt(len(found))
    assert found.std() == pytest.approx(spread, rel=0.15)
    # A bounded mean of all of a client's data needs n times as much.
    assert spread == pytest.approx(4 / 50 * math.sqrt(2), rel=0.01)


def test_what_is_no_number_counts_as_the_lower_bound() -> None:
    mechanism = ExampleMean(1.0, 3, lower=1.0, upper=2.0)
    for value in (None, "x", math.nan, [2.0], {}):
        assert mechanism.rounded(value) == 0
    assert mechanism.rounded(math.inf) == mechanism.steps


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.0},
        {"examples": 0},
        {"examples": 1.5},
        {"steps": 0},
        {"steps": 2**21},
        {"lower": 1.0},
        {"upper": math.inf},
    ],
)
def test_parameters_outside_their_intervals(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        ExampleMean(**{"epsilon": 1.0, "examples": 3, **changes})  # type: ignore[arg-type]
