"""Codebook embeddings: the code, the price of a record, the estimator, what is refused."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from flower_ldp.mechanisms import CodebookEmbedding, RandomSource, best_accuracy
from flower_ldp.privacy import Unit


def test_a_record_costs_epsilon_in_all() -> None:
    (event,) = CodebookEmbedding(4.0, 32).events()
    assert (event.mechanism, event.epsilon, event.unit, event.count) == (
        "codebook_embedding",
        4.0,
        Unit.EXAMPLE,
        1,
    )


def test_the_code_is_the_first_of_the_largest_scores() -> None:
    mechanism = CodebookEmbedding(1.0, 3)
    scores = np.array([[0.0, 2.0, 1.0], [5.0, 5.0, 1.0], [-np.inf, -2.0, -np.inf]])
    np.testing.assert_array_equal(mechanism.encode(scores), [1, 0, 1])
    assert mechanism.encode(scores[0]) == 1


def test_scores_are_not_changed_and_reports_follow_the_law() -> None:
    mechanism, draws = CodebookEmbedding(2.0, 4), 40_000
    scores = np.tile(np.array([0.0, 0.0, 1.0, 0.0]), (draws, 1))
    scores.flags.writeable = False
    reports = mechanism.randomize(scores, RandomSource.seeded(3))
    assert reports.shape == (draws,)
    for code in range(4):
        chance = math.exp(mechanism.log_prob(code, scores[0]))
        # five standard deviations for each of four counts
        allowed = 5 * math.sqrt(draws * chance * (1 - chance))
        assert abs((reports == code).sum() - draws * chance) < allowed


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 30.0])
def test_the_estimate_is_unbiased_and_adds_up_to_one(epsilon: float) -> None:
    mechanism = CodebookEmbedding(epsilon, 3)
    for value in np.eye(3):
        mean = sum(
            math.exp(mechanism.log_prob(code, value)) * mechanism.estimate(code)
            for code in range(3)
        )
        np.testing.assert_allclose(mean, value, atol=1e-9)
    np.testing.assert_allclose(mechanism.estimate([0, 2, 1]).sum(axis=1), 1.0)


def test_no_estimator_of_the_class_beats_the_limit() -> None:
    mechanism = CodebookEmbedding(1.5, 3)
    chances = np.exp([[mechanism.log_prob(r, v) for r in range(3)] for v in np.eye(3)])
    best = max(
        np.mean([chances[v, r] for r, v in enumerate(guess)]) * 3 / 3
        for guess in itertools.product(range(3), repeat=3)
    )
    assert best == pytest.approx(best_accuracy(1.5, 3))
    assert best_accuracy(0.0, 10) == pytest.approx(0.1)
    assert best_accuracy(4.0, 10) == pytest.approx(0.8585, abs=1e-4)


@pytest.mark.parametrize(("epsilon", "classes"), [(-1.0, 10), (math.nan, 10), (1.0, 0)])
def test_a_limit_without_meaning_is_an_error(epsilon: float, classes: int) -> None:
    with pytest.raises(ValueError, match=r"must be .*in \["):
        best_accuracy(epsilon, classes)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 101.0, math.nan])
def test_an_epsilon_outside_its_interval_is_an_error(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be in"):
        CodebookEmbedding(epsilon, 3)


@pytest.mark.parametrize("codes", [0, 1, 2**16 + 1])
def test_a_wrong_number_of_codes_is_an_error(codes: int) -> None:
    with pytest.raises(ValueError, match="codes must be an integer in"):
        CodebookEmbedding(1.0, codes)


def test_the_number_of_codes_must_be_an_integer() -> None:
    with pytest.raises(ValueError, match="codes must be an integer"):
        CodebookEmbedding(1.0, 3.0)  # type: ignore[arg-type]


def test_a_value_of_another_number_of_records_has_the_neutral_law() -> None:
    law = CodebookEmbedding(1.0, 3).log_prob([0, 1], np.ones((1, 3)))
    assert law == pytest.approx(-2 * math.log(3))


def test_what_is_no_report_is_refused() -> None:
    with pytest.raises(ValueError, match="report must be integers"):
        CodebookEmbedding(1.0, 3).log_prob(3, np.ones(3))


@pytest.mark.parametrize("epsilon", [5e-324, 1e-320, 1e-308])
def test_an_epsilon_as_good_as_zero_has_no_estimate(epsilon: float) -> None:
    with pytest.raises(ValueError, match="say nothing about the codes"):
        CodebookEmbedding(epsilon, 10).estimate([1, 2])
