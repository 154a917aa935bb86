"""The shipped sampler against its exact law; failure rate 1e-6 a test, fixed seed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from flower_ldp.mechanisms import RandomSource, Selection, SignDS
from flower_ldp.mechanisms.signds_size import SelectionLaw
from tests.extras import extra
from tests.statistical.follows import FAILURE_RATE, assert_follows
from tests.unit.mechanisms.topk_cases import sample_positions

stats = extra("scipy.stats")

pytestmark = pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.SmallTopSetWarning")

UPDATES = (
    np.array([0.0, 0.0, 0.0, 0.0, 1.0, -1.0, 0.0], dtype=np.float32),
    np.array([3.0, 1.0, 2.0, -5.0, 0.5, -0.5, 0.1], dtype=np.float32),
)


@pytest.mark.parametrize(
    ("epsilon", "h", "draws"), [(0.5, 2, 4_000), (3.0, 3, 2_000), (6.0, 1, 2_000)]
)
def test_outputs_follow_log_prob(epsilon: float, h: int, draws: int) -> None:
    """Each output by itself, and outputs of one probability together.

    The second sees an epsilon that is 1.35 times what is said, with a probability of 0.99 at
    least; the first sees outputs that are 18 parts in 100 too likely and too rare in turn, and
    of the larger epsilons 26.
    """
    mechanism = SignDS(epsilon, 0.25, dim_out=h)
    rng = RandomSource.seeded(2026)
    together: dict[float, list[float]] = {}
    for update in UPDATES:
        cells = {
            (sign, subset): i
            for i, (sign, subset) in enumerate(
                itertools.product((-1, 1), itertools.combinations(range(len(update)), h))
            )
        }
        counts = [0] * len(cells)
        for _ in range(draws):
            report = mechanism.randomize(update, rng)
            counts[cells[report.sign, tuple(report.indices.tolist())]] += 1
        probabilities = [
            math.exp(mechanism.log_prob(Selection(np.array(subset), sign), update))
            for sign, subset in cells
        ]
        assert_follows(counts, probabilities)
        for count, probability in zip(counts, probabilities, strict=True):
            group = together.setdefault(round(probability, 12), [0, 0.0])
            group[0] += count
            group[1] += probability / len(UPDATES)
    assert len(together) == 2
    sums, shares = zip(*together.values(), strict=True)
    assert_follows(list(sums), list(shares))


def test_number_inside_follows_its_law_at_model_size() -> None:
    plan = SignDS(8.0, 0.2).plan(61_706)
    rng = RandomSource.seeded(7)
    draws = np.bincount([plan.law.sample(rng) for _ in range(50_000)], minlength=plan.dim_out + 1)
    exact = [float(plan.law.probability(v)) for v in range(plan.dim_out + 1)]
    assert_follows(draws.tolist(), exact)


def test_positions_are_uniform_within_and_without_the_top_set() -> None:
    d, draws = 400, 2_500
    update = np.random.default_rng(3).permutation(d).astype(np.float32)
    mechanism = SignDS(8.0, 0.2, dim_out=6)
    rng = RandomSource.seeded(11)
    ranks = {sign: np.argsort(np.argsort(-sign * update)) for sign in (-1, 1)}
    hits = np.zeros(d)
    for _ in range(draws):
        report = mechanism.randomize(update, rng)
        hits[ranks[report.sign][report.indices]] += 1
    for part in (hits[: d // 5], hits[d // 5 :]):
        assert stats.chisquare(part).pvalue > FAILURE_RATE
    law: SelectionLaw = mechanism.plan(d).law
    inside = hits[: d // 5].sum() / draws
    spread = math.sqrt(6 / draws) * stats.norm.isf(FAILURE_RATE / 2)
    assert abs(inside - law.mean()) < spread


def test_sign_is_fair_and_independent_of_the_update() -> None:
    update = np.arange(50, dtype=np.float32)
    rng = RandomSource.seeded(4)
    mechanism = SignDS(8.0, 0.2, dim_out=2)
    # The cells above hold the sign's fairness closer; this is another length and epsilon.
    plus = sum(mechanism.randomize(update, rng).sign == 1 for _ in range(2_000))
    assert stats.binomtest(plus, 2_000).pvalue > FAILURE_RATE


@pytest.mark.parametrize("k", [0.06251, 0.1])
def test_reports_follow_the_law_where_all_probes_meet_equals(k: float) -> None:
    """K beyond a mass of zeros at just the entries that the selection looks at, all public."""
    d, draws = 131_073, 1_000
    update = -np.arange(1, d + 1, dtype=np.float32)
    update[sample_positions(d)] = 0
    mechanism, rng = SignDS(1.0, k), RandomSource.seeded(8)
    plan = mechanism.plan(d)
    orders = {sign: np.lexsort((np.arange(d), -sign * update)) for sign in (-1, 1)}
    ranks = {sign: np.argsort(order) for sign, order in orders.items()}
    reports = [mechanism.randomize(update, rng) for _ in range(draws)]
    placed = np.concatenate([ranks[one.sign][one.indices] for one in reports])
    inside = (placed.reshape(draws, -1) < plan.top_size).sum(axis=1)
    counts = np.bincount(inside, minlength=plan.dim_out + 1).tolist()
    assert_follows(counts, [float(plan.law.probability(v)) for v in range(plan.dim_out + 1)])
    # Members are alike, and so are the others: twenty cells of each, by rank.
    for first, size in ((0, plan.top_size), (plan.top_size, d - plan.top_size)):
        cells = (placed[(placed >= first) & (placed < first + size)] - first) * 20 // size
        exact = np.diff([-(-i * size // 20) for i in range(21)]) / size
        assert_follows(np.bincount(cells, minlength=20).tolist(), exact.tolist())
