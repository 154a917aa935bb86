"""h, v_th and the law of v against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from flower_ldp.mechanisms.random import RandomSource, exp_lower
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.mechanisms.signds_size import (
    MAX_DIMENSION,
    SelectionLaw,
    best_threshold,
    largest_dim_out,
)
from flower_ldp.privacy import as_fraction
from tests.extras import extra

mpmath = extra("mpmath")

DIGITS = 150


def exact_means(d: int, top: int, h: int, epsilon: float) -> list[mpmath.mpf]:
    """E_t for every t from 0 to h, from the definition, to 150 digits."""
    counts = [
        math.comb(top, v) * math.comb(d - top, h - v) if h - v <= d - top else 0
        for v in range(h + 1)
    ]
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
@pytest.mark.parametrize("epsilon", [0.1, 2.0, 8.0, 30.0])
@pytest.mark.parametrize("ratio", [0.5, 0.6, 0.9, 1.0])
def test_dim_out_is_the_largest_that_the_exact_rule_admits(
    d: int, k: float, epsilon: float, ratio: float
) -> None:
    top = max(1, math.floor(as_fraction(k) * d))
    h = 0
    while h < d and reaches(exact_means(d, top, h + 1, epsilon), ratio, h + 1):
        h += 1
    assert largest_dim_out(d, top, epsilon, ratio) == max(h, 1)


@pytest.mark.parametrize(
    ("d", "k", "epsilon", "h", "threshold", "mean"),
    [
        (66_404, 0.2, 8.0, 9, 6, 5.683231),
        (66_404, 0.2, 100.0, 238, 143, 142.823330),
        (66_404, 0.01, 100.0, 43, 26, 25.962916),
        (10**9, 0.2, 100.0, 239, 144, 143.467677),
    ],
)
def test_reference_figures(
    d: int, k: float, epsilon: float, h: int, threshold: int, mean: float
) -> None:
    plan = SignDS(epsilon, k).plan(d)
    assert (plan.dim_out, plan.threshold) == (h, threshold)
    assert plan.expected_inside == pytest.approx(mean, abs=5e-7)


@pytest.mark.parametrize("d", [66_404, 10**9, MAX_DIMENSION])
def test_search_at_the_largest_epsilon_agrees_with_exact_integers(d: int) -> None:
    top = d // 5
    h = largest_dim_out(d, top, 100.0, 0.6)
    for size, admitted in ((h, True), (h + 1, False)):
        assert reaches(exact_means(d, top, size, 100.0), 0.6, size) is admitted
    assert best_threshold(d, top, h, 100.0) == exact_threshold(exact_means(d, top, h, 100.0))


def test_search_far_from_the_defaults_agrees_with_exact_integers() -> None:
    d, epsilon = 10**9, 100.0
    h = largest_dim_out(d, d // 4, epsilon, 0.5)
    assert h == 633
    law_mean = SelectionLaw.of(d, d // 4, h, best_threshold(d, d // 4, h, epsilon), epsilon).mean()
    assert law_mean >= 0.5 * h
    after = h + 1
    assert (
        SelectionLaw.of(d, d // 4, after, best_threshold(d, d // 4, after, epsilon), epsilon).mean()
        < 0.5 * after
    )


@pytest.mark.parametrize(
    "case", [(7, 3, 5), (6, 6, 4), (9, 1, 8), (12, 4, 6), (5, 2, 5), (1, 1, 1)]
)
@pytest.mark.parametrize("epsilon", [0.25, 4.0, 100.0])
def test_law_is_the_definition(case: tuple[int, int, int], epsilon: float) -> None:
    d, top, h = case
    for threshold in range(h + 2):
        law = SelectionLaw.of(d, top, h, threshold, epsilon)
        boost = Fraction(exp_lower(epsilon), 1 << 128)
        weights = {
            v: math.comb(top, v) * math.comb(d - top, h - v) * (boost if v >= threshold else 1)
            for v in range(h + 1)
            if h - v <= d - top
        }
        total = sum(weights.values())
        for v in range(-1, h + 2):
            assert law.probability(v) == Fraction(weights.get(v, 0)) / total
        expected = sum(v * w for v, w in weights.items()) / total
        assert law.mean() == pytest.approx(float(expected), rel=1e-15)


def test_law_reaches_tails_that_doubles_cannot() -> None:
    law = SignDS(100.0, 0.2).plan(66_404).law
    assert 0 < law.probability(0) < Fraction(1, 2**60)
    assert sum(law.probability(v) for v in range(239)) == 1


def test_sampler_draws_within_the_support() -> None:
    law = SelectionLaw.of(9, 3, 8, 3, 1.0)  # at least two of three must be reported
    rng = RandomSource.seeded(5)
    assert {law.sample(rng) for _ in range(200)} == {2, 3}


@pytest.mark.parametrize(
    ("k", "d", "top"), [(0.15, 20, 3), (0.2, 10**9, 2 * 10**8), (0.25, 3, 1), (0.1, 70, 7)]
)
@pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.SmallTopSetWarning")
def test_top_size_reads_k_as_the_decimal_it_prints_as(k: float, d: int, top: int) -> None:
    assert SignDS(1.0, k).plan(d).top_size == top
