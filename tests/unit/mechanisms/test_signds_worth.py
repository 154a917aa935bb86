"""SignDS without k: the K and h whose reports point farthest, against plain definitions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from flower_ldp.mechanisms import RandomSource, SignDS
from flower_ldp.mechanisms.signds import sum_of_signs
from flower_ldp.mechanisms.signds_size import (
    LEAST_FRACTION,
    REPORTS_PER_WEIGHT,
    best_sizes,
    mean_of_top,
    worths,
)
from tests.fixtures import parsed, signds_proposal

pytestmark = pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.signds.SmallTopSetWarning")


def mean_of_normals(fraction: float) -> float:
    """Return the mean of the largest ``fraction`` of many normal entries, by their quantiles."""
    entries = np.sort(np.random.default_rng(0).standard_normal(1_000_000))
    return float(entries[-round(fraction * len(entries)) :].mean())


def plain_worth(dimension: int, top_size: int, dim_out: int, epsilon: float) -> float:
    """Return c(K, h) with the largest mean of v over all thresholds, from exact binomials."""
    rest = dimension - top_size
    counts = {
        v: math.comb(top_size, v) * math.comb(rest, dim_out - v)
        for v in range(max(0, dim_out - rest), min(dim_out, top_size) + 1)
    }
    power, best = Fraction(math.exp(epsilon)), Fraction(0)
    for threshold in range(dim_out + 1):
        weights = {v: n * (power if v >= threshold else 1) for v, n in counts.items()}
        best = max(best, sum(v * w for v, w in weights.items()) / sum(weights.values()))
    q = top_size / dimension
    mean = mean_of_top(q)
    return math.sqrt(dim_out) * (float(best) / dim_out - q) / (1 - q) * mean


@pytest.mark.parametrize("fraction", [0.001, 0.05, 0.2, 0.5])
def test_mean_of_the_top_is_that_of_normal_entries(fraction: float) -> None:
    assert mean_of_top(fraction) == pytest.approx(mean_of_normals(fraction), rel=0.02)


@pytest.mark.parametrize("epsilon", [0.1, 2.0, 8.0, 40.0])
@pytest.mark.parametrize(("dimension", "top_size"), [(20, 1), (60, 14), (200, 11)])
def test_worth_is_its_definition(dimension: int, top_size: int, epsilon: float) -> None:
    sizes = np.array([1, 2, 3, 7, 15])
    found = worths(dimension, top_size, epsilon, sizes)
    expected = [plain_worth(dimension, top_size, int(h), epsilon) for h in sizes]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    for h, value in zip(sizes.tolist(), expected, strict=True):
        plan = SignDS(epsilon, (top_size + 0.5) / dimension, dim_out=h).plan(dimension)
        assert (plan.top_size, plan.worth) == (top_size, pytest.approx(value, rel=1e-9))


@pytest.mark.parametrize(("epsilon", "k", "dim_out"), [(4.0, 0.06, 1), (8.0, 0.2, 9)])
def test_worth_is_how_far_reports_point_along_a_normal_update(
    epsilon: float, k: float, dim_out: int
) -> None:
    dimension, draws = 500, 1_000
    update = np.random.default_rng(1).standard_normal(dimension)
    update = (update - update.mean()) / update.std()
    mechanism, rng = SignDS(epsilon, k, dim_out=dim_out), RandomSource.seeded(2)
    along = np.empty(draws)
    for i in range(draws):
        report = mechanism.randomize(update, rng)
        along[i] = report.sign * update[report.indices].sum() / math.sqrt(dim_out)
    # The update is one sample of normal entries; 6 standard errors are a chance of 2e-9.
    slack = 6 * along.std() / math.sqrt(draws) + 0.05 * mechanism.plan(dimension).worth
    assert along.mean() == pytest.approx(mechanism.plan(dimension).worth, abs=slack)


def plain_cosine(dimension: int, top_size: int, dim_out: int, epsilon: float, nu: float) -> float:
    """Return the cosine of nu d reports of one update with it, from the worth of one."""
    c = plain_worth(dimension, top_size, dim_out, epsilon)
    q = top_size / dimension
    limit = math.sqrt(2 * q) * mean_of_top(q)
    return math.sqrt(nu * c**2 / (1 + nu * c**2 / limit**2))


@pytest.mark.parametrize(("epsilon", "k", "dim_out"), [(8.0, 0.02, 1), (8.0, 0.2, 9)])
def test_sums_of_reports_have_the_cosine_that_the_rule_maximizes(
    epsilon: float, k: float, dim_out: int
) -> None:
    dimension, clients, sums = 500, 100, 8
    update = np.random.default_rng(1).standard_normal(dimension)
    mechanism, rng = SignDS(epsilon, k, dim_out=dim_out), RandomSource.seeded(3)
    found = []
    for _ in range(sums):
        total = sum_of_signs((mechanism.randomize(update, rng) for _ in range(clients)), dimension)
        found.append(total @ update / np.linalg.norm(total) / np.linalg.norm(update))
    top_size = mechanism.plan(dimension).top_size
    expected = plain_cosine(dimension, top_size, dim_out, epsilon, clients / dimension)
    # One sum deviates by about 1 / sqrt(d); the update is one sample of normal entries.
    slack = 6 / math.sqrt(sums * dimension) + 0.05
    assert np.mean(found) == pytest.approx(expected, abs=slack)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0, 30.0])
@pytest.mark.parametrize("dimension", [8, 40, 130])
def test_the_chosen_sizes_are_the_best_there_are(dimension: int, epsilon: float) -> None:
    smallest, nu = max(1, math.ceil(LEAST_FRACTION * dimension)), REPORTS_PER_WEIGHT
    sizes = np.arange(1, dimension + 1)
    best = 0.0
    for top_size in range(smallest, dimension // 4 + 1):
        square = worths(dimension, top_size, epsilon, sizes) ** 2
        limit = 2.0 * top_size / dimension * mean_of_top(top_size / dimension) ** 2
        best = max(best, np.sqrt(square / (1.0 + nu * square / limit)).max())
    top_size, dim_out = best_sizes(dimension, epsilon)
    assert smallest <= top_size <= dimension // 4
    found = plain_cosine(dimension, top_size, dim_out, epsilon, nu) / math.sqrt(nu)
    # 48 sizes are tried, and of those that are alike to a millionth the smallest is taken.
    assert found >= best * (1 - 2e-3)


@pytest.mark.parametrize(
    ("dimension", "epsilon", "sizes"),
    [
        (5_994, 4.0, (413, 1)),
        (66_404, 1.0, (16_601, 1)),
        (66_404, 8.0, (4_107, 2)),
        (66_404, 30.0, (16_601, 38)),
        (66_404, 100.0, (16_601, 128)),
        (10**9, 8.0, (61_821_384, 2)),
        (2**32 - 1, 100.0, (1_073_741_823, 126)),
    ],
)
def test_reference_sizes(dimension: int, epsilon: float, sizes: tuple[int, int]) -> None:
    assert best_sizes(dimension, epsilon) == sizes


@pytest.mark.parametrize("dimension", [1, 2, 3, 4, 7, 8, 9, 50, 1_001, 61_706, 2**32 - 1])
@pytest.mark.parametrize("epsilon", [5e-324, 0.01, 8.0, 100.0])
def test_a_proposal_states_what_was_chosen(dimension: int, epsilon: float) -> None:
    open_ = SignDS(epsilon)
    sized = open_.sized(dimension)
    assert sized.k is not None
    assert sized.plan(dimension) == open_.plan(dimension)
    assert sized.sized(dimension) is sized
    sent = signds_proposal(sized).to_fields()
    assert parsed(sent).mechanism.selection.plan(dimension) == open_.plan(dimension)
    with pytest.raises(ValueError, match=r"a proposal states k: use selection.sized"):
        signds_proposal(open_).to_fields()


def test_a_given_size_of_report_is_kept_and_k_is_chosen_for_it() -> None:
    plan = SignDS(8.0, dim_out=9).plan(66_404)
    assert plan.dim_out == 9
    rivals = (SignDS(8.0, k, dim_out=9).plan(66_404).worth for k in (0.05, 0.1, 0.2, 0.25))
    assert plan.worth > 0.999 * max(rivals)
    assert SignDS(8.0, 0.2, dim_out=9).sized(66_404) == SignDS(8.0, 0.2, dim_out=9)


@pytest.mark.parametrize("dimension", [1, 2, 5, 8, 9, 100])
@pytest.mark.parametrize("epsilon", [5e-324, 1.0, 100.0])
def test_a_given_size_is_kept_though_it_is_worth_nothing(dimension: int, epsilon: float) -> None:
    for dim_out in {1, max(1, dimension - 1), dimension}:
        open_ = SignDS(epsilon, dim_out=dim_out)
        assert open_.plan(dimension).dim_out == dim_out
        assert open_.sized(dimension).plan(dimension) == open_.plan(dimension)


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 8.0, 30.0, 100.0])
def test_it_is_worth_more_than_the_published_rule(epsilon: float) -> None:
    assert SignDS(epsilon).plan(61_706).worth > SignDS(epsilon, 0.2).plan(61_706).worth


@pytest.mark.parametrize("dimension", [8, 50, 1_001, 61_706, 10**9])
def test_at_a_small_epsilon_the_sizes_are_those_of_the_limit(dimension: int) -> None:
    found = {best_sizes(dimension, epsilon) for epsilon in (5e-324, 1e-300, 1e-16, 1e-12, 1e-6)}
    assert len(found) == 1
    ((top_size, dim_out),) = found
    # There it is sqrt(h) times a slope in epsilon: few dimensions of a large top set.
    assert top_size >= 0.24 * dimension or dimension < 50
    assert dim_out == 2


@pytest.mark.parametrize("epsilon", [1e-30, 1e-17, 1e-12, 1e-6])
def test_the_signal_of_a_small_epsilon_is_not_lost_in_rounding(epsilon: float) -> None:
    # With h = 1: E[v] = q e^epsilon / (1 + q (e^epsilon - 1)), so E[v] - q is nearly
    # epsilon q (1 - q), and the contrast epsilon / d.
    dimension, top_size = 1_000, 200
    plan = SignDS(epsilon, 0.2, dim_out=1).plan(dimension)
    assert plan.contrast == pytest.approx(epsilon / dimension, rel=2e-6, abs=0)
    assert plan.worth == pytest.approx(epsilon * 0.2 * mean_of_top(0.2), rel=2e-6, abs=0)
    (found,) = worths(dimension, top_size, epsilon, np.array([1]))
    assert found == pytest.approx(plan.worth, rel=1e-7, abs=0)
