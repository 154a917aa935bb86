"""Bounded mean: a clipped scalar with discrete Laplace noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_ldp.mechanisms import BoundedMean, NoProtectionWarning, RandomSource
from flower_ldp.mechanisms.signds_size import exp_scaled_at_least
from flower_ldp.privacy import PrivacyEvent


@pytest.mark.parametrize(("epsilon", "bits"), [(0.3, 0), (1.0, 2), (9.0, 3)])
def test_stated_epsilon_is_met_by_the_sampler_as_built(epsilon: float, bits: int) -> None:
    mechanism = BoundedMean(epsilon, -1.0, 3.0, grid_bits=bits)
    law, steps = mechanism.noise, mechanism.steps
    worst = 0.0
    for a in range(steps + 1):
        for b in range(steps + 1):
            for y in range(-3, steps + 4):
                ratio = law.probability(y - a) / law.probability(y - b)
                assert exp_scaled_at_least(epsilon, ratio.denominator, ratio.numerator)
                worst = max(worst, math.log(ratio))
    assert worst == pytest.approx(epsilon, abs=1e-12)


def test_cost_is_one_release_of_its_own_name() -> None:
    assert BoundedMean(0.5, 0.0, 2.0).events() == (PrivacyEvent("bounded_mean", 0.5),)


def test_estimate_is_unbiased_within_the_bounds_and_clipped_outside() -> None:
    mechanism, rng = BoundedMean(1.0, 0.5, 4.5), RandomSource.seeded(1)
    for value, expected in ((0.7, 0.7), (4.4, 4.4), (-3.0, 0.5), (1e300, 4.5)):
        reports = np.array([mechanism.randomize(value, rng) for _ in range(1500)])
        error = mechanism.estimate(reports).mean() - expected
        assert abs(error) < 4.9 * mechanism.standard_deviation / math.sqrt(1500)


def test_standard_deviation_is_that_of_the_noise() -> None:
    mechanism = BoundedMean(2.0, 0.0, 10.0)
    assert mechanism.standard_deviation == pytest.approx(math.sqrt(2) * 10.0 / 2.0, rel=1e-6)


def test_rounding_is_to_the_nearest_step() -> None:
    mechanism = BoundedMean(1.0, 0.0, 1.0, grid_bits=2)
    values = (0.0, 0.12, 0.13, 0.5, 0.99, 1.0, 7.0, -7.0)
    assert [mechanism._rounded(value) for value in values] == [0, 0, 1, 2, 4, 4, 4, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 0.0, 1.0), "epsilon must be in"),
        ((1.0, 1.0, 1.0), "lower must be below upper"),
        ((1.0, 2.0, 1.0), "lower must be below upper"),
        ((1.0, -1.7e308, 1.7e308), "lower must be below upper"),
        ((1.0, 0.0, math.inf), "both be finite"),
        ((1.0, math.nan, 1.0), "both be finite"),
        ((1.0, 0.0, 1.0, 41), "grid_bits must be an integer in"),
        ((90.0, 0.0, 1.0, 0), "grid_bits must keep"),
    ],
)
def test_parameters_outside_their_intervals_are_refused(
    arguments: tuple[float, float, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        BoundedMean(*arguments)


def test_a_large_epsilon_is_warned_of() -> None:
    with pytest.warns(NoProtectionWarning, match="protects nothing"):
        BoundedMean(101.0, 0.0, 1.0)
