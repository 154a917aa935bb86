"""Laplace on rows of probabilities, its plan, and the exact law of its noise."""

from __future__ import annotations

import itertools
import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_ldp.mechanisms import (
    BoundedMean,
    Laplace,
    LaplacePlan,
    NoProtectionWarning,
    RandomSource,
    project_to_simplex,
)
from flower_ldp.mechanisms.integer_noise import DiscreteLaplace
from flower_ldp.mechanisms.laplace import check_simplex_rows, round_to_grid
from flower_ldp.mechanisms.random import INDEX_BITS, WEIGHT_BITS, ExactLookup
from flower_ldp.mechanisms.signds_size import exp_scaled_at_least
from flower_ldp.privacy import as_fraction
from tests.unit.mechanisms.sources import Scripted

ONE_HOT = np.eye(3)


def softmax(rows: np.ndarray) -> np.ndarray:
    weights = np.exp(rows - rows.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


# Privacy, exactly.


def rows_of(steps: int) -> list[tuple[int, ...]]:
    return [row for row in itertools.product(range(steps + 1), repeat=3) if sum(row) == steps]


@pytest.mark.parametrize(
    ("mechanism", "grid"),
    [
        *(
            (Laplace(eps, 3, grid_bits=n), rows_of(2**n))
            for eps, n in ((0.5, 0), (2.0, 1), (12.0, 2))
        ),
        *(
            (BoundedMean(eps, -1.0, 3.0, n), [(step,) for step in range(2**n + 1)])
            for eps, n in ((0.3, 0), (1.0, 2), (9.0, 3))
        ),
    ],
)
def test_stated_epsilon_is_met_by_the_sampler_as_built_and_reached(
    mechanism: Laplace | BoundedMean, grid: list[tuple[int, ...]]
) -> None:
    steps, reached = mechanism.steps, 0.0
    window = range(-steps - 1, 2 * steps + 2)
    law = {x: mechanism.noise.probability(x) for x in range(-3 * steps - 2, 3 * steps + 3)}
    for row, other in itertools.product(grid, repeat=2):
        # coordinates are independent, so the worst output is the worst of each
        worst = math.prod(
            max(law[y - a] / law[y - b] for y in window) for a, b in zip(row, other, strict=True)
        )
        assert exp_scaled_at_least(mechanism.epsilon, worst.denominator, worst.numerator)
        reached = max(reached, math.log(worst))
    assert reached == pytest.approx(mechanism.epsilon, rel=1e-12)


def test_neighbouring_clients_may_differ_in_all_rows() -> None:
    mechanism = Laplace(3.0, classes=3, rows=2, grid_bits=2)
    report = np.array([[9, -5, -5], [9, -5, -5]])
    gap = mechanism.log_prob(report, ONE_HOT[[0, 0]]) - mechanism.log_prob(report, ONE_HOT[[1, 1]])
    assert gap == pytest.approx(6.0, abs=1e-12)


def test_an_epsilon_that_protects_nothing_is_taken_and_warned_of() -> None:
    with pytest.warns(NoProtectionWarning, match=re.escape("10^200,001 times")):
        mechanism = Laplace(460_520.0, 10)
    assert mechanism.events()[0].epsilon == 460_520.0
    assert mechanism.noise.standard_deviation > 1000
    with pytest.warns(NoProtectionWarning, match="protects nothing"):
        BoundedMean(101.0, 0.0, 1.0)


def test_the_published_scale_names_half_of_the_true_epsilon() -> None:
    mechanism = Laplace(8.0, 10)
    assert mechanism.published_epsilon == 4.0
    # Lap(1 / published) has standard deviation sqrt(2) / published
    assert mechanism.standard_deviation == pytest.approx(math.sqrt(2) / 4.0, rel=1e-6)
    plan = LaplacePlan.from_published(230_260)
    assert (plan.epsilon, plan.published_epsilon) == (460_520.0, 230_260.0)
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


# Rounding.


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 40).flatmap(
        lambda k: st.lists(st.floats(0, 1), min_size=k, max_size=k).filter(lambda x: sum(x) > 1e-3)
    ),
    st.integers(0, 40),
)
def test_rounded_rows_add_up_exactly_and_move_less_than_a_step(
    entries: list[float], bits: int
) -> None:
    row = np.array([entries]) / sum(entries)
    grid = round_to_grid(row, 1 << bits)
    assert (grid >= 0).all()
    assert grid.sum() == 1 << bits
    assert np.abs(grid - row * (1 << bits)).max() < 1 + 1e-3


def test_units_go_to_the_largest_remainders() -> None:
    rows = np.array([[0.30, 0.35, 0.35], [0.125, 0.375, 0.5], [1.0, 0.0, 0.0]])
    assert round_to_grid(rows, 4).tolist() == [[1, 2, 1], [1, 1, 2], [4, 0, 0]]


