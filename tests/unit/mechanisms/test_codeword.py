"""Codewords: the exact law against a plain one, and what it is worth."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from flower_ldp.mechanisms import Codeword, NamedCodeword, RandomSource
from flower_ldp.mechanisms.codeword import _draw, _favoured
from flower_ldp.mechanisms.sampling.hadamard import signs
from flower_ldp.privacy import Unit, compose_directly
from tests.statistical.test_signds_sampler import assert_follows

SMALL = [Codeword(1.5, 1, 2, 3), Codeword(0.3, 2, 1, 9), Codeword(6.0, 3, 3, 2**63 - 1)]
UPDATES = [
    (0, 0, 0, 0),
    (1, 0, 0, 0),
    (1, 1, 1, 1),
    (-3, 1, 0, 2),
    (5, -4, 3, -2),
    (1, -1, 1, -1),
    (2, 2, 1, 1),
]


def named(mechanism: Codeword, order: int) -> list[NamedCodeword]:
    return [
        NamedCodeword(order, *parts)
        for parts in itertools.product(range(mechanism.rotations), range(order), (1, -1))
    ]


def law(mechanism: Codeword, update: tuple[int, ...], order: int) -> dict[NamedCodeword, Fraction]:
    """The law by its definition: a sort for each code and offset, in integers."""
    size, many = mechanism.favoured, 2 * order
    power = Fraction(math.exp(mechanism.epsilon))
    below = size * power + many - size
    found: Counter[NamedCodeword] = Counter()
    filled = [*update, *[0] * (order - len(update))]
    for rotation in range(mechanism.rotations):
        flips = signs(mechanism.seed, rotation, order).tolist()
        words = [
            (
                row,
                sign,
                sum(
                    sign * (-1) ** (row & j).bit_count() * flips[j] * filled[j]
                    for j in range(order)
                ),
            )
            for row in range(order)
            for sign in (1, -1)
        ]
        for offset in range(many):
            ranked = sorted(range(many), key=lambda i: (-words[i][2], (i - offset) % many))
            for place, i in enumerate(ranked):
                weight = (power if place < size else 1) / below / many / mechanism.rotations
                found[NamedCodeword(order, rotation, words[i][0], words[i][1])] += weight
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
    assert isinstance(mechanism.randomize(value, RandomSource.seeded(1), 4), NamedCodeword)


@pytest.mark.parametrize("update", UPDATES)
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
        found = _favoured(np.array(products, dtype=np.float64), size, offset)
        assert len(set(found.tolist())) == size
        both = np.array([s * p for p in products for s in (1, -1)])
        assert both[found].min() >= np.delete(both, found).max()


@pytest.mark.parametrize("favoured", [[0], [7], [1, 2, 3], [0, 7], [4, 2, 6, 0]])
def test_a_draw_outside_is_uniform_on_the_others(favoured: list[int]) -> None:
    class Counting:
        def __init__(self, value: int) -> None:
            self.value = value

        def below(self, n: int) -> int:
            assert n == 8 - len(favoured)
            return self.value

    found = [
        _draw(np.array(favoured), 8, Counting(value), inside=False)  # type: ignore[arg-type]
        for value in range(8 - len(favoured))
    ]
    assert found == [position for position in range(8) if position not in favoured]


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
    for _ in range(100):
        report = mechanism.randomize(update, source)
        flipped = signs(5, report.rotation, 2048)[:dimension] * (update.astype(np.float64) / scale)
        products = dense()[:, :dimension] @ flipped
        both = np.concatenate([products, -products])
        mine = report.sign * products[report.row]
        # Ties and roundings at the edge count as favoured: the share can only be larger.
        hits += mine >= np.sort(both)[-13] - 1e-9 * np.abs(products).max()
    expected = 13 * math.exp(8) / (13 * math.exp(8) + 4096 - 13)
    tied = kind in ("one entry", "equal")
    assert hits >= 100 * expected - 5 * math.sqrt(100 * expected * (1 - expected)) - 1
    assert tied or hits < 100  # one in ten is none of them


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
        assert abs(np.mean(inner) - plan.cosine) < error + 0.02 * plan.cosine


def test_the_estimate_finds_a_common_direction() -> None:
    dimension, mechanism = 60, Codeword(6.0, rotations=64)
    update = np.random.default_rng(5).normal(size=dimension)
    source = RandomSource.seeded(6)
    reports = [mechanism.randomize(update, source) for _ in range(3_000)]
    found = mechanism.estimate(reports, dimension)
    direction = update / np.linalg.norm(update)
    cosine = found @ direction / np.linalg.norm(found)
    assert abs(cosine - mechanism.plan(dimension).cosine_of_mean(3_000)) < 0.03
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
        mechanism.log_prob(NamedCodeword(*report), np.ones(4))
    with pytest.raises(ValueError, match="report must name"):
        mechanism.estimate([NamedCodeword(*report)], 4)
    with pytest.raises(ValueError, match="at least one report"):
        mechanism.estimate([], 4)
