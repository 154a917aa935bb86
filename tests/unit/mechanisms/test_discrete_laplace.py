"""Discrete Laplace noise: the weights that the sampler uses, and how it uses them."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from flower_ldp.mechanisms.integer_noise import DiscreteLaplace
from flower_ldp.mechanisms.random import INDEX_BITS, WEIGHT_BITS, ExactLookup, RandomSource
from flower_ldp.mechanisms.signds_size import exp_scaled_at_least
from flower_ldp.privacy import as_fraction

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


@pytest.mark.parametrize("rate", RATES)
def test_tables_hold_the_outcomes_of_all_numbers_with_their_first_bits(rate: float) -> None:
    law = noise(rate)
    for lookup, values, table in zip(
        (law._high, *law._digits), law._values, law._tables, strict=True
    ):
        undecided = int(table.max())
        assert undecided >= law._limit
        rng = np.random.default_rng(1)
        for index in rng.integers(0, 1 << INDEX_BITS, 300).tolist():
            first = index << (WEIGHT_BITS - INDEX_BITS)
            last = first + (1 << (WEIGHT_BITS - INDEX_BITS)) - 1
            low, high = (outcome_of(lookup, number) for number in (first, last))
            expected = undecided if low != high else int(values[low])
            assert table[index] == expected


def outcome_of(lookup: ExactLookup, number: int) -> int:
    """Return the piece that a 256-bit number falls into, by adding up."""
    total = 0
    for outcome, weight in enumerate(lookup.weights):
        total += weight
        if number < total:
            return outcome
    raise ValueError(f"{number} has more than {WEIGHT_BITS} bits")


class ScriptedSource(RandomSource):
    """Hands out prepared words, and prepared tails of 192 bits or numbers of 256."""

    def __init__(self, words: list[int], numbers: list[int]) -> None:
        super().__init__()
        self._words, self._numbers = words, numbers

    def words(self, size: int) -> NDArray[np.uint64]:
        return np.array([self._words.pop(0) for _ in range(size)], dtype=np.uint64)

    def bits(self, n: int) -> int:
        found = self._numbers.pop(0)
        assert found >> n == 0
        return found


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
    source = ScriptedSource(
        [word << INDEX_BITS for word, _, _ in cases],
        [tail for _, tail, _ in cases if tail is not None],
    )
    assert lookup.settle(index, source).tolist() == [outcome for _, _, outcome in cases]
    assert source._numbers == []
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
    source = ScriptedSource(
        [],
        [number(1 - side, 3), number(side, span), number(1 - side, span), number(side, 4)],
    )
    magnitude = (2 * span + 4) << law._low_bits
    found = law._beyond(negative=negative, rng=source)
    assert found == (~magnitude if negative else magnitude)
    assert source._numbers == []


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


@pytest.mark.parametrize("size", [0, 1, 5, (1 << 17) + 3])
def test_sample_has_the_size_asked_for(size: int) -> None:
    drawn = noise(0.001).sample(size, RandomSource.seeded(3))
    assert drawn.dtype == np.int64
    assert drawn.shape == (size,)


def test_blocks_are_independent() -> None:
    drawn = noise(1e-6).sample(1 << 18, RandomSource.seeded(3)).reshape(2, -1)
    assert np.mean(drawn[0] == drawn[1]) < 1e-3