def test_sums_that_float_arithmetic_leaves_are_made_exact() -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float16, np.float32, np.float64):
        rows = softmax(rng.normal(size=(500, 100)) * 6).astype(dtype)
        mechanism = Laplace(1.0, classes=100, rows=500)
        assert (mechanism._rounded(rows)[0].sum(axis=1) == mechanism.steps).all()


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 2.0, 8.0, 77.7, 100.0])
def test_default_grid_is_fine_beside_the_noise(epsilon: float) -> None:
    mechanism = Laplace(epsilon, 10)
    assert mechanism.steps >= 1024
    assert 1 / float(mechanism.noise.rate) >= 1024


# Reports.


def test_reports_are_integers_and_the_estimate_is_unbiased() -> None:
    rows = np.tile(softmax(np.array([[2.0, 0.0, 1.0, -1.0]])), (40_000, 1))
    rows.flags.writeable = False
    mechanism, rng = Laplace(2.0, classes=4, rows=len(rows)), RandomSource.seeded(5)
    report = mechanism.randomize(rows, rng)
    assert report.dtype == np.int64
    assert (mechanism.randomize(rows, rng) != report).any()
    error = mechanism.estimate(report).mean(axis=0) - rows[0]
    # 4.9 standard deviations are exceeded once in 1e6
    allowed = 4.9 * mechanism.standard_deviation / math.sqrt(len(rows)) + 1 / mechanism.steps
    assert np.abs(error).max() < allowed


# Projection onto the simplex, against its optimality conditions in exact arithmetic.


def exact_projection(row: list[float]) -> list[Fraction]:
    """Return the projection by trying every support size, in rational arithmetic."""
    entries = [Fraction(entry) for entry in row]
    for size in range(len(entries), 0, -1):
        tau = (sum(sorted(entries, reverse=True)[:size]) - 1) / size
        found = [max(entry - tau, Fraction(0)) for entry in entries]
        if sum(found) == 1:
            return found
    raise ValueError("no support fits")


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=7))
def test_projection_is_the_exact_one(row: list[float]) -> None:
    found = project_to_simplex(row)
    np.testing.assert_allclose(found, [float(x) for x in exact_projection(row)], atol=1e-14)


def test_no_row_on_the_simplex_is_nearer() -> None:
    rng = np.random.default_rng(1)
    others = rng.dirichlet(np.full(6, 0.3), 500)
    reports = np.concatenate([others[:20], others[:40] + rng.laplace(size=(40, 6))])
    projected = project_to_simplex(reports)
    found = np.linalg.norm(reports - projected, axis=1)
    nearest = np.linalg.norm(reports[:, None] - others[None], axis=2).min(axis=1)
    assert (found <= nearest + 1e-12).all()
    for row, alone in zip(reports, projected, strict=True):
        np.testing.assert_array_equal(project_to_simplex(row), alone)


def test_huge_entries_do_not_overflow_and_half_precision_is_near_enough() -> None:
    np.testing.assert_array_equal(project_to_simplex([1e300, 0.0, -1e300]), [1.0, 0.0, 0.0])
    np.testing.assert_allclose(project_to_simplex([1e9 + 0.5, 1e9]), [0.75, 0.25])
    row = np.random.default_rng(3).dirichlet(np.ones(100), 20).astype(np.float16)
    assert check_simplex_rows("value", row, 100).dtype == np.float64


#: Decimals, since the exact comparison reads its exponent as one.
RATES = [32.0, 7.3, 1.0, 0.5, 0.49, 0.25, 0.02, 0.001, 1e-5, 1e-9, 4e-15]


def noise(rate: float) -> DiscreteLaplace:
    return DiscreteLaplace(as_fraction(rate))


def interesting(law: DiscreteLaplace) -> set[int]:
    """Return integers on both sides of every border within the sampler."""
    step, lap = 1 << law._low_bits, law._span << law._low_bits
    borders = [0, *(1 << shift for shift in law._shifts), step, 3 * step, lap - step, lap, 2 * lap]
    near = {border + i for border in borders for i in range(-3, 4)}
    return near | {~x for x in near}


@pytest.mark.parametrize("rate", RATES)
def test_neighbours_differ_by_at_most_the_rate_and_by_hardly_less(rate: float) -> None:
    law = noise(rate)
    for x in interesting(law):
        here, there = law.probability(x), law.probability(x + 1)
        low, high = min(here, there), max(here, there)
        a, b = low.numerator * high.denominator, high.numerator * low.denominator
        assert exp_scaled_at_least(rate, a, b)
        # exceeding a slightly smaller rate shows that the bound is nearly reached
        smaller = float(np.nextafter(rate, 0.0))
        assert not exp_scaled_at_least(smaller, a, b)


