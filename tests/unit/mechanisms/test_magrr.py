"""MagRR: the published search, what goes wrong in it, and what is done about that."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from itertools import cycle, islice, repeat
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flower_ldp.mechanisms.magrr import MagRR, Phase, StepEstimate
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.randomized_response import BinaryResponse

N = 100
SMALLEST, LARGEST = 1e-30, 1e30


def published(epsilon: float, initial: float = 2.0**-10) -> MagRR:
    """Return the rule as published: every majority acts, growth happens once."""
    return MagRR(epsilon, initial, significance=0, regrow_after=0)


def growth(value: float = 1.0, *pool: int) -> StepEstimate:
    return StepEstimate(value, Phase.GROWTH, 0, *pool)


def contraction(value: float = 1.0, settled: int = 0, *pool: int) -> StepEstimate:
    return StepEstimate(value, Phase.CONTRACTION, settled, *pool)


# The state and the question, and one round.

YES, NO = N, 0
RULES = (MagRR(4.0), published(4.0), published(0.1))


def test_growth_asks_for_twice_the_estimate() -> None:
    assert MagRR(1.0, initial_estimate=0.25).start() == growth(0.25)
    assert growth(3.0).threshold == 6.0
    assert contraction(3.0).threshold == 3.0
    assert growth(3.0).magnitude == contraction(3.0).magnitude == 6.0


@pytest.mark.parametrize(
    ("rule", "state", "ones", "after"),
    [
        *((rule, growth(3.0), NO, growth(6.0)) for rule in RULES),
        *((rule, growth(3.0), YES, contraction(3.0)) for rule in RULES),
        *((rule, contraction(3.0), YES, contraction(1.5)) for rule in RULES),
        *((rule, contraction(3.0), NO, contraction(3.0, 1)) for rule in RULES),
        (MagRR(4.0), contraction(3.0, 3), YES, contraction(1.5)),
        # Without a clear majority the estimate stays and the bits are kept.
        *((MagRR(1.0), growth(3.0), ones, growth(3.0, ones, N, N)) for ones in (45, 50, 55)),
        # In contraction it is one more round without a halving,
        (MagRR(1.0), contraction(3.0, 2), 45, contraction(3.0, 3, 45, N, N)),
        # and growth is not probed before the question that stands was answered.
        (MagRR(1.0), contraction(3.0, 7, 50, N, N), 55, contraction(3.0, 8, 105, 2 * N, N)),
        # Bits are never pooled across questions.
        (MagRR(1.0), growth(3.0, 50, N, N), 10, growth(6.0)),
        (MagRR(1.0), growth(3.0, 50, N, N), 90, contraction(3.0)),
        (MagRR(1.0), contraction(3.0, 0, 50, N, N), 10, contraction(3.0, 1)),
        (MagRR(1.0), contraction(3.0, 9, 50, N, N), 10, growth(3.0)),
        (MagRR(1.0), contraction(3.0, 9, 50, N, N), 90, contraction(1.5)),
        # Growth is probed after enough settled rounds.
        (MagRR(4.0, regrow_after=1), contraction(1.0), NO, growth(1.0)),
        (MagRR(4.0, regrow_after=2), contraction(1.0), NO, contraction(1.0, 1)),
        (MagRR(4.0, regrow_after=2), contraction(1.0, 1), NO, growth(1.0)),
        (MagRR(4.0, regrow_after=5), contraction(1.0, 3), NO, contraction(1.0, 4)),
        (MagRR(4.0, regrow_after=5), contraction(1.0, 4), NO, growth(1.0)),
        # The range ends.
        (MagRR(4.0), growth(LARGEST), NO, growth(LARGEST)),
        (MagRR(4.0), growth(0.6 * LARGEST), NO, growth(LARGEST)),
        (MagRR(4.0), contraction(SMALLEST), YES, contraction(SMALLEST)),
        (MagRR(4.0), contraction(1.5 * SMALLEST), YES, contraction(SMALLEST)),
    ],
)
def test_one_round(rule: MagRR, state: StepEstimate, ones: int, after: StepEstimate) -> None:
    assert rule.advance(state, ones, N) == after
    # One without replies leaves it as it is.
    assert rule.advance(state, 0, 0) == state
    assert rule.majority(0, 0) is None


def least_lead(rule: MagRR, largest: int) -> float:
    """Return the lead that acts, written anew: Wald's, or what stands out of one round."""
    sure = NormalDist().cdf(rule.significance)
    keep = math.exp(rule.epsilon) / (1 + math.exp(rule.epsilon))
    walds = math.log(sure / (1 - sure)) / math.log(keep / (1 - keep))
    return max(walds, rule.significance * 2 * math.sqrt(largest * keep * (1 - keep)))


