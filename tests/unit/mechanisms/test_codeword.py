"""Codewords: the exact law against a plain one, and what it is worth."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from flower_ldp.mechanisms import Codeword, CodewordReport, RandomSource
from flower_ldp.mechanisms.base import run_cosine
from flower_ldp.mechanisms.hadamard import draw, favoured_of, signs
from flower_ldp.privacy import Unit, compose_directly
from tests.statistical.follows import assert_follows

SMALL = [
    Codeword(1.5, 1, 2, 3),
    Codeword(0.3, 2, 1, 9),
    Codeword(6.0, 3, 3, 2**63 - 1),
    Codeword(2.0, 3, 2, 5, blocks=2),
]
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
    return [
        CodewordReport(order, *parts)
        for parts in itertools.product(range(mechanism.rotations), range(order), (1, -1))
    ]


def law(mechanism: Codeword, update: tuple[int, ...], order: int) -> dict[CodewordReport, Fraction]:
    """The law by its definition: a sort for each code and offset, in integers."""
    size, many = mechanism.favoured, 2 * order
    power = Fraction(math.exp(mechanism.epsilon))
    below = size * power + many - size
    found: Counter[CodewordReport] = Counter()
    # Both dimensions of these tests, 3 and 4, are cut to parts of order // blocks entries.
    filled = [*update, *[0] * (order - len(update))]
    rows = order // mechanism.blocks
    for rotation in range(mechanism.rotations):
        flips = signs(mechanism.seed, rotation, order).tolist()
        words = [
            (
                row,
                sign,
                sum(
                    sign * (-1) ** (row % rows & j % rows).bit_count() * flips[j] * filled[j]
                    for j in range(order)
                    if j // rows == row // rows
                ),
            )
            for row in range(order)
            for sign in (1, -1)
        ]
        for offset in range(many):
            ranked = sorted(range(many), key=lambda i: (-words[i][2], (i - offset) % many))
            for place, i in enumerate(ranked):
                weight = (power if place < size else 1) / below / many / mechanism.rotations
                found[CodewordReport(order, rotation, words[i][0], words[i][1])] += weight
    return found


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("mechanism", SMALL, ids=repr)
@pytest.mark.parametrize("dimension", [3, 4])
def test_log_prob_is_the_definition(
    mechanism: Codeword, update: tuple[int, ...], dimension: int
) -> None:
    update = update[:dimension]
    wanted = law(mechanism, update, 4)
    for report in named(mechanism, 4):
        found = mechanism.log_prob(report, np.array(update, dtype=np.float64))
        assert math.isclose(found, math.log(wanted[report]), rel_tol=1e-12)


@pytest.mark.parametrize("mechanism", SMALL, ids=repr)
def test_epsilon_is_met_and_tight(mechanism: Codeword) -> None:
    values = [np.array(update, dtype=np.float32) for update in UPDATES] + [None]
    laws = [[mechanism.log_prob(report, v, 4) for report in named(mechanism, 4)] for v in values]
    assert all(math.isclose(sum(map(math.exp, one)), 1.0, rel_tol=1e-12) for one in laws)
    ratio = max(
        a - b
        for one, other in itertools.permutations(laws, 2)
        for a, b in zip(one, other, strict=True)
    )
    assert mechanism.epsilon - 1e-9 < ratio <= mechanism.epsilon + 1e-12
    assert compose_directly(mechanism.events())[Unit.CLIENT].epsilon == mechanism.epsilon


@pytest.mark.parametrize(
    "value",
    [
        None,
        np.zeros(4),
        np.array([1.0, np.nan, 0, 0]),
        np.array([np.inf, 0, 0, 0]),
        np.ones(5),
        "x",
    ],
)
def test_what_has_no_direction_is_answered_by_a_uniform_codeword(value: object) -> None:
    mechanism = SMALL[2]
    found = {mechanism.log_prob(report, value, 4) for report in named(mechanism, 4)}
    assert found == {-math.log(2 * 4 * 3)}
    assert isinstance(mechanism.randomize(value, RandomSource.seeded(1), 4), CodewordReport)


@pytest.mark.parametrize("update", UPDATES[:4])
def test_reports_follow_the_law(update: tuple[int, ...]) -> None:
    mechanism, rng = SMALL[0], RandomSource.seeded(7)
    value = np.array(update, dtype=np.float32)
    reports = named(mechanism, 4)
    seen = Counter(mechanism.randomize(value, rng) for _ in range(4_000))
    law = [math.exp(mechanism.log_prob(report, value)) for report in reports]
    assert_follows([seen[report] for report in reports], law)


@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_exactly_so_many_are_favoured(size: int, offset: int) -> None:
    for products in ([0, 0, 0, 0], [1, 0, 0, -1], [1, 1, -1, 1], [2, 1, 3, -4], [0, 0, 0, 5]):
        found = favoured_of(np.array(products, dtype=np.float64), size, offset)
        assert len(set(found.tolist())) == size
        both = np.array([s * p for p in products for s in (1, -1)])
        assert both[found].min() >= np.delete(both, found).max()


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


@pytest.mark.parametrize("dimension", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_all_sizes_of_small_codes_keep_epsilon(dimension: int, size: int) -> None:
    order = 1 << (dimension - 1).bit_length()
    if size > order:
        with pytest.raises(ValueError, match="favoured must be in"):
            Codeword(3.0, size).plan(dimension)
        return
    rng = np.random.default_rng(size)
    values = [*rng.integers(-1, 2, (20, dimension)).astype(float), None]
    for epsilon in (1e-9, 3.0, 100.0):
        mechanism = Codeword(epsilon, size, rotations=1, seed=dimension)
        words = named(mechanism, order)
        laws = np.array([[mechanism.log_prob(one, v, dimension) for one in words] for v in values])
        np.testing.assert_allclose(np.exp(laws).sum(axis=1), 1.0, rtol=1e-12)
        assert (laws.max(axis=0) - laws.min(axis=0)).max() <= epsilon + 1e-12


def test_roundings_that_part_equal_products_leave_exactly_k() -> None:
    # Equal in real numbers, a last digit apart in doubles; and a zero that came out as none.
    products = np.array([1.0, np.nextafter(1.0, 2.0), -1.0, np.nextafter(-1.0, 0.0), 0.0, 5e-324])
    products = np.concatenate([products, [-0.0, -5e-324]])
    for size in range(1, 9):
        found = [favoured_of(products, size, offset) for offset in range(16)]
        assert all(len(set(one.tolist())) == size for one in found)
        assert all(1 in one // 2 for one in found)


@cache
def dense() -> np.ndarray:
    """Hadamard's matrix of order 2048, by its definition."""
    places = np.arange(2048)
    parity = np.array([bin(number).count("1") & 1 for number in range(2048)])
    return 1.0 - 2.0 * parity[places[:, None] & places]