@pytest.mark.parametrize("rate", [32.0, 7.3, 1.0, 0.25, 0.02])
def test_probabilities_add_up_but_for_the_tail(rate: float) -> None:
    law = noise(rate)
    reach = 2 * (law._span << law._low_bits)
    total = sum(law.probability(x) for x in range(-reach, reach))
    sides = law._high.weights[: law._span + 1], law._high.weights[law._span + 1 :]
    beyond = sum(Fraction(side[-1], 1 << 256) * Fraction(side[-1], sum(side)) for side in sides)
    assert total == 1 - beyond


@pytest.mark.parametrize("rate", RATES)
def test_log_prob_is_the_law(rate: float) -> None:
    law = noise(rate)
    for x in interesting(law):
        exact = law.probability(x)
        found = math.log(exact.numerator) - math.log(exact.denominator)
        assert law.log_prob(x) == pytest.approx(found, rel=1e-12, abs=1e-12)


def outcome_of(lookup: ExactLookup, number: int) -> int:
    """Return the piece that a 256-bit number falls into, by adding up."""
    return sum(number >= border for border in itertools.accumulate(lookup.weights))


@pytest.mark.parametrize("rate", RATES)
def test_tables_hold_the_outcomes_of_all_numbers_with_their_first_bits(rate: float) -> None:
    law = noise(rate)
    lookups = (law._high, *law._digits)
    for lookup, values, table in zip(lookups, law._values, law._tables, strict=True):
        undecided = int(table.max())
        assert undecided >= law._limit
        rng = np.random.default_rng(1)
        for index in rng.integers(0, 1 << INDEX_BITS, 300).tolist():
            first = index << (WEIGHT_BITS - INDEX_BITS)
            last = first + (1 << (WEIGHT_BITS - INDEX_BITS)) - 1
            low, high = (outcome_of(lookup, number) for number in (first, last))
            expected = undecided if low != high else int(values[low])
            assert table[index] == expected


def test_further_bits_settle_a_draw_as_its_256_bit_number_falls() -> None:
    border = (0x1234 << 240) + (0x56789 << 192) + 77
    lookup = ExactLookup([border, 5, (1 << 256) - border - 5])
    further = 0x56789
    cases = [
        (further - 1, None, 0),
        (further + 1, None, 2),
        (further, 76, 0),
        (further, 77, 1),
        (further, 81, 1),
        (further, 82, 2),
    ]
    index = np.full(len(cases), 0x1234, dtype=np.uint16)
    tails = [tail for _, tail, _ in cases if tail is not None]
    source = Scripted([word << INDEX_BITS for word, _, _ in cases], tails)
    assert lookup.settle(index, source).tolist() == [outcome for _, _, outcome in cases]
    assert (source.numbers, set(source.asked)) == ([], {192})
    table = lookup.table(np.array([10, 20, 30]), -1)
    assert table[[0x1233, 0x1234, 0x1235]].tolist() == [10, -1, 30]


@pytest.mark.parametrize("negative", [False, True])
def test_the_tail_begins_anew_and_keeps_its_sign(negative: bool) -> None:
    law = noise(0.25)  # one table, without digits
    assert law._low_bits == 1
    span, weights = law._span, law._high.weights

    def number(side: int, part: int) -> int:
        return sum(weights[: side * (span + 1) + part])

    side = int(negative)
    drawn = [number(1 - side, 3), number(side, span), number(1 - side, span), number(side, 4)]
    source = Scripted(numbers=drawn)
    magnitude = (2 * span + 4) << law._low_bits
    found = law._beyond(negative=negative, rng=source)
    assert found == (~magnitude if negative else magnitude)
    assert (source.numbers, set(source.asked)) == ([], {256})


@pytest.mark.parametrize("rate", [7.3, 0.5, 0.02, 1e-3, 1e-5, 1e-9])
def test_all_first_bits_undecided_gives_the_same_law(rate: float) -> None:
    """Settling from scratch follows the law of the tables."""
    law, rng = noise(rate), RandomSource.seeded(2)
    tables = 1 + len(law._digits)
    indices = rng.words(5000 * tables).astype(np.uint16).reshape(tables, -1)
    settled = law._settle(indices, rng)
    looked_up = law._tables[0][indices[0]].astype(np.int64)
    for table, index in zip(law._tables[1:], indices[1:], strict=True):
        looked_up ^= table[index]
    decided = (looked_up >= -law._limit) & (looked_up < law._limit)
    assert decided.mean() > 0.9
    np.testing.assert_array_equal(settled[decided], looked_up[decided])


def test_blocks_are_independent_and_as_long_as_asked_for() -> None:
    drawn = noise(1e-6).sample(1 << 18, RandomSource.seeded(3)).reshape(2, -1)
    assert np.mean(drawn[0] == drawn[1]) < 1e-3
    for size in (0, 1, 5, (1 << 17) + 3):
        drawn = noise(0.001).sample(size, RandomSource.seeded(3))
        assert (drawn.dtype, drawn.shape) == (np.int64, (size,))
