"""From noise to epsilon and back, with the true sensitivity and the published one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_ldp.mechanisms import Laplace, LaplacePlan, RandomSource


def test_the_published_setting_has_a_true_epsilon_of_460520() -> None:
    plan = LaplacePlan.from_published(230_260)
    assert plan.epsilon == 460_520.0
    assert plan.published_epsilon == 230_260.0
    assert plan.noise_below(0.9) == pytest.approx(1e-5, rel=1e-4)


@pytest.mark.parametrize(("below", "probability"), [(1e-5, 0.9), (0.1, 0.5), (3.0, 1e-9)])
def test_noise_gives_epsilon_and_epsilon_gives_noise(below: float, probability: float) -> None:
    plan = LaplacePlan.from_noise(below, probability)
    assert plan.epsilon == pytest.approx(-math.log1p(-probability) * 2 / below)
    assert plan.noise_below(probability) == pytest.approx(below)


def test_the_mechanism_has_the_noise_that_was_planned() -> None:
    plan = LaplacePlan.from_noise(below=0.4, probability=0.8)
    mechanism = Laplace(plan.epsilon, classes=10, rows=10_000)
    rows = np.full((10_000, 10), 0.1)
    noise = mechanism.estimate(mechanism.randomize(rows, RandomSource.seeded(3))) - 0.1
    share = np.mean(np.abs(noise) < 0.4)
    # a millionth beyond 4.9 standard deviations, and a part in a thousand for the grid
    assert abs(share - 0.8) < 4.9 * math.sqrt(0.8 * 0.2 / noise.size) + 1e-3


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_impossible_plans_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be"):
        LaplacePlan(bad)
    with pytest.raises(ValueError, match="below must be"):
        LaplacePlan.from_noise(bad, 0.5)
    if bad != math.inf:
        with pytest.raises(ValueError, match="probability must be"):
            LaplacePlan(1.0).noise_below(bad)
    with pytest.raises(ValueError, match="probability must be"):
        LaplacePlan.from_noise(1.0, 1.0)
