"""K, h, v_th and the law of v against exact arithmetic, and how far reports point."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from flower_ldp.mechanisms.random import RandomSource, exp_lower
from flower_ldp.mechanisms.signds import SignDS, sum_of_signs
from flower_ldp.mechanisms.signds_size import (
    LEAST_FRACTION,
    MAX_DIMENSION,
    REPORTS_PER_WEIGHT,
    SelectionLaw,
    best_sizes,
    best_threshold,
    largest_dim_out,
    mean_of_top,
    worths,
)
from flower_ldp.privacy import as_fraction
from tests.extras import extra
from tests.fixtures import parsed, signds_proposal

mpmath = extra("mpmath")

DIGITS = 150
pytestmark = pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.SmallTopSetWarning")


def exact_means(d: int, top: int, h: int, epsilon: float) -> list[mpmath.mpf]:
    """E_t for every t from 0 to h, from the definition, to 150 digits."""
    counts = [math.comb(top, v) * math.comb(d - top, h - v) for v in range(h + 1)]
    total, moment = sum(counts), sum(v * c for v, c in enumerate(counts))
    above, above_v = total, moment
    means = []
    with mpmath.workdps(DIGITS):
        boost = mpmath.exp(mpmath.mpf(repr(epsilon)))
        for t in range(h + 1):
            weight = (total - above) + boost * above
            means.append(((moment - above_v) + boost * above_v) / weight)
            above, above_v = above - counts[t], above_v - t * counts[t]
    return means


def exact_threshold(means: list[mpmath.mpf]) -> int:
    """The first t with E_t <= t, and a check that it maximizes E_t."""
    with mpmath.workdps(DIGITS):
        # E_t = t happens exactly, where no v from t on is feasible: one part in 1e100 decides
        slack = mpmath.mpf(10) ** -100
        t = next(t for t, mean in enumerate(means) if mean <= t + slack)
        assert means[t] >= max(means) - slack
    return t


def reaches(means: list[mpmath.mpf], ratio: float, h: int) -> bool:
    """Whether the largest mean is at least ratio * h."""
    with mpmath.workdps(DIGITS):
        slack = mpmath.mpf(10) ** -100
        return bool(max(means) >= mpmath.mpf(repr(ratio)) * h - slack)


SMALL = [
    (d, top, h)
    for d in (1, 2, 3, 5, 8, 13, 21)
    for top in sorted({1, 2, d // 2, d - 1, d} & set(range(1, d + 1)))
    for h in range(1, d + 1)
]


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 3.0, 8.0, 100.0])
def test_threshold_is_the_exact_maximizer_for_every_small_case(epsilon: float) -> None:
    for d, top, h in SMALL:
        means = exact_means(d, top, h, epsilon)
        assert best_threshold(d, top, h, epsilon) == exact_threshold(means), (d, top, h)


@pytest.mark.parametrize(
    ("d", "k"),
    [(50, 0.25), (1_000, 0.05), (66_404, 0.01), (66_404, 0.2), (10**9, 0.2), (MAX_DIMENSION, 0.25)],
)
@pytest.mark.parametrize("epsilon", [0.1, 2.0, 30.0])
@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.0])
def test_dim_out_is_the_largest_that_the_exact_rule_admits(
    d: int, k: float, epsilon: float, ratio: float
) -> None:
    top = max(1, math.floor(as_fraction(k) * d))
    h, means = 0, exact_means(d, top, 1, epsilon)
    while h < d and reaches(more := exact_means(d, top, h + 1, epsilon), ratio, h + 1):
        h, means = h + 1, more
    plan = SignDS(epsilon, k, ratio).plan(d, quiet=True)
    assert largest_dim_out(d, top, epsilon, ratio) == plan.dim_out == max(h, 1)
    assert plan.threshold == exact_threshold(means)
    assert plan.expected_inside == pytest.approx(float(max(means)), rel=1e-12)


@pytest.mark.parametrize(
    ("d", "k", "ratio"),
    [(66_404, 5, 0.6), (10**9, 5, 0.6), (10**9, 4, 0.5), (MAX_DIMENSION, 5, 0.6)],
)
def test_the_largest_epsilon_agrees_with_exact_integers(d: int, k: int, ratio: float) -> None:
    top = d // k
    h = largest_dim_out(d, top, 100.0, ratio)
    for size, admitted in ((h, True), (h + 1, False)):
        assert reaches(exact_means(d, top, size, 100.0), ratio, size) is admitted
    assert best_threshold(d, top, h, 100.0) == exact_threshold(exact_means(d, top, h, 100.0))


@pytest.mark.parametrize(
    "case", [(7, 3, 5), (6, 6, 4), (9, 1, 8), (12, 4, 6), (5, 2, 5), (1, 1, 1)]
)
@pytest.mark.parametrize("epsilon", [0.25, 4.0, 100.0])
def test_law_is_the_definition(case: tuple[int, int, int], epsilon: float) -> None:
    d, top, h = case
    for threshold in range(h + 2):
        law = SelectionLaw.of(d, top, h, threshold, epsilon)
        boost = Fraction(exp_lower(epsilon), 1 << 128)
        counts = [math.comb(top, v) * math.comb(d - top, h - v) for v in range(h + 1)]
        weights = [n * (boost if v >= threshold else 1) for v, n in enumerate(counts)]
        found = [law.probability(v) for v in range(-1, h + 2)]
        assert found == [0, *(Fraction(weight) / sum(weights) for weight in weights), 0]
        expected = sum(v * w for v, w in enumerate(weights)) / sum(weights)
        assert law.mean() == pytest.approx(float(expected), rel=1e-15)


def test_law_reaches_tails_that_doubles_cannot() -> None:
    law = SignDS(100.0, 0.2).plan(66_404).law
    assert 0 < law.probability(0) < Fraction(1, 2**60)
    assert sum(law.probability(v) for v in range(239)) == 1


def test_sampler_draws_within_the_support() -> None:
    law = SelectionLaw.of(9, 3, 8, 3, 1.0)  # at least two of three must be reported
    rng = RandomSource.seeded(5)
    assert {law.sample(rng) for _ in range(200)} == {2, 3}


def test_top_size_reads_k_as_the_decimal_it_prints_as() -> None:
    for k, d, top in ((0.15, 20, 3), (0.2, 10**9, 2 * 10**8), (0.25, 3, 1), (0.1, 70, 7)):
        assert SignDS(1.0, k).plan(d).top_size == top


def plain_worth(dimension: int, top_size: int, dim_out: int, epsilon: float) -> float:
    """Return c(K, h) with the largest mean of v over all thresholds, from exact binomials."""
    best, q = max(exact_means(dimension, top_size, dim_out, epsilon)), top_size / dimension
    with mpmath.workdps(DIGITS):  # of a small epsilon nearly all of the share is q
        contrast = float(best / dim_out - mpmath.mpf(top_size) / dimension) / (1 - q)
    return math.sqrt(dim_out) * contrast * mean_of_top(q)


def plain_cosine(dimension: int, top_size: int, dim_out: int, epsilon: float, nu: float) -> float:
    """Return the cosine of nu d reports of one update with it, from the worth of one."""
    c = plain_worth(dimension, top_size, dim_out, epsilon)
    q = top_size / dimension
    limit = math.sqrt(2 * q) * mean_of_top(q)
    return math.sqrt(nu * c**2 / (1 + nu * c**2 / limit**2))


@pytest.mark.parametrize("fraction", [0.001, 0.05, 0.2, 0.5])
def test_mean_of_the_top_is_that_of_normal_entries(fraction: float) -> None:
    entries = np.sort(np.random.default_rng(0).standard_normal(1_000_000))
    largest = entries[-round(fraction * len(entries)) :]
    assert mean_of_top(fraction) == pytest.approx(largest.mean(), rel=0.02)


@pytest.mark.parametrize("epsilon", [0.1, 2.0, 8.0, 40.0])
@pytest.mark.parametrize(("dimension", "top_size"), [(20, 1), (60, 14), (200, 11)])
def test_worth_is_its_definition(dimension: int, top_size: int, epsilon: float) -> None:
    sizes = [1, 2, 3, 7, 15]
    expected = [plain_worth(dimension, top_size, h, epsilon) for h in sizes]
    found = worths(dimension, top_size, epsilon, np.array(sizes))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    for h, value in zip(sizes, expected, strict=True):
        plan = SignDS(epsilon, (top_size + 0.5) / dimension, dim_out=h).plan(dimension)
        assert (plan.top_size, plan.worth) == (top_size, pytest.approx(value, rel=1e-9))
        cosine = plain_cosine(dimension, top_size, h, epsilon, 100 / dimension)
        assert plan.cosine_of_sum(100) == pytest.approx(cosine, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "k", "dim_out"), [(4, 0.06, 1), (8, 0.02, 1), (8, 0.2, 9)])
def test_a_normal_updates_reports_point_as_far(epsilon: float, k: float, dim_out: int) -> None:
    dimension, draws = 500, 1_000
    update = np.random.default_rng(1).standard_normal(dimension)
    update = (update - update.mean()) / update.std()
    mechanism, rng = SignDS(epsilon, k, dim_out=dim_out), RandomSource.seeded(2)
    plan = mechanism.plan(dimension)
    reports = [mechanism.randomize(update, rng) for _ in range(draws)]
    along = [one.sign * update[one.indices].sum() / math.sqrt(dim_out) for one in reports]
    # The update is one sample of normal entries; 6 standard errors are a chance of 2e-9.
    slack = 6 * np.std(along) / math.sqrt(draws) + 0.05 * plan.worth
    assert np.mean(along) == pytest.approx(plan.worth, abs=slack)
    cosines = []
    for start in range(0, draws, 100):
        total = sum_of_signs(reports[start : start + 100], dimension)
        cosines.append(total @ update / np.linalg.norm(total) / np.linalg.norm(update))
    # One sum deviates by about 1 / sqrt(d).
    slack = 6 / math.sqrt(len(cosines) * dimension) + 0.05
    assert np.mean(cosines) == pytest.approx(plan.cosine_of_sum(100), abs=slack)


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


@pytest.mark.parametrize("dimension", [1, 2, 5, 8, 9, 100])
@pytest.mark.parametrize("epsilon", [5e-324, 1.0, 100.0])
def test_a_given_size_is_kept_though_it_is_worth_nothing(dimension: int, epsilon: float) -> None:
    for dim_out in {1, max(1, dimension - 1), dimension}:
        open_ = SignDS(epsilon, dim_out=dim_out)
        plan = open_.plan(dimension)
        assert plan.dim_out == dim_out
        assert open_.sized(dimension).plan(dimension) == plan
        given = SignDS(epsilon, 0.2, dim_out=dim_out)
        assert given.sized(dimension) == given
    plan = SignDS(8.0, dim_out=9).plan(66_404)
    rivals = (SignDS(8.0, k, dim_out=9).plan(66_404).worth for k in (0.05, 0.1, 0.2, 0.25))
    assert plan.worth > 0.999 * max(rivals)


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