@pytest.mark.parametrize("kind", ["normal", "one entry", "equal", "powers", "float16", "huge"])
def test_at_production_size_the_favoured_are_the_nearest(kind: str) -> None:
    dimension, mechanism = 2_010, Codeword(8.0, 13, 4, seed=5)
    rng = np.random.default_rng(3)
    update = {
        "normal": rng.normal(size=dimension),
        "one entry": np.where(np.arange(dimension) == 700, -1e-300, 0.0),
        "equal": np.full(dimension, 0.25, dtype=np.float32),
        "powers": 2.0 ** -np.arange(dimension),
        "float16": rng.normal(size=dimension).astype(np.float16),
        "huge": rng.choice([-1.7e308, 1.7e308], dimension),
    }[kind]
    scale = np.abs(update.astype(np.float64)).max()
    source, hits = RandomSource.seeded(11), 0
    flipped = [
        signs(5, code, 2048)[:dimension] * (update.astype(np.float64) / scale) for code in range(4)
    ]
    by_code = np.stack(flipped) @ dense()[:, :dimension].T
    for _ in range(100):
        report = mechanism.randomize(update, source)
        products = by_code[report.rotation]
        both = np.concatenate([products, -products])
        mine = report.sign * products[report.row]
        # Ties and roundings at the edge count as favoured: the share can only be larger.
        hits += mine >= np.sort(both)[-13] - 1e-9 * np.abs(products).max()
    expected = 13 * math.exp(8) / (13 * math.exp(8) + 4096 - 13)
    tied = kind in ("one entry", "equal")
    assert hits >= 100 * expected - 5 * math.sqrt(100 * expected * (1 - expected)) - 1
    assert tied or hits < 100  # one in ten is none of them


