"""Shipped mechanisms are not refuted, planted broken ones are; fixed seeds.

A true claim is refuted with probability 1e-6 a test at most: that is the audit's own theorem,
at this confidence. A broken one escapes with probability 1e-6 at most where the power is
computed exactly, as it is for the subtlest of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flower_ldp.audit import (
    BUILDERS,
    AuditResult,
    Case,
    Settings,
    audit,
    audit_case,
)
from flower_ldp.audit.auditing import of_updates
from flower_ldp.mechanisms import GaussianMeans, JointCounts, RandomSource, SignDS
from flower_ldp.mechanisms.signds_round import SignDSRound
from tests.audit_power import power
from tests.broken import (
    argmax_of_noisy_label,
    argmax_probabilities,
    laplace_with_sensitivity_1,
    one_sign_for_equals,
    sign_of_the_update,
    signds_of_a_length,
    signds_with_naive_ties,
    signds_with_sign,
    with_constant_seed,
    with_seed_kept_for,
)

CONFIDENCE = 1 - 1e-6
#: Draws that refute, but for far less than 1e-6, a claim of 1 where an event is nearly certain
#: under one input and nearly impossible under the other.
TELLING = 400


def sources_seeded_from(seed: int) -> Callable[[], RandomSource]:
    seeds = itertools.count(seed * 10**9)
    return lambda: RandomSource.seeded(next(seeds))


@pytest.mark.parametrize(
    ("name", "epsilon", "draws", "least"),
    [
        ("binary-response", 0.5, 100_000, 0.44),
        ("binary-response", 1.0, 100_000, 0.94),
        ("binary-response", 4.0, 100_000, 3.6),
        ("magrr", 0.5, 20_000, 0.35),
        ("magrr", 3.0, 20_000, 2.5),
        ("signds", 1.0, 1_200, 0.2),
        ("signds", 2.0, 1_200, 1.0),
        ("signds-magrr", 2.0, 1_200, 0.6),
        ("kary-response", 1.0, 100_000, 0.85),
        ("subset-selection", 1.0, 100_000, 0.85),
        ("rr-with-prior", 1.0, 100_000, 0.88),
        ("codebook-response", 1.0, 100_000, 0.8),
        ("laplace", 1.0, 50_000, 0.8),
        ("bounded-mean", 1.0, 3_000, 0.55),
        ("example-mean", 1.0, 1_500, 0.3),
        ("joint-counts", 2.0, 1_500, 0.1),
        ("gaussian", 2.0, 3_000, 0.4),
        ("gaussian-means", 2.0, 3_000, 0.4),
        ("unary-encoding", 1.0, 60_000, 0.7),
        ("unary-one-hot", 1.0, 60_000, 0.85),
        ("codebook-embedding", 1.0, 60_000, 0.8),
    ],
)
def test_shipped_mechanisms_are_not_refuted_and_the_bound_comes_near(
    name: str, epsilon: float, draws: int, least: float
) -> None:
    # Repeated noise is tried with the draws that refute it where nearly all noise differs. What
    # a larger claim needs grows like e^epsilon, and the draws of SignDS are dear: 2 is enough.
    case = replace(BUILDERS[name](Settings(epsilon)), differing=1.0)
    results = audit_case(
        case, draws, confidence=CONFIDENCE, sources=sources_seeded_from(int(10 * epsilon))
    )
    assert not any(result.refuted for result in results)
    assert results[0].lower_bound >= least


@pytest.mark.parametrize(("epsilon", "draws"), [(1.0, 1_000), (4.0, 4_000)])
def test_naive_ties_are_refuted_by_exact_zeros(epsilon: float, draws: int) -> None:
    mechanism = SignDS(epsilon, 0.2)
    draw = signds_with_naive_ties(mechanism)
    tried = of_updates(SignDSRound(mechanism), 1000).contrasts[:2]
    disjoint, zeros = (
        audit(
            draw,
            contrast.pair,
            contrast.statistic,
            epsilon,
            count,
            confidence=CONFIDENCE,
            sources=sources_seeded_from(1),
        )
        for contrast, count in zip(tried, (TELLING, draws), strict=True)
    )
    assert zeros.refuted
    # Without equal entries the naive rule is right: it is the zeros that give it away.
    assert not disjoint.refuted


def first_of(case: Case, draw: Callable[..., Any], seed: int, draws: int = TELLING) -> AuditResult:
    """Try a broken sampler by the first contrast alone, at the confidence of a whole case."""
    contrast = case.contrasts[0]
    return audit(
        draw,
        contrast.pair,
        contrast.statistic,
        case.epsilon,
        draws,
        confidence=1 - 1e-3 / case.checks,
        sources=sources_seeded_from(seed),
    )


def test_counts_with_noise_for_one_table_alone_are_refuted() -> None:
    """An example moves its counts in all tables."""
    case = BUILDERS["joint-counts"](Settings(1.0))
    short = JointCounts(6.0, (3,) * 6).randomize
    assert first_of(case, short, 3, 2_000).refuted


def test_means_with_noise_for_one_column_alone_are_refuted() -> None:
    """An example moves all columns: in L2 by the root of their number."""
    case = BUILDERS["gaussian-means"](Settings(1.0))
    one = GaussianMeans(1.0, 0.01, 1)
    short = GaussianMeans(1.0, 0.01, 1, [(0.0, 1.0)] * 3)
    object.__setattr__(short, "steps", one.steps)
    assert first_of(case, short.randomize, 3, 4_000).refuted


@pytest.mark.parametrize("name", ["signds", "signds-magrr"])
def test_a_sign_that_follows_the_update_is_refuted(name: str) -> None:
    # Dimensions alone do not show it: given the sign they follow their law.
    case = BUILDERS[name](Settings())
    broken = {
        "signds": signds_with_sign(SignDS(1.0, 0.2), sign_of_the_update),
        "signds-magrr": _with_the_sign_of_the_update(case.draw),
    }[name]
    assert first_of(case, broken, 8).refuted


def test_a_bit_that_shares_its_noise_with_the_sign_is_refuted() -> None:
    # The server sees the sign, and so whether the bit was turned round.
    case = BUILDERS["signds-magrr"](Settings())

    def draw(update: np.ndarray, rng: RandomSource) -> Any:
        report, _ = case.draw(update, rng)
        below = np.array_equal(update, case.contrasts[0].pair[0])
        return report, int(below) ^ int(report.sign < 0)

    assert first_of(case, draw, 11).refuted


def _with_the_sign_of_the_update(draw: Callable[..., Any]) -> Callable[..., Any]:
    def signed(update: np.ndarray, rng: RandomSource) -> Any:
        report = draw(update, rng)
        while report[0].sign != sign_of_the_update(update):
            report = draw(update, rng)
        return report

    return signed


def test_one_sign_for_an_update_of_equals_is_refuted_by_zeros_only() -> None:
    mechanism = SignDS(1.0, 0.2)
    case = replace(
        of_updates(SignDSRound(mechanism), 1000),
        draw=signds_with_sign(mechanism, one_sign_for_equals),
    )
    results = audit_case(replace(case, differing=1.0), 800, sources=sources_seeded_from(9))
    assert [result.check for result in results if result.refuted] == ["zeros only"]


def test_a_report_whose_length_is_the_datas_is_refuted() -> None:
    mechanism = SignDS(4.0, 0.2)
    found = first_of(
        of_updates(SignDSRound(mechanism), 1000), signds_of_a_length(mechanism), 10, 4 * TELLING
    )
    assert found.refuted  # a claim of 4 takes more draws, of which all tell


def of_many(case: Case, draws: int, seed: int, confidence: float) -> AuditResult:
    """Try a broken sampler by the first contrast alone, in batches."""
    contrast = case.contrasts[0]
    return audit(
        case.draw_many or case.draw,
        contrast.pair,
        contrast.statistic,
        case.epsilon,
        draws,
        confidence=confidence,
        batched=True,
        sources=sources_seeded_from(seed),
    )


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_laplace_with_sensitivity_1_is_refuted(epsilon: float) -> None:
    case = laplace_with_sensitivity_1(epsilon)
    result = of_many(case, case.draws, 2, CONFIDENCE)
    assert result.refuted
    assert 1.7 * epsilon <= result.lower_bound <= 2.0 * epsilon


@pytest.mark.parametrize(
    ("epsilon", "truth", "draws"),
    [(0.5, 0.566, 800_000), (1.0, 1.137, 200_000), (2.0, 2.193, 200_000)],
)
def test_argmax_of_a_noisy_label_is_refuted(epsilon: float, truth: float, draws: int) -> None:
    result = of_many(argmax_of_noisy_label(epsilon), draws, 3, 0.9995)
    assert result.refuted
    assert result.lower_bound <= truth
    p, q = argmax_probabilities(epsilon)
    assert np.log(p / q) == pytest.approx(truth, abs=5e-4)
    assert power(p, q, epsilon, draws // 2, confidence=0.9995) > 1 - 1e-6


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("name", "epsilon"),
    [("binary-response", 0.3), ("binary-response", 4.0), ("magrr", 1.0), ("signds", 0.3)],
)
def test_a_constant_seed_is_refuted(name: str, epsilon: float, seed: int) -> None:
    case = BUILDERS[name](Settings(epsilon))
    broken = replace(case, draw=with_constant_seed(case.draw, seed), draw_many=None)
    if name == "signds":
        # One report suffices or not, as the seed falls; three releases always do, and reports
        # of two updates are never alike.
        broken = replace(broken, contrasts=(), differing=1.0)
    draws = 2_000 if epsilon == 4.0 else 1_000
    results = audit_case(broken, draws, sources=sources_seeded_from(4))
    assert all(result.refuted for result in results)


@pytest.mark.parametrize(
    ("name", "epsilon"),
    [
        ("binary-response", 0.3),
        ("magrr", 4.0),
        ("signds", 0.3),
        ("signds", 2.0),
        ("signds-magrr", 1.0),
        ("laplace", 1.0),
        ("codebook-response", 1.0),
    ],
)
def test_a_seed_kept_for_three_releases_is_refuted_by_the_triples(
    name: str, epsilon: float
) -> None:
    case = BUILDERS[name](Settings(epsilon))
    kept = with_seed_kept_for(case.draw, 3)
    broken = replace(case, draw=kept, draw_many=None, contrasts=())
    if name.startswith("signds"):  # nearly all noise tells the pair apart
        broken = replace(broken, differing=1.0)
    # And so it does for MagRR at a claim of 4, which takes 1,200 then.
    draws = 1_500 if epsilon == 4.0 else 1_000
    (reuse,) = audit_case(broken, draws, sources=sources_seeded_from(5))
    assert reuse.refuted


def test_a_claim_with_delta_is_bounded_with_its_delta() -> None:
    # Tells all with probability 0.1, else nothing: (0, 0.1) holds, and (1, 0.05) does not.
    def draw(value: int, count: int, rng: RandomSource) -> np.ndarray:
        return np.where(rng.integers(10, count) == 0, value, -1)

    def results(delta: float) -> bool:
        sources = sources_seeded_from(6)
        return audit(
            draw, (0, 1), np.asarray, 1.0, 20_000, delta=delta, batched=True, sources=sources
        ).refuted

    assert [results(delta) for delta in (0.0, 0.05, 0.1)] == [True, True, False]
