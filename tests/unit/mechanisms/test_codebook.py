"""Codebook response and its unfolding: the code, the law, the maximum and the way there."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from flower_ldp.mechanisms.codebook import (
    CodebookResponse,
    em_estimate,
    log_likelihood,
    maximum_likelihood,
)
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent, compose_directly
from tests.statistical.follows import assert_follows

CODES = np.array([[0.9, 0.05, 0.05], [0.45, 0.3, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
ROWS = np.random.default_rng(0).dirichlet(np.full(3, 0.5), 2000)
COUNTS = [[500, 30, 20, 1], [0, 0, 7, 0], [1, 1, 1, 1], [3, 0, 0, 900], [40, 41, 42, 300]]
EPSILONS = [0.1, 1.0, 4.0, 20.0]


def test_the_code_is_the_nearest_of_the_rows_class() -> None:
    codes = CodebookResponse(CODES, 1.0).encode(ROWS)
    for row, code in zip(ROWS, codes, strict=True):
        same = [j for j in range(4) if CODES[j].argmax() == row.argmax()]
        assert code == min(same, key=lambda j: float(np.linalg.norm(CODES[j] - row)))


def test_a_class_without_code_falls_to_the_nearest_of_all() -> None:
    codes = CodebookResponse(CODES[:3], 1.0).encode(np.array([[0.0, 0.3, 0.7], [0.4, 0.0, 0.6]]))
    assert codes.tolist() == [1, 1]


def test_encoding_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = CodebookResponse(CODES, 1.0)
    whole = mechanism.encode(ROWS)
    monkeypatch.setattr("flower_ldp.mechanisms.codebook._PAIRS", 28)
    np.testing.assert_array_equal(mechanism.encode(ROWS), whole)


def test_several_rows_cost_epsilon_each_and_exactly() -> None:
    mechanism = CodebookResponse(CODES, 1.5, rows=2)
    assert mechanism.events() == (PrivacyEvent("codebook_response", 1.5, count=2),)
    (spent,) = compose_directly(mechanism.events()).values()
    values = [CODES[list(pair)] for pair in itertools.product(range(4), repeat=2)]
    reports = [np.array(pair) for pair in itertools.product(range(4), repeat=2)]
    law = [[mechanism.log_prob(report, value) for report in reports] for value in values]
    np.testing.assert_allclose(np.exp(law).sum(axis=1), 1.0, rtol=1e-12)
    assert np.ptp(law, axis=0).max() == pytest.approx(spent.epsilon, abs=1e-12)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("counts", COUNTS)
def test_no_shares_are_likelier_than_the_closed_form(counts: list[int], epsilon: float) -> None:
    best = maximum_likelihood(counts, epsilon)
    assert (best >= 0).all()
    assert best.sum() == pytest.approx(1.0, abs=1e-12)
    top = log_likelihood(counts, epsilon, best)
    rng = np.random.default_rng(4)
    for other in rng.dirichlet(np.full(4, 0.5), 500):
        mixed = 0.99 * best + 0.01 * other
        assert log_likelihood(counts, epsilon, other) <= top + 1e-9
        assert log_likelihood(counts, epsilon, mixed) <= top + 1e-9


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("counts", COUNTS)
def test_every_step_climbs_as_fast_as_the_bound(counts: list[int], epsilon: float) -> None:
    prior = np.array([0.4, 0.3, 0.2, 0.1])
    best = maximum_likelihood(counts, epsilon)
    top = log_likelihood(counts, epsilon, best)
    used = best > 0
    divergence = float((best[used] * np.log(best[used] / prior[used])).sum())
    before = log_likelihood(counts, epsilon, prior)
    for step in range(1, 60):
        shares = em_estimate(counts, epsilon, prior, iterations=step, tolerance=0.0)
        now = log_likelihood(counts, epsilon, shares)
        assert now >= before - 1e-9 * abs(before)
        assert top - now <= sum(counts) * divergence / step + 1e-9
        before = now


def test_expectation_maximization_is_geometric_near_an_inner_maximum() -> None:
    counts, epsilon = np.array([400, 300, 250, 350]), 1.5
    best = maximum_likelihood(counts, epsilon)
    assert (best > 0).all()
    truth = math.expm1(epsilon) / (math.exp(epsilon) + 3)
    response = (1 - truth) / 4 + truth * best
    factor = 1 - truth * (truth * best / response).min()
    prior = [0.7, 0.1, 0.1, 0.1]
    after = [em_estimate(counts, epsilon, prior, iterations=n, tolerance=0.0) for n in (60, 61)]
    first, second = (np.abs(found - best).max() for found in after)
    assert 1e-12 < second <= factor * first * 1.01


def test_few_steps_stay_near_the_prior_and_the_maximum_does_not() -> None:
    prior, counts = np.array([0.97, 0.01, 0.01, 0.01]), [100, 100, 100, 700]
    early = em_estimate(counts, 1.0, prior, iterations=1)
    assert early[0] > 0.5
    assert maximum_likelihood(counts, 1.0)[0] == 0.0


def test_equality_and_hash_are_by_content() -> None:
    first, second = CodebookResponse(CODES, 1.0), CodebookResponse(CODES.copy(), 1.0)
    assert first == second
    assert hash(first) == hash(second)
    assert first != CodebookResponse(CODES, 2.0)
    assert first != CodebookResponse(CODES[::-1], 1.0)


def test_the_codebook_is_kept_apart() -> None:
    codes = CODES.copy()
    mechanism = CodebookResponse(codes, 1.0)
    codes[0] = codes[2]
    np.testing.assert_array_equal(mechanism.codebook, CODES)
    with pytest.raises(ValueError, match="read-only"):
        mechanism.codebook[0] = 0.0


def test_reports_follow_the_law_and_shares_are_found_again() -> None:
    true = np.array([0.5, 0.3, 0.15, 0.05])
    mechanism = CodebookResponse(CODES, 2.0, rows=20_000)
    rows = CODES[np.repeat(np.arange(4), (true * 20_000).astype(int))]
    reports = mechanism.randomize(rows, RandomSource.seeded(5))
    one = CodebookResponse(CODES, 2.0)
    law = [[one.log_prob([number], code[None]) for number in range(4)] for code in CODES]
    assert_follows(mechanism.count(reports).tolist(), (true @ np.exp(law)).tolist())
    # the unbiased estimate's standard deviation is 0.007 at most
    assert np.abs(mechanism.estimate(reports) - true).max() < 0.04
