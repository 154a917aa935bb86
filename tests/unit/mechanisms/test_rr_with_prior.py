"""RRWithPrior: the optimum that is claimed, and priors of their own for many values."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest

from flower_ldp.mechanisms import KaryResponse, RRWithPrior
from flower_ldp.mechanisms.random import RandomSource
from tests.extras import extra

optimize = extra("scipy.optimize")


def test_the_penalty_counts_from_one() -> None:
    # w = 0.6, 0.6579, 0.5761; counting from 0 would choose 1 (0.6 e/(e - 1) is 0.949).
    mechanism = RRWithPrior(1.0, 3)
    assert mechanism.sizes([0.6, 0.3, 0.1]) == 2
    kept = math.log(math.e / (math.e + 1))
    assert mechanism.log_prob(1, 1, [0.6, 0.3, 0.1]) == pytest.approx(kept)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.5])
def test_no_other_private_report_is_true_more_often(epsilon: float) -> None:
    # The best epsilon-LDP matrix P(report | value) by linear programming (Theorem 3).
    k, rng = 4, np.random.default_rng(1)
    for prior in rng.dirichlet(np.full(k, 0.7), size=12):
        bounds = []
        for report, value, other in itertools.product(range(k), repeat=3):
            if value != other:
                row = np.zeros((k, k))
                row[value, report], row[other, report] = 1.0, -math.exp(epsilon)
                bounds.append(row.ravel())
        best = optimize.linprog(
            -np.diag(prior).ravel(),
            A_ub=np.array(bounds),
            b_ub=np.zeros(len(bounds)),
            A_eq=np.kron(np.eye(k), np.ones(k)),
            b_eq=np.ones(k),
        )
        ours = RRWithPrior(epsilon, k).likelihood(range(k), prior).diagonal() @ prior
        assert ours == pytest.approx(-best.fun, abs=1e-8)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 3.0, 100.0])
def test_a_prior_of_zeros_is_uniform_and_that_is_kary_response(epsilon: float) -> None:
    mechanism, kary = RRWithPrior(epsilon, 5), KaryResponse(epsilon, 5)
    for prior in (np.zeros(5), np.full(5, 0.2), np.ones(5)):
        assert mechanism.sizes(prior) == 5
        for report, value in itertools.product(range(5), repeat=2):
            assert mechanism.log_prob(report, value, prior) == kary.log_prob(report, value)


def test_a_sure_prior_gives_a_constant_report_and_one_for_each_is_one_for_all() -> None:
    mechanism = RRWithPrior(1.0, 3)
    prior = [0.0, 0.0, 4.0]
    reports = mechanism.randomize_array([0, 1, 2], RandomSource.seeded(1), prior)
    assert reports.tolist() == [2, 2, 2]
    # The same prior given for each value is the same law, draw by draw.
    rng, values, prior = RandomSource.seeded(3), np.arange(40_000) % 3, [0.6, 0.3, 0.1]
    alike = mechanism.randomize_array(values, RandomSource.seeded(3), prior)
    each = mechanism.randomize_array(values, rng, np.tile(prior, (40_000, 1)))
    np.testing.assert_array_equal(alike, each)


def test_each_value_has_its_own_prior_across_blocks() -> None:
    mechanism, rng = RRWithPrior(0.5, 6), np.random.default_rng(2)
    priors = rng.dirichlet(np.full(6, 0.2), size=(20_000, 2))
    values = rng.integers(0, 6, size=(20_000, 2))
    reports = mechanism.randomize_array(values, RandomSource.seeded(2), priors)
    assert reports.shape == values.shape
    assert reports.dtype == np.int64
    sizes = mechanism.sizes(priors)
    assert len(np.unique(sizes)) > 3
    rank = np.argsort(np.argsort(-priors, axis=-1), axis=-1)
    of_report = np.take_along_axis(rank, reports[..., np.newaxis], axis=-1)[..., 0]
    assert (of_report < sizes).all()
    # Each pair of a size and a rank of the value follows the law: the share that is kept.
    of_value = np.take_along_axis(rank, values[..., np.newaxis], axis=-1)[..., 0]
    inside = of_value < sizes
    for size in range(2, 6):
        chosen = inside & (sizes == size)
        n, keep = chosen.sum(), math.exp(0.5) / (math.exp(0.5) + size - 1)
        kept = (reports == values)[chosen].mean()
        assert abs(kept - keep) < 5.2 * math.sqrt(keep * (1 - keep) / n)  # 1e-6 in all


def test_many_categories_take_no_table_of_values_by_categories() -> None:
    categories, n = 20_000, 16_384  # a table of truth values alone would have 328 MB
    mechanism = RRWithPrior(12.0, categories)
    prior = 1.0 / np.arange(1, categories + 1)
    values = np.arange(n) * 7 % categories
    tracemalloc.start()
    reports = mechanism.randomize_array(values, RandomSource.seeded(3), prior)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6
    assert (mechanism.likelihood(reports[:50], prior)[np.arange(50), values[:50]] > 0).all()
    each = np.broadcast_to(prior, (30, categories))
    assert mechanism.randomize_array(values[:30], RandomSource.seeded(4), each).shape == (30,)
