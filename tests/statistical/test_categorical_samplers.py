"""k-ary response, subset selection and RRWithPrior, in arrays too, against their exact law."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_ldp.mechanisms import KaryResponse, RandomSource, RRWithPrior, SubsetSelection
from tests.statistical.follows import assert_follows

PRIORS = [(0.6, 0.3, 0.1, 0.0), (0.1, 0.2, 0.3, 0.4), (0.0, 0.0, 0.0, 0.0)]


@pytest.mark.parametrize("categories", [2, 5, 10])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 4.0])
def test_kary_response(epsilon: float, categories: int) -> None:
    mechanism, rng = KaryResponse(epsilon, categories), RandomSource.seeded(2027)
    for value in (0, categories - 1):
        law = [math.exp(mechanism.log_prob(report, value)) for report in range(categories)]
        many = mechanism.randomize_array(np.full(200_000, value), rng)
        assert_follows(np.bincount(many, minlength=categories).tolist(), law)
        # One by one it is the same law; these see a probability that is off by 0.05.
        single = [mechanism.randomize(value, rng) for _ in range(6_000)]
        assert_follows(np.bincount(single, minlength=categories).tolist(), law)


@pytest.mark.parametrize(("categories", "size"), [(3, 2), (5, 3), (8, 2)])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 4.0])
def test_subset_selection(epsilon: float, categories: int, size: int) -> None:
    mechanism, rng = SubsetSelection(epsilon, categories, size), RandomSource.seeded(2030)
    sets = [r for r in range(1 << categories) if r.bit_count() == size]
    for value in (0, categories - 1, None):
        law = [math.exp(mechanism.log_prob(report, value)) for report in sets]
        given = np.full(60_000, -1 if value is None else value)
        many = np.bincount(mechanism.randomize_array(given, rng), minlength=1 << categories)
        assert many.sum() == many[sets].sum()
        assert_follows(many[sets].tolist(), law)
    single = np.bincount([mechanism.randomize(1, rng) for _ in range(1_000)])
    single.resize(1 << categories)
    law = [math.exp(mechanism.log_prob(report, 1)) for report in sets]
    assert_follows(single[sets].tolist(), law)


@pytest.mark.parametrize("categories", [3, 7])
def test_neighbouring_reports_of_one_array_are_independent(categories: int) -> None:
    mechanism, rng = KaryResponse(0.7, categories), RandomSource.seeded(2028)
    reports = mechanism.randomize_array(np.zeros(400_000, dtype=np.int64), rng)
    pairs = np.bincount(reports[::2] * categories + reports[1::2], minlength=categories**2)
    one = np.exp([mechanism.log_prob(report, 0) for report in range(categories)])
    assert_follows(pairs.tolist(), np.outer(one, one).ravel().tolist())


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("epsilon", [0.8, 1.0, 3.0])
def test_rr_with_prior(epsilon: float, prior: tuple[float, ...]) -> None:
    mechanism, rng = RRWithPrior(epsilon, 4), RandomSource.seeded(2029)
    for value in range(4):
        law = [math.exp(mechanism.log_prob(report, value, prior)) for report in range(4)]
        many = mechanism.randomize_array(np.full(100_000, value), rng, prior)
        assert_follows(np.bincount(many, minlength=4).tolist(), law)
