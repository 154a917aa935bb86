"""Trainings and pure releases that were fixed beforehand, as one sum of losses."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("scipy")

import numpy as np
from scipy import stats

from flower_ldp.accounting.dpsgd import (
    PureReleases,
    SampledGaussian,
    check_noise,
    joint_delta,
    joint_epsilon,
    noise_multiplier,
)
from flower_ldp.mechanisms import TrainingPlan

PLAN = SampledGaussian(3.74, 0.05, 100)


def of_any_epsilon(training: SampledGaussian, epsilon: float) -> float:
    """Return the exact delta's bound also below 0: its pair is its own mirror image."""
    if epsilon >= 0:
        return training.delta(epsilon)
    return -math.expm1(epsilon) + math.exp(epsilon) * training.delta(-epsilon)


def with_responses(training: SampledGaussian, each: float, number: int, epsilon: float) -> float:
    """Return the joint delta by conditioning on how many responses are true."""
    true = np.arange(number + 1)
    weights = stats.binom.pmf(true, number, 1 / (1 + math.exp(-each)))
    return sum(
        float(weight) * of_any_epsilon(training, epsilon - each * (2 * int(ones) - number))
        for ones, weight in zip(true, weights, strict=True)
    )


@pytest.mark.parametrize(("each", "number"), [(0.05, 20), (0.3, 7), (2.0, 3), (0.0123, 40)])
@pytest.mark.parametrize("epsilon", [0.0, 0.6, 1.7])
def test_responses_beside_a_training(each: float, number: int, epsilon: float) -> None:
    training = SampledGaussian(1.3, 0.1, 10)
    known = with_responses(training, each, number, epsilon)
    found = joint_delta([training, PureReleases(each, number)], epsilon)
    assert known * (1 - 1e-3) <= found <= known * 1.02 + 1e-12


@pytest.mark.parametrize(("each", "number"), [(0.1, 100), (1.0, 10), (8.0, 3)])
def test_pure_releases_alone_are_binomial(each: float, number: int) -> None:
    true = np.arange(number + 1)
    weights = stats.binom.pmf(true, number, 1 / (1 + math.exp(-each)))
    for epsilon in (0.0, 0.4 * each * number**0.5, 0.9 * each * number):
        over = np.maximum(each * (2 * true - number) - epsilon, 0.0)
        known = float(weights @ -np.expm1(-over))
        assert known * (1 - 1e-9) <= joint_delta([PureReleases(each, number)], epsilon)
        assert joint_delta([PureReleases(each, number)], epsilon) <= known * 1.002 + 1e-15
    assert joint_epsilon([PureReleases(each, number)], 1e-15) <= each * number * (1 + 1e-6)


def test_two_equal_plans_are_one_of_twice_the_steps() -> None:
    twice = SampledGaussian(3.74, 0.05, 200).epsilon(2e-5)
    assert joint_epsilon([PLAN, PLAN], 2e-5) == pytest.approx(twice, rel=1e-6)


def test_two_different_plans_lie_between() -> None:
    other = SampledGaussian(1.0, 0.01, 300)
    both = joint_epsilon([PLAN, other], 1e-5)
    assert max(PLAN.epsilon(1e-5), other.epsilon(1e-5)) < both
    assert both < PLAN.epsilon(5e-6) + other.epsilon(5e-6)


def test_published_figures() -> None:
    """A plan of about (1, 1e-5): with 20 evaluations of .05, and twice."""
    assert PLAN.epsilon(1e-5) == pytest.approx(1.0, abs=0.003)
    assert joint_epsilon([PLAN, PureReleases(0.05, 20)], 1e-5) == pytest.approx(1.32, abs=0.005)
    assert joint_epsilon([PLAN, PLAN], 2e-5) == pytest.approx(1.395, abs=0.001)


def test_noise_covers_evaluations_too() -> None:
    asked = PureReleases(0.05, 20)
    noise = noise_multiplier(1.32, 1e-5, sample_rate=0.05, steps=100, evaluations=asked)
    assert 3.70 < noise < 3.76
    plan = TrainingPlan(10, 10, 0.05, noise, 1.32, 1e-5, "", 20, 0.05)
    check_noise(plan)
    with pytest.raises(ValueError, match=r"100 steps at rate 0\.05 and 25 evaluations: at epsilon"):
        check_noise(TrainingPlan(10, 10, 0.05, noise, 1.32, 1e-5, "", 25, 0.05))


@pytest.mark.parametrize(("epsilon", "number"), [(1e-5, 1), (31.0, 1), (1.0, 0), (1.0, 1.5)])
def test_wrong_releases(epsilon: float, number: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        PureReleases(epsilon, number)


def test_a_joint_sum_has_a_part() -> None:
    with pytest.raises(ValueError, match="the number of parts must be"):
        joint_epsilon([], 1e-5)