@pytest.mark.parametrize("significance", [0.5, 1.0, 2.3, 4.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_a_majority_counts_if_it_stands_out(epsilon: float, significance: float) -> None:
    rule = MagRR(epsilon, significance=significance)
    for total, largest in ((1, 1), (2, 2), (9, 5), (100, 100), (900, 90)):
        least = least_lead(rule, largest)
        for ones in range(total + 1):
            lead = 2 * ones - total
            if abs(abs(lead) - least) > 1e-9:
                expected = None if abs(lead) < least else int(lead > 0)
                assert rule.majority(ones, total, largest) == expected


def test_rounds_that_ask_the_same_answer_together() -> None:
    rule = MagRR(0.1)
    state, answers = growth(3.0), []
    for _ in range(5):
        answers.append(rule.answer(state, 45, N))
        state = rule.advance(state, 45, N)
    assert answers == [None, None, None, None, 0]
    assert state == growth(6.0)  # acted on: the pool is empty


def pooled(rule: MagRR, *rounds: tuple[int, int]) -> StepEstimate:
    """Return the state after rounds of (ones, total) that did not tell."""
    state = growth(3.0)
    for ones, total in rounds:
        assert rule.answer(state, ones, total) is None
        state = rule.advance(state, ones, total)
    return state


def test_what_a_large_round_left_open_is_not_answered_by_small_ones() -> None:
    # 4,890 of 10,000 say yes, less than the noise of one round; then ten come, who all do.
    # The answer is theirs, once they outweigh what went before: the lead goes from -220 to 230.
    rule = MagRR(0.1)
    state = pooled(rule, (4_890, 10_000), *[(10, 10)] * 44)
    assert rule.answer(state, 10, 10) == 1


def test_small_rounds_do_not_let_a_large_one_off_its_own_noise() -> None:
    rule = MagRR(0.1)
    state = pooled(rule, *[(5, 10)] * 9)
    alone = next(ones for ones in range(5_000, 10_000) if rule.majority(ones, 10_000) == 1)
    assert 5_100 < alone < 5_120
    assert rule.answer(state, alone - 1, 10_000) is None
    assert rule.answer(state, alone, 10_000) == 1


# What the test promises: exact laws of the pooled count, no simulation.


@cache
def law_of_ones(epsilon: float, yes: int, no: int) -> NDArray[np.float64]:
    """Return P(c ones) of reports of which ``yes`` and ``no`` carry these true bits."""
    flip = 1.0 / (1.0 + math.exp(epsilon))

    def binomial(n: int, p: float) -> list[float]:
        return [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]

    return np.convolve(binomial(yes, 1 - flip), binomial(no, flip))


def fate(rule: MagRR, rounds: Iterable[tuple[int, int]], fair: int = 0) -> list[float]:
    """Return P(acts on yes), P(acts on no) and the mean rounds until then, of one question.

    ``rounds`` are true yeses and noes of each round, without end or cut off; ``fair`` more
    clients answer with a fair coin.
    """
    open_, first, total, asked, largest = np.ones(1), 0, 0, 0, 0  # open_[i]: first + i ones
    yes, no, mean, coin = 0.0, 0.0, 0.0, law_of_ones(1e-300, fair, 0)
    for true_yes, true_no in rounds:
        if replies := true_yes + true_no + fair:
            fresh = np.convolve(law_of_ones(rule.epsilon, true_yes, true_no), coin)
            open_ = np.convolve(open_, fresh)
            total, asked, largest = total + replies, asked + 1, max(largest, replies)
        answers = [rule.majority(first + i, total, largest) for i in range(len(open_))]
        says_yes, says_no = (np.array([one == answer for one in answers]) for answer in (1, 0))
        yes, no = yes + float(open_[says_yes].sum()), no + float(open_[says_no].sum())
        mean += asked * float(open_[says_yes | says_no].sum())
        kept = np.flatnonzero(~(says_yes | says_no))
        if len(kept) == 0 or open_[kept].sum() < 1e-7:
            break
        first, open_ = first + int(kept[0]), open_[kept]  # undecided counts stand together
    return [yes, no, mean]


def promised(rule: MagRR, share: float) -> float:
    """Return the theorem's bound on a false yes if ``share`` of the clients say yes."""
    p = 0.5 - (0.5 - share) * math.tanh(rule.epsilon / 2)
    sure = NormalDist().cdf(rule.significance)
    return float((p / (1 - p)) ** (math.log(sure / (1 - sure)) / rule.epsilon))


def test_all_say_no_at_epsilon_a_tenth() -> None:
    # Of the majorities that a test of single rounds at 2 standard deviations acts on, 9.2 %
    # are false, and it takes 11.3 rounds to act.
    false, right, rounds = fate(MagRR(0.1), repeat((0, N)))
    assert false + right == pytest.approx(1, abs=1e-6)
    assert false < 0.0065
    assert rounds < 10.4
    law = law_of_ones(0.1, 0, N)
    alone = (law[60:].sum(), law[:41].sum())
    assert round(alone[0] / sum(alone), 3) == 0.092
    assert round(1 / sum(alone), 1) == 11.3
    # As published, where every majority acts:
    assert round(law[51:].sum(), 2) == 0.27
    assert round(law_of_ones(0.5, 0, N)[51:].sum(), 4) == 0.0047


@pytest.mark.parametrize("yes", [0, 25, 49, 50])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_a_false_answer_is_as_rare_as_promised(epsilon: float, yes: int) -> None:
    rule = MagRR(epsilon)
    false, right, rounds = fate(rule, repeat((yes, N - yes)))
    assert false <= promised(rule, yes / N)
    assert false + right == pytest.approx(1, abs=1e-6)
    assert rounds < (28 if yes == 50 else 27)
    if yes == 50:  # halves are answered either way
        assert false == pytest.approx(0.5, abs=1e-6)
    if epsilon == 1.0:  # the other way round it is the same test
        turned = fate(rule, repeat((N - yes, yes)))
        np.testing.assert_allclose(turned, [right, false, rounds], atol=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "yes", "most"),
    [(0.1, 25, 0.08), (0.5, 25, 0.001), (0.5, 40, 0.05), (1.0, 40, 0.003), (1.0, 45, 0.05)],
)
def test_divided_populations_are_seldom_misread(epsilon: float, yes: int, most: float) -> None:
    law = law_of_ones(epsilon, yes, N - yes)
    far = 2.0 * math.sqrt(N) / (2.0 * math.cosh(epsilon / 2))  # one round, 2 deviations
    lead = 2 * np.arange(N + 1) - N
    alone = law[lead > 2 * far].sum() / law[np.abs(lead) > 2 * far].sum()
    false, _, _ = fate(MagRR(epsilon), repeat((yes, N - yes)))
    assert false < most
    assert false < alone


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
def test_the_promise_holds_with_any_number_of_replies(epsilon: float) -> None:
    rule = MagRR(epsilon)
    rounds = [(0, 3), (0, 0), (5, 55), (0, 1), (0, 0), (10, 90), (1, 11)]
    false, _, _ = fate(rule, islice(cycle(rounds), 200))
    assert false <= promised(rule, 0.1)  # the largest share of yes in a round


@pytest.mark.parametrize("fair", [10, 50])
def test_neutral_reports_slow_the_test_and_leave_the_promise(fair: int) -> None:
    # A fair bit counts as half a yes and half a no.
    rule = MagRR(0.1)
    false, right, rounds = fate(rule, repeat((0, N - fair)), fair=fair)
    assert false <= promised(rule, fair / 2 / N)
    assert false + right == pytest.approx(1, abs=1e-6)
    _, _, whole = fate(rule, repeat((0, N)))
    assert whole < rounds < whole / (1 - fair / N)


@pytest.mark.parametrize("epsilon", [0.01, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0])
def test_as_published_the_larger_count_wins_and_a_tie_is_no(epsilon: float) -> None:
    rule = published(epsilon)
    for total in range(1, 201):
        for ones in {0, (total - 1) // 2, total // 2, total // 2 + 1, total}:
            assert rule.majority(ones, total) == int(2 * ones > total)


@pytest.mark.parametrize("epsilon", [0.01, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0])
def test_a_tie_never_counts_if_significance_is_asked_for(epsilon: float) -> None:
    for significance in (1e-6, 1e-20, 5e-324):
        rule = MagRR(epsilon, significance=significance)
        assert all(rule.majority(total // 2, total) is None for total in range(2, 201, 2))


# The published rule and its weakness.


def test_as_published_one_false_majority_is_for_ever() -> None:
    rule = published(4.0)
    state = rule.advance(contraction(1.0), YES, N)
    for _ in range(1000):
        state = rule.advance(state, NO, N)
    assert state.value == 0.5
    assert state.phase is Phase.CONTRACTION


@settings(deadline=None, derandomize=True, max_examples=100)
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


# Populations that do not agree: the schedule goes on, and stays where some of them are.


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("magnitudes", [(1.5, 1.5), (1.5, 2.5), (1.5, 100.0), (3.0, 1e-3)], ids=str)
def test_a_divided_population_neither_stalls_nor_drifts(epsilon: float, magnitudes: Any) -> None:
    rule = MagRR(epsilon)
    chance = np.random.default_rng(5)
    state, turns = contraction(1.0), 0
    for played in range(1500):
        bits = np.repeat([r < state.threshold for r in magnitudes], N // 2)
        kept = chance.random(N) < rule.response.keep_probability
        after = rule.advance(state, int((bits == kept).sum()), N)
        turns += after.phase is not state.phase
        state = after
        if played > 50:
            assert min(magnitudes) / 4 < state.value <= 2 * max(magnitudes)
    assert turns > 50


@pytest.mark.parametrize(("epsilon", "most"), [(0.1, 0.8), (0.5, 0.5), (1.0, 0.4), (8.0, 0.4)])
def test_magnitudes_that_shrink_and_differ_are_followed(epsilon: float, most: float) -> None:
    """The median falls to a twelfth in 300 rounds; clients differ by factors of e^N(0, 1)."""
    rule, chance, errors = MagRR(epsilon, 2.0**-7), np.random.default_rng(3), []
    for _ in range(5):
        state = rule.start()
        for played in range(300):
            median = 0.06 * math.exp(-2.5 * played / 300)
            bits = median * np.exp(chance.standard_normal(N)) < state.threshold
            kept = chance.random(N) < rule.response.keep_probability
            state = rule.advance(state, int((bits == kept).sum()), N)
            if played > 60:
                # Without noise the median lies anywhere in [r_est, 2 r_est): 0.25 on average.
                errors.append(abs(math.log2(median / state.value) - 0.5))
    assert np.mean(errors) < most


def test_ends_of_intervals_are_accepted() -> None:
    assert MagRR(100.0, SMALLEST, 0.0, 0).start().value == SMALLEST
    assert MagRR(5e-324, LARGEST).start().value == LARGEST
    for rule in (MagRR(5e-324), MagRR(1.0, significance=1e308)):
        assert rule.majority(0, N) is None


def test_the_bit_goes_through_randomized_response_and_the_estimate_is_the_published_one() -> None:
    rule, first, second = MagRR(0.7), RandomSource.seeded(1), RandomSource.seeded(1)
    for value in (True, False) * 100:
        report = rule.randomize(value, first)
        assert report == BinaryResponse(0.7).randomize(int(value), second)
    # N^T = (N^C - N + N P) / (2 P - 1), at P = 3/4 exactly.
    keep = Fraction(3, 4)
    for ones in range(N + 1):
        expected = (ones - N + N * keep) / (2 * keep - 1)
        assert MagRR(math.log(3)).estimate(ones, N) == pytest.approx(float(expected), abs=1e-10)
