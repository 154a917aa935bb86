"""Codewords: the exact law against a plain one, and what it is worth."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from flower_ldp.mechanisms import Codeword, CodewordReport, RandomSource
from flower_ldp.mechanisms.base import run_cosine
from flower_ldp.mechanisms.hadamard import draw, favoured_of, signs
from tests.statistical.follows import assert_follows

SMALL = [Codeword(1.5, 1, 2, 3), Codeword(0.3, 2, 1, 9), Codeword(6.0, 3, 3, 2**63 - 1)]
SMALL.append(Codeword(2.0, 3, 2, 5, blocks=2))
# The largest entry is a power of two: products stay exact, and ties are those of the integers.
UPDATES = [
    (0, 0, 0, 0),
    (1, 0, 0, 0),
    (1, 1, 1, 1),
    (-4, 1, 0, 2),
    (8, -4, 3, -2),
    (1, -1, 1, -1),
    (2, 2, 1, 1),
]


def named(mechanism: Codeword, order: int) -> list[CodewordReport]:
    parts = itertools.product(range(mechanism.rotations), range(order), (1, -1))
    return [CodewordReport(order, *one) for one in parts]


@cache
def dense() -> np.ndarray:
    """Hadamard's matrix of order 2048, by its definition."""
    places = np.arange(2048)
    parity = np.array([bin(number).count("1") & 1 for number in range(2048)])
    return 1.0 - 2.0 * parity[places[:, None] & places]


def written_out(mechanism: Codeword, dimension: int) -> np.ndarray:
    """Return all codewords of all codes: row i of block b, over the entries of the block."""
    blocks, size = mechanism.blocks, math.ceil(dimension / mechanism.blocks)
    rows = next(2**i for i in range(12) if 2**i >= size)
    matrix = np.zeros((mechanism.rotations, blocks * rows, dimension))
    for code in range(mechanism.rotations):
        flips = signs(mechanism.seed, code, blocks * rows).reshape(blocks, rows)
        for block in range(blocks):
            mine = slice(block * size, min((block + 1) * size, dimension))
            many = mine.stop - mine.start
            part = dense()[:rows, :many] * flips[block, :many]
            matrix[code, block * rows : (block + 1) * rows, mine] = part
    return matrix