@pytest.mark.parametrize("kind", ["one block", "last block", "normal", "huge"])
@pytest.mark.parametrize(("dimension", "blocks"), [(2_010, 10), (2_010, 7), (330, 330), (331, 31)])
def test_blocks_at_production_size_favour_the_nearest_of_all_blocks(
    dimension: int, blocks: int, kind: str
) -> None:
    mechanism, rng = Codeword(8.0, 5, 4, seed=5, blocks=blocks), np.random.default_rng(3)
    size = math.ceil(dimension / blocks)
    rows = next(2**i for i in range(12) if 2**i >= size)
    at = np.arange(dimension)
    update = {
        "one block": np.where(at // size == blocks // 2, rng.normal(size=dimension), 0.0),
        "last block": np.where(at == dimension - 1, -1e-300, 0.0),
        "normal": rng.normal(size=dimension),
        "huge": rng.choice([-1.7e308, 1.7e308], dimension),
    }[kind]
    assert mechanism.plan(dimension).order == blocks * rows
    # All codewords of all codes, written out: row i of block b, over the entries of the block.
    matrix = np.zeros((4, blocks * rows, dimension))
    for code in range(4):
        flips = signs(5, code, blocks * rows).reshape(blocks, rows)
        for block in range(blocks):
            mine = at[at // size == block]
            part = dense()[:rows, : len(mine)] * flips[block, : len(mine)]
            matrix[code, block * rows : (block + 1) * rows, mine[0] : mine[-1] + 1] = part
    source, hits = RandomSource.seeded(11), 0
    by_code = matrix @ (update / np.abs(update).max())
    for _ in range(100):
        report = mechanism.randomize(update, source)
        products = by_code[report.rotation]
        reach = np.sort(np.abs(products))[-5] - 1e-9 * np.abs(products).max()
        hits += report.sign * products[report.row] >= reach
        word = mechanism.total([report], dimension) * math.sqrt(rows)
        np.testing.assert_allclose(word, report.sign * matrix[report.rotation, report.row])
    many = 2 * blocks * rows
    expected = 5 * math.exp(8) / (5 * math.exp(8) + many - 5)
    assert hits >= 100 * expected - 5 * math.sqrt(100 * expected * (1 - expected)) - 1


def test_an_update_in_few_blocks_tells_more_by_blocks() -> None:
    rng, source, found = np.random.default_rng(1), RandomSource.seeded(2), {}
    updates = [np.zeros(640) for _ in range(300)]
    for number, update in enumerate(updates):
        update[number % 10 * 64 :][:64] = rng.normal(size=64)
    for blocks in (1, 10):
        mechanism = Codeword(8.0, blocks=blocks)
        inner = [
            mechanism.total([mechanism.randomize(one, source)], 640) @ one / np.linalg.norm(one)
            for one in updates
        ]
        found[blocks] = np.mean(inner)
    assert found[10] > 2 * found[1]


@pytest.mark.parametrize(
    ("dimension", "blocks", "clients"), [(280, 10, 30), (1024, 64, 300), (1024, 1024, 300)]
)
def test_the_plan_says_how_far_blocks_lean(dimension: int, blocks: int, clients: int) -> None:
    source, cosines = RandomSource.seeded(5), []
    for seed in range(8):
        mechanism = Codeword(8.0, seed=seed, blocks=blocks).sized(dimension)
        update = np.random.default_rng(seed).normal(size=dimension)
        reports = [mechanism.randomize(update, source) for _ in range(clients)]
        total = mechanism.total(reports, dimension)
        cosines.append(total @ update / np.linalg.norm(total) / np.linalg.norm(update))
    plan = mechanism.plan(dimension)
    assert abs(np.mean(cosines) - plan.cosine_of_sum(clients)) < 0.04
    # What leans to the longest blocks averages out over neither codes nor rounds.
    assert plan.bias > 0.2
    assert run_cosine(plan, 10**9) < math.sqrt(1 / (1 + plan.bias)) + 1e-6


@pytest.mark.parametrize("epsilon", [1e-13, 1e-300, 0.0, -1.0, 100.5, math.nan])
def test_an_epsilon_that_a_weight_cannot_hold_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be in"):
        Codeword(epsilon)


def test_the_least_epsilon_has_a_plan_and_keeps_it() -> None:
    for blocks in (1, 3, 5):
        plan = Codeword(1e-12, blocks=blocks).plan(15)
        assert 0.0 <= plan.cosine_of_sum(1) < 1e-6
        # In exact numbers: a favoured codeword over another, both ways round.
        rest = plan.codewords - plan.favoured
        ratio = Fraction(plan.weight * rest, (2**256 - plan.weight) * plan.favoured)
        assert abs(ratio - 1) <= Fraction(math.expm1(1e-12))


def test_more_blocks_than_entries_or_too_many_rows_are_no_plan() -> None:
    with pytest.raises(ValueError, match="blocks must be in"):
        Codeword(8.0, blocks=5).plan(4)
    with pytest.raises(ValueError, match="blocks of 11 entries are 31 for 331, got 33"):
        Codeword(8.0, blocks=33).plan(331)
    with pytest.raises(ValueError, match="more than 16777216 rows"):
        Codeword(8.0, blocks=3).plan(2**24)
    for blocks in (0, 65_537, True, 2.0):
        with pytest.raises(ValueError, match="blocks must be an integer"):
            Codeword(8.0, blocks=blocks)  # type: ignore[arg-type]


def test_reports_point_as_far_as_the_plan_says() -> None:
    dimension, rng, source = 500, np.random.default_rng(1), RandomSource.seeded(2)
    for mechanism in (Codeword(8.0), Codeword(3.0)):
        plan, inner = mechanism.plan(dimension), []
        for _ in range(1_000):
            update = rng.normal(size=dimension)
            report = mechanism.randomize(update, source)
            inner.append(mechanism.total([report], dimension) @ update / np.linalg.norm(update))
        # A report's inner product has a variance of about 1/n.
        error = 5 * np.std(inner) / math.sqrt(len(inner))
        # Of the n entries only d are the update's.
        assert abs(np.mean(inner) - plan.projection) < error + 0.02 * plan.projection


def test_a_code_that_is_cut_to_the_model_is_worth_as_much() -> None:
    # 520 of 1,024 entries: reports are shorter there, and so is their noise.
    dimension, rng, source = 520, np.random.default_rng(1), RandomSource.seeded(2)
    mechanism, update = Codeword(8.0, rotations=4096), rng.normal(size=dimension)
    plan = mechanism.plan(dimension)
    assert abs(plan.efficiency / Codeword(8.0).plan(1024).efficiency - 1) < 0.02
    reports = [mechanism.randomize(update, source) for _ in range(300)]
    found = mechanism.total(reports, dimension)
    cosine = found @ update / np.linalg.norm(update) / np.linalg.norm(found)
    assert abs(cosine - plan.cosine_of_sum(300)) < 0.04


def test_few_codes_lean_and_the_plan_says_how_far() -> None:
    dimension, source = 250, RandomSource.seeded(2)
    found = {}
    for rotations in (1, 64):
        cosines = []
        for seed in range(6):
            update = np.random.default_rng(seed).normal(size=dimension)
            mechanism = Codeword(8.0, rotations=rotations, seed=seed)
            total = mechanism.total(
                [mechanism.randomize(update, source) for _ in range(200)], dimension
            )
            cosines.append(total @ update / np.linalg.norm(total) / np.linalg.norm(update))
        found[rotations] = np.mean(cosines)
        assert abs(found[rotations] - mechanism.plan(dimension).cosine_of_sum(200)) < 0.04
    assert found[1] < 0.6 < 0.8 < found[64]


def test_the_estimate_finds_a_common_direction() -> None:
    dimension, mechanism = 60, Codeword(6.0, rotations=64)
    update = np.random.default_rng(5).normal(size=dimension)
    source = RandomSource.seeded(6)
    reports = [mechanism.randomize(update, source) for _ in range(3_000)]
    found = mechanism.estimate(reports, dimension)
    direction = update / np.linalg.norm(update)
    cosine = found @ direction / np.linalg.norm(found)
    assert abs(cosine - mechanism.plan(dimension).cosine_of_sum(3_000)) < 0.03
    assert abs(found @ direction - 1.0) < 0.1


@pytest.mark.parametrize(("epsilon", "least"), [(8.0, 7.2), (4.0, 2.2), (2.0, 0.6)])
def test_the_chosen_size_is_worth_what_is_known_to_be_possible(
    epsilon: float, least: float
) -> None:
    plan = Codeword(epsilon).plan(2_010)
    assert plan.efficiency >= least
    others = [Codeword(epsilon, size).plan(2_010).efficiency for size in (1, 4, 64, 512, 2048)]
    assert plan.efficiency >= max(others)


def test_a_sized_mechanism_is_the_same() -> None:
    mechanism = Codeword(4.0)
    sized = mechanism.sized(2_010)
    assert sized.favoured == mechanism.plan(2_010).favoured > 0
    assert sized.plan(2_010) == mechanism.plan(2_010)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epsilon": 0.0}, "epsilon must be in"),
        ({"epsilon": 100.1}, "epsilon must be in"),
        ({"epsilon": math.nan}, "epsilon must be in"),
        ({"epsilon": 1.0, "favoured": -1}, "favoured must be an integer"),
        ({"epsilon": 1.0, "rotations": 0}, "rotations must be an integer"),
        ({"epsilon": 1.0, "rotations": 4097}, "rotations must be an integer"),
        ({"epsilon": 1.0, "seed": 2**63}, "seed must be an integer"),
        ({"epsilon": 1.0, "seed": True}, "seed must be an integer"),
    ],
)
def test_parameters_outside_their_intervals_are_refused(
    given: dict[str, float], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Codeword(**given)  # type: ignore[arg-type]


def test_dimensions_that_have_no_code_are_refused() -> None:
    for dimension in (0, 1, 2**24 + 1):
        with pytest.raises(ValueError, match="dimension must be"):
            Codeword(1.0).plan(dimension)
    with pytest.raises(ValueError, match="favoured must be in"):
        Codeword(1.0, favoured=5).plan(4)


@pytest.mark.parametrize(
    "report", [(4, 2, 0, 1), (4, -1, 0, 1), (4, 0, 4, 1), (4, 0, 0, 0), (8, 0, 0, 1)]
)
def test_reports_that_are_none_are_refused(report: tuple[int, int, int, int]) -> None:
    mechanism = Codeword(1.0, rotations=2)
    with pytest.raises(ValueError, match="report must name"):
        mechanism.log_prob(CodewordReport(*report), np.ones(4))
    with pytest.raises(ValueError, match="report must name"):
        mechanism.estimate([CodewordReport(*report)], 4)
    with pytest.raises(ValueError, match="at least one report"):
        mechanism.estimate([], 4)
