"""A mean over examples, and one bounded number: what they tell."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_ldp.mechanisms import BoundedMean, ExampleMean, RandomSource

VALUES = (0.0, 1.0, 0.4, -3.0, 7.0, math.nan, math.inf, None, "right", [1.0])


@pytest.mark.parametrize("steps", [1, 3, 1024])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_replacing_one_example_moves_no_probability_by_more_than_epsilon(
    epsilon: float, steps: int
) -> None:
    mean = ExampleMean(epsilon, 3, steps=steps)
    sums = [-3 * steps, 0, 1, steps, 2 * steps, 5 * steps]
    law = [[mean.log_prob(report, [1.0, one, 0.0]) for report in sums] for one in VALUES]
    assert np.ptp(law, axis=0).max() == pytest.approx(epsilon, rel=1e-9)  # met and tight


def test_the_mean_is_unbiased_and_as_wide_as_it_says() -> None:
    mechanism = ExampleMean(1.0, 50, lower=-1.0, upper=3.0)
    values = [3.0] * 20 + [-1.0] * 30
    total = mechanism.total(values)
    found = mechanism.estimate(total + mechanism.noise.sample(4_000, RandomSource.seeded(5)))
    (noise,) = mechanism.noise.sample(1, RandomSource.seeded(6))
    assert mechanism.randomize(values, RandomSource.seeded(6)) == total + noise
    spread = mechanism.standard_deviation
    assert abs(found.mean() - 0.6) <= 5 * spread / math.sqrt(len(found))
    assert found.std() == pytest.approx(spread, rel=0.15)
    # A bounded mean of all of a client's data needs n times as much.
    assert spread == pytest.approx(4 / 50 * math.sqrt(2), rel=0.01)


def test_what_is_no_number_counts_as_the_lower_bound_and_others_as_the_nearest_step() -> None:
    mechanism = ExampleMean(1.0, 3, lower=1.0, upper=2.0)
    assert {mechanism.rounded(value) for value in (None, "x", math.nan, [2.0], {})} == {0}
    assert mechanism.rounded(math.inf) == mechanism.steps
    bounded = BoundedMean(1.0, 0.0, 1.0, grid_bits=2)
    values = (0.0, 0.12, 0.13, 0.5, 0.99, 1.0, 7.0, -7.0)
    assert [bounded._rounded(value) for value in values] == [0, 0, 1, 2, 4, 4, 4, 0]


def test_a_bounded_number_is_unbiased_within_the_bounds_and_clipped_outside() -> None:
    mechanism, rng = BoundedMean(1.0, 0.5, 4.5), RandomSource.seeded(1)
    assert mechanism.standard_deviation == pytest.approx(math.sqrt(2) * 4.0, rel=1e-6)
    for value, expected in ((0.7, 0.7), (4.4, 4.4), (-3.0, 0.5), (1e300, 4.5)):
        reports = np.array([mechanism.randomize(value, rng) for _ in range(1500)])
        error = mechanism.estimate(reports).mean() - expected
        assert abs(error) < 4.9 * mechanism.standard_deviation / math.sqrt(1500)
