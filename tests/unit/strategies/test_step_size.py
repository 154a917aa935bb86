"""Step sizes: when a bit is asked for, and what the sum of signs is multiplied by."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest

from flower_ldp.mechanisms import MagRR, SelectionPlan, SignDS, StepEstimate
from flower_ldp.mechanisms.magrr import Phase
from flower_ldp.mechanisms.signds import Selection
from flower_ldp.strategies.named import FixedStep, LearnedStep, Scaling, StepSize

MAGNITUDE = MagRR(epsilon=1.0, initial_estimate=0.5)
#: Of clients, about the least that a bit is asked for with.
SHARES = (0.0, math.nextafter(0.05, 0), 0.05, 1.0)


@pytest.fixture(scope="module")
def plan() -> SelectionPlan:
    return SignDS(epsilon=8.0, k=0.2).plan(1000)


def learned(fallback: FixedStep | None = None, least: float = 0.05) -> LearnedStep:
    return LearnedStep(MAGNITUDE, fallback, least)


def test_a_fixed_rate_asks_nothing_and_learns_nothing() -> None:
    size = StepSize(FixedStep(0.1))
    assert size.question(1.0) is None
    assert size.learn(10, 10) is None
    assert size.estimate is None


def test_the_question_has_the_estimates_threshold() -> None:
    size = StepSize(learned())
    assert size.question(1.0) == (1.0, 1.0)  # growth asks for 2 r_est
    assert size.learn(100, 100) == 1
    assert size.estimate == StepEstimate(0.5, Phase.CONTRACTION)
    assert size.question(1.0) == (1.0, 0.5)  # contraction asks for r_est


def test_learning_is_magrrs_own() -> None:
    size, state = StepSize(learned()), MAGNITUDE.start()
    for ones in (0, 3, 50, 100, 52, 97, 4):
        assert size.learn(ones, 100) == MAGNITUDE.answer(state, ones, 100)
        state = MAGNITUDE.advance(state, ones, 100)
        assert size.estimate == state


def test_bits_that_do_not_tell_are_kept_for_the_next_round() -> None:
    size = StepSize(learned())
    assert size.learn(54, 100) is None
    assert size.question(1.0) == (1.0, 1.0)
    assert size.learn(0, 0) is None
    assert size.learn(54, 100) is None
    assert size.learn(54, 100) == 1
    assert size.estimate == StepEstimate(0.5, Phase.CONTRACTION)


@pytest.mark.parametrize("reports", [1, 7, 1000])
def test_published_factors(reports: int, plan: SelectionPlan) -> None:
    size = StepSize(learned(FixedStep(0.3)))
    assert size.factor(reports, plan, asked=True) == 2 * 0.5
    assert size.factor(reports, plan, asked=False) == 0.3 / reports
    assert StepSize(FixedStep(0.3)).factor(reports, plan, asked=False) == 0.3 / reports


@pytest.mark.parametrize("reports", [1, 7, 1000])
def test_unbiased_factors(reports: int, plan: SelectionPlan) -> None:
    size = StepSize(learned(FixedStep(0.3)), "unbiased")
    per_unit = 2 / (plan.contrast * reports)
    assert size.factor(reports, plan, asked=True) == pytest.approx(1.0 * per_unit)
    assert size.factor(reports, plan, asked=False) == pytest.approx(0.3 * per_unit)


def test_unbiased_mean_of_one_entry_is_the_magnitude(plan: SelectionPlan) -> None:
    # Summed over both signs, an entry that is among the K largest moves by contrast / 2.
    inside = plan.expected_inside / plan.top_size
    outside = (plan.dim_out - plan.expected_inside) / (plan.dimension - plan.top_size)
    mean_of_sum = 100 * (inside - outside) / 2
    factor = StepSize(learned(), "unbiased").factor(100, plan, asked=True)
    assert factor * mean_of_sum == pytest.approx(1.0)


def test_a_round_without_bits_needs_a_fixed_rate(plan: SelectionPlan) -> None:
    with pytest.raises(ValueError, match="fixed rate"):
        StepSize(learned(None)).factor(10, plan, asked=False)


@pytest.mark.parametrize("scaling", get_args(Scaling))
def test_a_learned_size_doubles_the_factor_with_the_estimate(
    scaling: Scaling, plan: SelectionPlan
) -> None:
    size = StepSize(learned(), scaling)
    before = size.factor(10, plan, asked=True)
    assert size.learn(0, 100) == 0
    assert size.factor(10, plan, asked=True) == 2 * before


@pytest.mark.parametrize(
    ("rule", "magnitude", "asks"),
    [
        (FixedStep(0.3), None, [False, False, False, False]),
        (learned(), MAGNITUDE, [True, True, True, True]),
        (learned(FixedStep(0.3)), MAGNITUDE, [False, False, True, True]),
        (learned(FixedStep(0.3), least=0.0), MAGNITUDE, [True, True, True, True]),
    ],
)
def test_a_round_asks_for_bits_where_the_rule_says_so(
    rule: FixedStep | LearnedStep, magnitude: MagRR | None, asks: list[bool]
) -> None:
    assert rule.magnitude == magnitude
    size = StepSize(rule)
    assert [size.question(share) is not None for share in SHARES] == asks


SILENT = [SignDS(1.0, 0.2, dim_out=40), SignDS(5e-324, 0.2, dim_out=4)]


@pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.SmallTopSetWarning")
@pytest.mark.parametrize("mechanism", SILENT)
def test_reports_that_say_nothing_cannot_be_made_unbiased(mechanism: SignDS) -> None:
    """All dimensions are reported, or epsilon is as good as 0: their contrast is 0."""
    plan = mechanism.plan(40)
    for rule in (FixedStep(0.1), LearnedStep(MagRR(1.0))):
        unbiased = StepSize(rule, "unbiased")
        asked = isinstance(rule, LearnedStep)
        for call in (
            lambda: unbiased.check(plan),  # noqa: B023
            lambda: unbiased.factor(3, plan, asked=asked),  # noqa: B023
            lambda: mechanism.estimate([Selection(np.arange(plan.dim_out), 1)], 40),
        ):
            with pytest.raises(ValueError, match="say nothing of the update"):
                call()
        StepSize(rule).check(plan)
        assert StepSize(rule).factor(3, plan, asked=asked) > 0
