"""The outlook's ratio is that of simulated noise, and its remedies make a run good."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flower_ldp.mechanisms import TrainingOutlook, TrainingPlan
from flower_ldp.mechanisms.base import Verdict
from flower_ldp.mechanisms.training_outlook import outputs

PLAN = TrainingPlan(rounds=4, steps=5, rate=0.1, noise=5.0, epsilon=1.0, delta=1e-5)


def outlook(agreement: float | None, **changes: Any) -> TrainingOutlook:
    return replace(TrainingOutlook(PLAN, 300, agreement=agreement), **changes)


@pytest.mark.parametrize("weights", [8, 512])
@pytest.mark.parametrize("sites", [1, 4])
def test_the_ratio_is_that_of_simulated_noise_whatever_the_weights(
    weights: int, sites: int
) -> None:
    rng, plan, rows = np.random.default_rng(3), PLAN, 300
    common = rng.normal(size=weights) / math.sqrt(weights)
    gradients = common + 2.0 * rng.normal(size=(rows, weights)) / math.sqrt(weights)
    gradients *= plan.length / np.linalg.norm(gradients, axis=1, keepdims=True)
    mean = gradients.mean(axis=0)
    agreement = float(mean @ mean) / plan.length**2
    steps, draws = plan.rounds * plan.steps, 4_000
    deviation = plan.deviation(rows) * math.sqrt(steps / sites)  # of all steps' sum
    noise = rng.normal(size=(draws, weights)) * deviation
    along = noise @ gradients[0]  # any row: all are equally long
    simulated = steps * float((gradients @ mean).mean()) / along.std()
    found = outlook(agreement, sites=sites).ratios[0]
    # Five standard deviations of an estimated deviation: a failure rate below 1e-6.
    assert simulated == pytest.approx(found, rel=5 / math.sqrt(2 * draws))


@pytest.mark.parametrize(
    ("agreement", "verdict"),
    [(0.2, Verdict.GOOD), (0.02, Verdict.UNCERTAIN), (0.005, Verdict.HOPELESS)],
)
def test_verdicts_go_by_the_ratio(agreement: float, verdict: Verdict) -> None:
    assert outlook(agreement).verdict is verdict


@pytest.mark.parametrize("agreement", [0.005, 0.03, 0.031, 0.032, 0.033, 0.034])
def test_each_remedy_alone_makes_it_good(agreement: float) -> None:
    remedies = outlook(agreement).remedies
    assert remedies is not None
    assert remedies.examples is not None
    assert remedies.sites is not None
    assert outlook(agreement, examples=remedies.examples).verdict is Verdict.GOOD
    assert outlook(agreement, sites=remedies.sites).verdict is Verdict.GOOD
    if agreement >= 0.03:
        assert remedies.noise is not None
        less = outlook(agreement, plan=replace(PLAN, noise=remedies.noise))
        assert less.verdict is Verdict.GOOD
    assert outlook(0.5).remedies is None


def test_hopeless_is_followed_by_what_fits() -> None:
    told = outlook(0.005).judgement()
    assert told.startswith("hopeless: ")
    assert "Good would be at least about" in told
    assert "train the last layer alone" in told
    assert "larger rate" not in told
    sparse = outlook(0.0005, plan=replace(PLAN, noise=0.6, clip=3.0)).judgement()
    assert "More steps, or" in sparse
    assert "A smaller clip" in sparse
    nothing = outlook(-0.01)
    assert nothing.verdict is Verdict.HOPELESS
    assert "Good would be rows whose gradients agree." in nothing.judgement()


def test_without_public_rows_it_is_certain_only_for_all_measured_models() -> None:
    found = outlook(None, examples=100)
    low, high = found.ratios
    assert found.verdict is Verdict.UNCERTAIN
    assert "public rows" in found.judgement()
    assert outlook(None, examples=100, classes=11).ratios == pytest.approx((low / 10, high / 10))
    assert outlook(None, examples=1_000_000).verdict is Verdict.GOOD


@pytest.mark.parametrize(("epsilon", "steps"), [(0.5, 20), (2.0, 400), (8.0, 20)])
def test_more_steps_and_a_larger_rate_gain_where_it_is_said_and_fewer_steps_do_not(
    epsilon: float, steps: int
) -> None:
    pytest.importorskip("scipy")
    from flower_ldp.accounting.dpsgd import noise_multiplier

    def ratio(rate: float, steps: int) -> tuple[float, str]:
        noise = noise_multiplier(epsilon, 1e-5, sample_rate=rate, steps=steps)
        plan = replace(PLAN, rounds=1, steps=steps, rate=rate, noise=noise)
        found = outlook(0.0005, plan=plan)
        return found.ratios[0], found.judgement()

    small, told = ratio(0.01, steps)
    if "More steps, or" in told:
        assert ratio(1.0, steps)[0] > 1.1 * small
        assert ratio(0.01, 100 * steps)[0] > 1.1 * small
    assert ratio(0.01, steps // 4)[0] < 1.01 * small
    assert ratio(1.0, steps // 4)[0] < 1.01 * ratio(1.0, steps)[0]


@pytest.mark.parametrize(
    ("name", "value"), [("examples", 0), ("sites", 0), ("classes", 1), ("agreement", 1.5)]
)
def test_a_parameter_outside_its_interval_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        replace(outlook(0.1), **{name: value})


def test_outputs_are_those_of_the_last_layer() -> None:
    layers = {"a": np.zeros((7, 3), np.float32), "b": np.zeros(7, np.float32)}
    assert outputs(layers) == 7
    assert outputs({**layers, "steps": np.array(9)}) == 7
    assert outputs({"one": np.zeros((1, 3))}) == 2
    assert outputs({"coef": np.zeros(10), "intercept": np.zeros(())}) == 2
