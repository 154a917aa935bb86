"""RRWithPrior: epsilon for the label given the prior, the optimum that is claimed, the domains."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from flower_ldp.mechanisms import KaryResponse, RRWithPrior
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.extras import extra

mpmath = extra("mpmath")
optimize = extra("scipy.optimize")

PRIORS = [
    (0.6, 0.3, 0.1, 0.0),
    (0.0, 0.0, 0.0, 0.0),
    (0.25, 0.25, 0.25, 0.25),
    (0.0, 1.0, 0.0, 0.0),
    (1e-320, 0.0, 1e-320, 0.0),
    (1e308, 1e308, 1e308, 3.0),
    (0.1, 0.2, 0.3, 0.4),
]
EPSILONS = [0.01, 0.5, 1.0, 3.0, 20.0, 100.0]


def law(mechanism: RRWithPrior, prior: tuple[float, ...]) -> NDArray[np.float64]:
    """Return log P(report j | value i) in row i and column j."""
    k = range(mechanism.categories)
    return np.array([[mechanism.log_prob(j, i, prior) for j in k] for i in k])


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_epsilon_for_the_value_given_the_prior(epsilon: float, prior: tuple[float, ...]) -> None:
    mechanism = RRWithPrior(epsilon, 4)
    found = law(mechanism, prior)
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1.0, rtol=1e-12)
    possible = np.isfinite(found).any(axis=0)
    assert np.isfinite(found[:, possible]).all(), "a report must be possible under every value"
    losses = found[:, possible].max(axis=0) - found[:, possible].min(axis=0)
    assert losses.max() <= epsilon + 1e-12
    expected = epsilon if mechanism.sizes(prior) > 1 else 0.0
    assert losses.max() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("categories", [1, 2, 3, 50])
@pytest.mark.parametrize("epsilon", [5e-324, 1e-60, 1e-38, 1.0, 100.0])
def test_every_ratio_of_the_integer_weights_is_safe(epsilon: float, categories: int) -> None:
    # For j of the values: under itself, under another member, under a value outside.
    mechanism, whole = RRWithPrior(epsilon, 50), 1 << 256
    truth = mechanism._truth_weights[categories - 1]
    own, other, outside = whole - truth + categories * truth, whole - truth, whole
    with mpmath.workdps(800):
        power = mpmath.exp(mpmath.mpf(repr(epsilon)))
        if categories > 1:
            assert other <= outside <= own <= other * power
        else:  # the report is constant: the coin is tossed and decides nothing
            assert own == outside


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_likelihood_is_the_law(epsilon: float, prior: tuple[float, ...]) -> None:
    mechanism = RRWithPrior(epsilon, 4)
    expected = np.exp(law(mechanism, prior)).T
    one = mechanism.likelihood(np.arange(4), prior)
    np.testing.assert_allclose(one, expected, rtol=1e-12)
    each = mechanism.likelihood(np.arange(4).reshape(2, 2), np.tile(prior, (2, 2, 1)))
    np.testing.assert_allclose(each.reshape(4, 4), expected, rtol=1e-12)


def test_the_penalty_counts_from_one() -> None:
    # w = 0.6, 0.6579, 0.5761; counting from 0 would choose 1 (0.6 e/(e - 1) is 0.949).
    mechanism = RRWithPrior(1.0, 3)
    assert mechanism.sizes([0.6, 0.3, 0.1]) == 2
    assert mechanism.log_prob(1, 1, [0.6, 0.3, 0.1]) == pytest.approx(
        math.log(math.e / (math.e + 1))
    )


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
        ours = np.exp(law(RRWithPrior(epsilon, k), tuple(prior))).diagonal() @ prior
        assert ours == pytest.approx(-best.fun, abs=1e-8)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_prior_of_zeros_is_uniform_and_that_is_kary_response(epsilon: float) -> None:
    mechanism, kary = RRWithPrior(epsilon, 5), KaryResponse(epsilon, 5)
    for prior in (np.zeros(5), np.full(5, 0.2), np.ones(5)):
        assert mechanism.sizes(prior) == 5
        for report, value in itertools.product(range(5), repeat=2):
            assert mechanism.log_prob(report, value, prior) == kary.log_prob(report, value)


def test_a_sure_prior_gives_a_constant_report() -> None:
    mechanism = RRWithPrior(1.0, 3)
    reports = mechanism.randomize_array([0, 1, 2], RandomSource.seeded(1), [0.0, 0.0, 4.0])
    assert reports.tolist() == [2, 2, 2]


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


def test_one_prior_for_each_gives_what_the_same_prior_for_all_gives() -> None:
    mechanism, prior = RRWithPrior(1.0, 3), [0.6, 0.3, 0.1]
    values = np.arange(40_000) % 3
    all_alike = mechanism.randomize_array(values, RandomSource.seeded(3), prior)
    each = mechanism.randomize_array(values, RandomSource.seeded(3), np.tile(prior, (40_000, 1)))
    np.testing.assert_array_equal(all_alike, each)


def test_cost_is_epsilon_per_unit_of_the_value() -> None:
    assert RRWithPrior(0.5, 3).events() == (PrivacyEvent("rr_with_prior", 0.5),)
    named = RRWithPrior(0.5, 3, name="stage2", unit=Unit.LABEL)
    assert named.events() == (PrivacyEvent("stage2", 0.5, unit=Unit.LABEL),)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 100.1, math.inf, math.nan])
def test_epsilon_domain(epsilon: float) -> None:
    with pytest.raises(ValueError, match=r"epsilon must be in \(0, 100\]"):
        RRWithPrior(epsilon, 2)


@pytest.mark.parametrize("categories", [1, 2**20 + 1, 2**31, 2.0])
def test_categories_domain(categories: object) -> None:
    with pytest.raises(ValueError, match="categories must be"):
        RRWithPrior(1.0, categories)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "prior",
    [
        [0.5, 0.5],
        [[0.2, 0.3, 0.5]],
        [0.5, 0.5, -1e-9],
        [0.5, math.nan, 0.5],
        [0.5, math.inf, 0.5],
        ["a", "b", "c"],
        None,
    ],
)
def test_priors_that_are_none_are_refused(prior: object) -> None:
    mechanism, rng = RRWithPrior(1.0, 3), RandomSource.seeded(0)
    with pytest.raises(ValueError, match="prior must"):
        mechanism.randomize(1, rng, prior)  # type: ignore[arg-type]
    if np.ndim(prior) < 2:  # of priors for each value, the values are what is judged
        with pytest.raises(ValueError, match="prior must"):
            mechanism.randomize_array([0, 1], rng, prior)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prior must"):
        mechanism.log_prob(0, 0, prior)  # type: ignore[arg-type]
    assert rng.random_bytes(8) == RandomSource.seeded(0).random_bytes(8)


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
