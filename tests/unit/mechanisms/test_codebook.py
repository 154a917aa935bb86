"""Codebook response and its unfolding: the code, the law and the maximum."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from flower_ldp.mechanisms.codebook import CodebookResponse, maximum_likelihood
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


def log_likelihood(counts: list[int], epsilon: float, shares: np.ndarray) -> float:
    """Return the log-likelihood of shares, up to a constant."""
    noise = 1.0 / math.expm1(epsilon)
    law = (noise + shares) / (1.0 + noise * len(shares))
    return math.fsum(np.array(counts) * np.log(law))


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


def test_the_maximum_may_leave_a_code_out() -> None:
    assert maximum_likelihood([100, 100, 100, 700], 1.0)[0] == 0.0


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
