"""MagRR: the published search, what goes wrong in it, and what is done about that."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_ldp.mechanisms.magrr import MagRR, Phase, StepEstimate
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.randomized_response import BinaryResponse
from flower_ldp.privacy import PrivacyEvent, Unit

N = 100
SMALLEST, LARGEST = 1e-30, 1e30


def published(epsilon: float, initial: float = 2.0**-10) -> MagRR:
    """Return the rule as published: every majority acts, growth happens once."""
    return MagRR(epsilon, initial, significance=0, regrow_after=0)


def growth(value: float = 1.0) -> StepEstimate:
    return StepEstimate(value, Phase.GROWTH)


def contraction(value: float = 1.0, settled: int = 0) -> StepEstimate:
    return StepEstimate(value, Phase.CONTRACTION, settled)


def chance(rule: MagRR, answer: int, epsilon: float) -> float:
    """Return the exact chance that N reports make ``answer`` the majority, no bit being 1."""
    flip = 1.0 / (1.0 + math.exp(epsilon))
    law = [math.comb(N, c) * flip**c * (1 - flip) ** (N - c) for c in range(N + 1)]
    return math.fsum(p for ones, p in enumerate(law) if rule.majority(ones, N) == answer)


# The state and the question.


def test_growth_asks_for_twice_the_estimate_and_contraction_for_the_estimate() -> None:
    assert growth(3.0).threshold == 6.0
    assert contraction(3.0).threshold == 3.0
    assert growth(3.0).magnitude == contraction(3.0).magnitude == 6.0


def test_the_search_starts_with_growth() -> None:
    assert MagRR(1.0, initial_estimate=0.25).start() == StepEstimate(0.25, Phase.GROWTH, 0)


# One round of a clear majority.

YES, NO = N, 0


@pytest.mark.parametrize("rule", [MagRR(4.0), published(4.0), published(0.1)])
def test_growth_doubles_on_no_and_turns_on_yes(rule: MagRR) -> None:
    assert rule.advance(growth(3.0), NO, N) == growth(6.0)
    assert rule.advance(growth(3.0), YES, N) == contraction(3.0)


@pytest.mark.parametrize("rule", [MagRR(4.0), published(4.0), published(0.1)])
def test_contraction_halves_on_yes_and_settles_on_no(rule: MagRR) -> None:
    assert rule.advance(contraction(3.0), YES, N) == contraction(1.5)
    assert rule.advance(contraction(3.0), NO, N) == contraction(3.0, settled=1)


def test_halving_starts_the_settled_rounds_again() -> None:
    assert MagRR(4.0).advance(contraction(3.0, settled=3), YES, N) == contraction(1.5, settled=0)


# Abstention.


def lead_in_deviations(ones: int, total: int, epsilon: float) -> float:
    """Return how far the debiased count is from half, over its noise; written anew."""
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    debiased = (ones - total + total * keep) / (2 * keep - 1)
    return (debiased - total / 2) / (math.sqrt(total * keep * (1 - keep)) / (2 * keep - 1))


@pytest.mark.parametrize("significance", [0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("total", [1, 2, 9, 100])
def test_a_majority_counts_if_it_stands_out(
    total: int, epsilon: float, significance: float
) -> None:
    rule = MagRR(epsilon, significance=significance)
    for ones in range(total + 1):
        lead = lead_in_deviations(ones, total, epsilon)
        if abs(abs(lead) - significance) < 1e-9:
            continue
        expected = None if abs(lead) < significance else int(lead > 0)
        assert rule.majority(ones, total) == expected


@pytest.mark.parametrize("ones", [45, 50, 55])
def test_without_a_clear_majority_the_estimate_stays(ones: int) -> None:
    rule = MagRR(1.0)
    assert rule.majority(ones, N) is None
    assert rule.advance(growth(3.0), ones, N) == growth(3.0)
    # In contraction it is one more round without a halving.
    assert rule.advance(contraction(3.0, settled=2), ones, N) == contraction(3.0, settled=3)
    assert rule.advance(contraction(3.0, settled=4), ones, N) == growth(3.0)


def test_no_bits_change_nothing() -> None:
    for rule in (MagRR(1.0), published(1.0)):
        assert rule.majority(0, 0) is None
        assert rule.advance(contraction(settled=1), 0, 0) == contraction(settled=1)


@pytest.mark.parametrize("epsilon", [0.01, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0])
def test_as_published_the_larger_count_wins_and_a_tie_is_no(epsilon: float) -> None:
    rule = published(epsilon)
    for total in range(1, 201):
        for ones in {0, (total - 1) // 2, total // 2, total // 2 + 1, total}:
            assert rule.majority(ones, total) == int(2 * ones > total)


@pytest.mark.parametrize("epsilon", [0.01, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0])
def test_a_tie_never_counts_if_significance_is_asked_for(epsilon: float) -> None:
    rule = MagRR(epsilon, significance=1e-6)
    assert all(rule.majority(total // 2, total) is None for total in range(2, 201, 2))


# The published rule and its weakness.


def test_chance_of_a_false_majority_as_published() -> None:
    assert round(chance(published(0.1), 1, 0.1), 2) == 0.27
    assert round(chance(published(0.5), 1, 0.5), 4) == 0.0047


def test_chance_of_acting_falsely_is_small_by_default() -> None:
    # Even without any signal it is the tail of a fair coin from 60 of 100 on.
    coin = math.fsum(math.comb(N, c) for c in range(60, N + 1)) / 2**N
    for epsilon in (1e-6, 0.01, 0.1, 0.5, 1.0, 4.0):
        assert chance(MagRR(epsilon), 1, epsilon) < coin < 0.03
    assert chance(MagRR(0.1), 1, 0.1) < 0.01
    assert chance(MagRR(0.5), 1, 0.5) < 1e-4


def test_as_published_one_false_majority_is_for_ever() -> None:
    rule = published(4.0)
    state = rule.advance(contraction(1.0), YES, N)
    for _ in range(1000):
        state = rule.advance(state, NO, N)
    assert state.value == 0.5
    assert state.phase is Phase.CONTRACTION


def test_published_rule_step_by_step() -> None:
    rule, truth = published(100.0, initial=1.0), 11.0
    state, path = rule.start(), []
    for _ in range(7):
        state = rule.advance(state, YES if truth < state.threshold else NO, N)
        path.append((state.value, state.phase))
    assert path == [
        (2.0, Phase.GROWTH),
        (4.0, Phase.GROWTH),
        (8.0, Phase.GROWTH),
        (8.0, Phase.CONTRACTION),
        *[(8.0, Phase.CONTRACTION)] * 3,
    ]


# Regrowth.


@pytest.mark.parametrize("regrow_after", [1, 2, 5])
def test_growth_is_probed_after_enough_settled_rounds(regrow_after: int) -> None:
    rule = MagRR(4.0, regrow_after=regrow_after)
    state = contraction(1.0)
    for settled in range(1, regrow_after):
        state = rule.advance(state, NO, N)
        assert state == contraction(1.0, settled)
    assert rule.advance(state, NO, N) == growth(1.0)


def test_a_probe_that_finds_nothing_changes_nothing() -> None:
    rule = MagRR(4.0)
    assert rule.advance(growth(1.0), YES, N) == contraction(1.0, settled=0)


def test_an_estimate_that_became_too_small_recovers() -> None:
    rule, truth = MagRR(4.0, regrow_after=3), 1.5
    state = contraction(2.0**-20)
    for _ in range(30):
        state = rule.advance(state, YES if truth < state.threshold else NO, N)
    assert state.value == 1.0


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    start=st.floats(math.log(SMALLEST), math.log(LARGEST)),
    truth=st.floats(math.log(SMALLEST), math.log(LARGEST)),
    phase=st.sampled_from(list(Phase)),
    settled=st.integers(0, 10),
    regrow_after=st.integers(1, 10),
    significance=st.sampled_from([0.0, 2.0]),
)
def test_bits_without_noise_lead_to_the_truth(
    start: float, truth: float, phase: Phase, settled: int, regrow_after: int, significance: float
) -> None:
    rule = MagRR(100.0, significance=significance, regrow_after=regrow_after)
    value = min(max(math.exp(start), SMALLEST), LARGEST)
    magnitude = min(max(math.exp(truth), 2 * SMALLEST), LARGEST)
    state = StepEstimate(value, phase, settled)
    # Doublings or halvings from there to here, a probe before them and one turn.
    bound = math.ceil(abs(math.log2(magnitude / value))) + regrow_after + 3
    for played in range(bound + 2 * regrow_after + 3):
        if played >= bound:
            assert state.value <= magnitude < 2 * state.value
        state = rule.advance(state, YES if magnitude < state.threshold else NO, N)


# The range.


def test_growth_stops_at_the_largest_estimate() -> None:
    rule = MagRR(4.0)
    assert rule.advance(growth(LARGEST), NO, N) == growth(LARGEST)
    assert rule.advance(growth(0.6 * LARGEST), NO, N) == growth(LARGEST)


def test_contraction_stops_at_the_smallest_estimate() -> None:
    rule = MagRR(4.0)
    assert rule.advance(contraction(SMALLEST), YES, N) == contraction(SMALLEST)
    assert rule.advance(contraction(1.5 * SMALLEST), YES, N) == contraction(SMALLEST)


# The bit.


def test_the_bit_goes_through_randomized_response() -> None:
    rule, response = MagRR(0.7), BinaryResponse(0.7)
    first, second = RandomSource.seeded(1), RandomSource.seeded(1)
    for value in (True, False) * 100:
        assert rule.randomize(value, first) == response.randomize(int(value), second)
    for report in (0, 1):
        for value in (True, False):
            assert rule.log_prob(report, value) == response.log_prob(report, int(value))
    assert rule.estimate(37, N) == response.estimate(37, N)


def test_cost_is_epsilon_per_client() -> None:
    assert MagRR(0.7).events() == (PrivacyEvent("magrr", 0.7, unit=Unit.CLIENT),)


def test_estimate_is_the_published_formula() -> None:
    # N^T = (N^C - N + N P) / (2 P - 1), at P = 3/4 exactly.
    keep = Fraction(3, 4)
    for ones in range(N + 1):
        expected = (ones - N + N * keep) / (2 * keep - 1)
        assert MagRR(math.log(3)).estimate(ones, N) == pytest.approx(float(expected), abs=1e-10)


# Domains.


@pytest.mark.parametrize("value", [0.0, -1.0, 100.1, math.inf, math.nan])
def test_epsilon_domain(value: float) -> None:
    with pytest.raises(ValueError, match=rf"epsilon must be in \(0, 100\], got {value}"):
        MagRR(value)


@pytest.mark.parametrize("value", [0.0, -1.0, 9.9e-31, 1.1e30, math.inf, math.nan])
def test_initial_estimate_domain(value: float) -> None:
    with pytest.raises(ValueError, match=r"initial_estimate must be in \[1e-30, 1e\+30\], got"):
        MagRR(1.0, value)


@pytest.mark.parametrize("value", [-0.1, math.inf, math.nan])
def test_significance_domain(value: float) -> None:
    with pytest.raises(ValueError, match=rf"significance must be in \[0, inf\), got {value}"):
        MagRR(1.0, significance=value)


def test_regrow_after_domain() -> None:
    with pytest.raises(ValueError, match="regrow_after must be at least 0, got -1"):
        MagRR(1.0, regrow_after=-1)


def test_ends_of_intervals_are_accepted() -> None:
    assert MagRR(100.0, SMALLEST, 0.0, 0).start().value == SMALLEST
    assert MagRR(5e-324, LARGEST).start().value == LARGEST


@pytest.mark.parametrize(("ones", "total"), [(-1, 10), (11, 10), (1, 0), (0, -1)])
def test_impossible_counts_are_refused(ones: int, total: int) -> None:
    for call in (MagRR(1.0).majority, lambda a, b: MagRR(1.0).advance(growth(), a, b)):
        with pytest.raises(ValueError, match=rf"ones must be in \[0, {total}\], got {ones}"):
            call(ones, total)