def law(mechanism: Codeword, update: tuple[int, ...]) -> dict[CodewordReport, Fraction]:
    """The law by its definition: a sort for each code and offset, in integers."""
    products = written_out(mechanism, len(update)) @ np.array(update)
    size, many = mechanism.favoured, 2 * products.shape[1]
    power = Fraction(math.exp(mechanism.epsilon))
    below = (size * power + many - size) * many * mechanism.rotations
    found: Counter[CodewordReport] = Counter()
    for rotation, offset in itertools.product(range(mechanism.rotations), range(many)):
        both = [sign * product for product in products[rotation] for sign in (1, -1)]
        ranked = sorted(range(many), key=lambda i: (-both[i], (i - offset) % many))
        for place, i in enumerate(ranked):
            report = CodewordReport(many // 2, rotation, i // 2, 1 - 2 * (i % 2))
            found[report] += (power if place < size else 1) / below
    return found


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("mechanism", SMALL, ids=repr)
@pytest.mark.parametrize("dimension", [3, 4])
def test_log_prob_is_the_definition(mechanism: Codeword, update: Any, dimension: int) -> None:
    update = update[:dimension]
    wanted = law(mechanism, update)
    for report in named(mechanism, 4):
        found = mechanism.log_prob(report, np.array(update, dtype=np.float64))
        assert math.isclose(found, math.log(wanted[report]), rel_tol=1e-12)


@pytest.mark.parametrize("update", UPDATES[:4])
def test_reports_follow_the_law(update: tuple[int, ...]) -> None:
    mechanism, rng = SMALL[0], RandomSource.seeded(7)
    value = np.array(update, dtype=np.float32)
    reports = named(mechanism, 4)
    seen = Counter(mechanism.randomize(value, rng) for _ in range(1_500))
    law = [math.exp(mechanism.log_prob(report, value)) for report in reports]
    assert_follows([seen[report] for report in reports], law)


@pytest.mark.parametrize("offset", range(16))
def test_exactly_so_many_are_favoured(offset: int) -> None:
    # Equal in real numbers, a last digit apart in doubles; and a zero that came out as none.
    parted = [1.0, np.nextafter(1.0, 2.0), -1.0, np.nextafter(-1.0, 0.0), 0.0, 5e-324, -0.0]
    parted.append(-5e-324)
    some = ([0.0] * 4, [1, 0, 0, -1], [1, 1, -1, 1], [2, 1, 3, -4], [0, 0, 0, 5], parted)
    for products in some:
        both = np.array([s * p for p in products for s in (1, -1)])
        for size in range(1, len(products) + 1):
            found = favoured_of(np.array(products, dtype=np.float64), size, offset % len(both))
            assert len(set(found.tolist())) == size
            if len(products) == 4:
                assert both[found].min() >= np.delete(both, found).max()
            else:
                assert 1 in found // 2


class Told:
    """A source that returns what it is told, and remembers what it was asked."""

    def __init__(self, *values: int) -> None:
        self.values = list(values)
        self.asked: list[int] = []

    def below(self, n: int) -> int:
        self.asked.append(n)
        return self.values.pop(0)


@pytest.mark.parametrize("favoured", [[0], [7], [1, 2, 3], [0, 7], [4, 2, 6, 0]])
def test_a_draw_is_uniform_on_either_side(favoured: list[int]) -> None:
    rest = [position for position in range(8) if position not in favoured]
    for inside, side in ((True, sorted(favoured)), (False, rest)):
        found = []
        for value in range(len(side)):
            source = Told(*((value, 0) if inside else (0, value)))
            drawn = draw(np.array(favoured), 8, source, inside=inside)  # type: ignore[arg-type]
            found.append(drawn)
            # As much is asked of the source on either side: it tells nothing of the coin.
            assert source.asked == [len(favoured), len(rest)]
        assert found == side


@pytest.mark.parametrize(
    "value", [None, np.zeros(5), np.ones(5), np.full(5, np.inf), np.arange(5.0), "x"]
)
def test_the_random_source_is_asked_the_same_whatever_the_value(value: object) -> None:
    mechanism, asked = Codeword(2.0, 3, rotations=4), []

    class Counting:
        def below(self, n: int) -> int:
            asked.append(("below", n))
            return n - 1

        def bits(self, n: int) -> int:
            asked.append(("bits", n))
            return 0

    mechanism.randomize(value, Counting(), 5)  # type: ignore[arg-type]
    assert asked == [("below", 4), ("below", 16), ("bits", 256), ("below", 3), ("below", 13)]


@pytest.mark.parametrize(
    "value",
    [
        np.array([5e-324, -5e-324, 0.0, 1e-310, -0.0]),
        np.array([1.7e308, -1.7e308, 5e-324, 1.7e308, 1.0]),
        np.array([65504, -65504, 6e-8, 1, 0], dtype=np.float16),
        np.array([1e-45, 3e38, -3e38, 0, 1], dtype=np.float32),
        np.arange(10.0)[::-2],
        np.array([-(2**63), 2**63 - 1, 0, 1, 2]),
        np.array([True, False, True, True, False]),
        [1, -2, 3.5, 0, 10**300],
        np.array([1, 2, 3, 4, 5], dtype=np.longdouble),
    ],
    ids=repr,
)
def test_whatever_numpy_was_told_the_law_of_a_value_is_that_of_its_numbers(value: object) -> None:
    mechanism = Codeword(2.0, 3, rotations=2)
    before = np.array(value)
    exact = [Fraction(float(entry)) for entry in np.asarray(value).tolist()]
    largest = max(map(abs, exact))
    with np.errstate(all="raise"):
        found = [mechanism.log_prob(report, value) for report in named(mechanism, 8)]
        mechanism.randomize(value, RandomSource.seeded(1))
    scaled = np.array([float(entry / largest) for entry in exact])
    assert found == [mechanism.log_prob(report, scaled) for report in named(mechanism, 8)]
    assert len(set(found)) > 1
    assert np.array_equal(np.asarray(value), before)


BLOCKS = [(2_010, 1), (2_010, 10), (2_010, 7), (330, 330), (331, 31)]


@pytest.mark.parametrize(
    ("dimension", "blocks", "kind"),
    [
        *((2_010, 1, kind) for kind in ("equal", "powers", "float16")),
        *((*one, kind) for one in BLOCKS for kind in ("one block", "last entry", "normal", "huge")),
    ],
)
def test_at_production_size_the_favoured_are_the_nearest_of_all_blocks(
    dimension: int, blocks: int, kind: str
) -> None:
    favoured = 13 if blocks == 1 else 5
    mechanism, rng = Codeword(8.0, favoured, 2, 5, blocks), np.random.default_rng(3)
    size, codes = math.ceil(dimension / blocks), written_out(mechanism, dimension)
    at = np.arange(dimension)
    update = {
        "one block": np.where(at // size == blocks // 2, rng.normal(size=dimension), 0.0),
        "last entry": np.where(at == dimension - 1, -1e-300, 0.0),
        "normal": rng.normal(size=dimension),
        "huge": rng.choice([-1.7e308, 1.7e308], dimension),
        "equal": np.full(dimension, 0.25, dtype=np.float32),
        "powers": 2.0 ** -np.minimum(at, 1074),
        "float16": rng.normal(size=dimension).astype(np.float16),
    }[kind]
    order = mechanism.plan(dimension).order
    assert codes.shape[1] == order
    source, hits = RandomSource.seeded(11), 0
    exact = update.astype(np.float64)
    by_code = codes @ (exact / np.abs(exact).max())
    for _ in range(50):
        report = mechanism.randomize(update, source)
        products = by_code[report.rotation]
        # Ties and roundings at the edge count as favoured: the share can only be larger.
        reach = np.sort(np.abs(products))[-favoured] - 1e-9 * np.abs(products).max()
        hits += report.sign * products[report.row] >= reach
        word = mechanism.total([report], dimension) * math.sqrt(order / blocks)
        np.testing.assert_allclose(word, report.sign * codes[report.rotation, report.row])
    expected = favoured * math.exp(8) / (favoured * math.exp(8) + 2 * order - favoured)
    assert hits >= 50 * expected - 5 * math.sqrt(50 * expected * (1 - expected)) - 1
    if blocks == 1 and kind not in ("last entry", "equal"):
        assert hits < 50  # one in ten is none of them


def test_the_least_epsilon_has_a_plan_and_keeps_it() -> None:
    for blocks in (1, 3, 5):
        plan = Codeword(1e-12, blocks=blocks).plan(15)
        assert 0.0 <= plan.cosine_of_sum(1) < 1e-6
        # In exact numbers: a favoured codeword over another, both ways round.
        rest = plan.codewords - plan.favoured
        ratio = Fraction(plan.weight * rest, (2**256 - plan.weight) * plan.favoured)
        assert abs(ratio - 1) <= Fraction(math.expm1(1e-12))


@pytest.mark.parametrize("dimension", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_all_sizes_of_small_codes_keep_epsilon(dimension: int, size: int) -> None:
    order = 1 << (dimension - 1).bit_length()
    size = min(size, order)
    values = [*np.random.default_rng(size).integers(-1, 2, (20, dimension)).astype(float), None]
    for epsilon in (1e-9, 3.0, 100.0):
        mechanism = Codeword(epsilon, size, rotations=1, seed=dimension)
        words = named(mechanism, order)
        laws = np.array([[mechanism.log_prob(one, v, dimension) for one in words] for v in values])
        np.testing.assert_allclose(np.exp(laws).sum(axis=1), 1.0, rtol=1e-12)
        assert np.ptp(laws, axis=0).max() <= epsilon + 1e-12


def test_what_has_no_direction_is_answered_by_a_uniform_codeword() -> None:
    mechanism, nan, inf = SMALL[2], [1.0, np.nan, 0, 0], [np.inf, 0, 0, 0]
    for value in (None, np.zeros(4), np.array(nan), np.array(inf), np.ones(5), "x"):
        found = {mechanism.log_prob(report, value, 4) for report in named(mechanism, 4)}
        assert found == {-math.log(2 * 4 * 3)}
        assert isinstance(mechanism.randomize(value, RandomSource.seeded(1), 4), CodewordReport)


@pytest.mark.parametrize(
    ("mechanism", "dimension", "clients", "seeds"),
    [
        (Codeword(8.0, blocks=10), 280, 30, 6),
        (Codeword(8.0, blocks=64), 1024, 300, 3),
        (Codeword(8.0, blocks=1024), 1024, 300, 3),
        (Codeword(8.0, rotations=1), 250, 200, 4),
        (Codeword(8.0, rotations=64), 250, 200, 3),
        (Codeword(8.0, rotations=4096), 520, 300, 1),
        (Codeword(6.0, rotations=64), 60, 3_000, 1),
    ],
    ids=repr,
)
def test_a_sum_points_as_far_as_the_plan_says(
    mechanism: Codeword, dimension: int, clients: int, seeds: int
) -> None:
    source, plan, cosines, inner = RandomSource.seeded(5), mechanism.plan(dimension), [], []
    for seed in range(seeds):
        sized = replace(mechanism, seed=seed).sized(dimension)
        direction = np.random.default_rng(seed).normal(size=dimension)
        direction /= np.linalg.norm(direction)
        reports = [sized.randomize(direction, source) for _ in range(clients)]
        found = sized.estimate(reports, dimension)
        inner.append(found @ direction)
        cosines.append(inner[-1] / np.linalg.norm(found))
    assert abs(np.mean(cosines) - plan.cosine_of_sum(clients)) < 0.04
    assert abs(np.mean(inner) - 1.0) < 0.1


def test_what_leans_to_long_blocks_or_few_codes_never_averages_out() -> None:
    for dimension, blocks in ((280, 10), (1024, 64), (1024, 1024)):
        plan = Codeword(8.0, blocks=blocks).plan(dimension)
        assert plan.bias > 0.2
        assert run_cosine(plan, 10**9) < math.sqrt(1 / (1 + plan.bias)) + 1e-6
    few, many = (Codeword(8.0, rotations=codes).plan(250).cosine_of_sum(200) for codes in (1, 64))
    assert few < 0.6 < 0.8 < many
    # A code that is cut to the model is worth as much: reports are shorter, and so is their noise.
    cut = Codeword(8.0, rotations=4096).plan(520).efficiency
    assert abs(cut / Codeword(8.0).plan(1024).efficiency - 1) < 0.02


@pytest.mark.parametrize(("epsilon", "least"), [(8.0, 7.2), (4.0, 2.2), (2.0, 0.6)])
def test_the_chosen_size_is_worth_what_is_known(epsilon: float, least: float) -> None:
    plan, sized = Codeword(epsilon).plan(2_010), Codeword(epsilon).sized(2_010)
    assert sized.plan(2_010) == plan
    assert sized.favoured == plan.favoured > 0
    others = [Codeword(epsilon, size).plan(2_010).efficiency for size in (1, 4, 64, 512, 2048)]
    assert plan.efficiency >= max(least, *others)
