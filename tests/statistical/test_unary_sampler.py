"""The sampler of unary encoding against its exact law, at a failure rate of 1e-6."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from flower_ldp.mechanisms import RandomSource, UnaryEncoding
from tests.extras import extra

stats = extra("scipy.stats")

FAILURE = 1e-6
DRAWS = 100_000


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
def test_whole_records_follow_the_law(epsilon: float) -> None:
    mechanism = UnaryEncoding(epsilon, 3)
    value = np.array([1.0, -1.0, 2.0])
    reports = mechanism.randomize(np.tile(value, (DRAWS, 1)), RandomSource.seeded(11))
    counts = np.bincount(reports @ np.array([4, 2, 1]), minlength=8)
    outputs = [np.array(bits) for bits in itertools.product((0, 1), repeat=3)]
    expected = DRAWS * np.exp([mechanism.log_prob(report, value) for report in outputs])
    assert expected.min() > 100
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert stats.chi2.sf(statistic, 7) > FAILURE


def test_a_large_epsilon_flips_as_rarely_as_it_says() -> None:
    epsilon = 12.0
    reports = UnaryEncoding(epsilon, 100).randomize(np.ones((10_000, 100)), RandomSource.seeded(5))
    flips, rate = int((reports == 0).sum()), 1 / (1 + math.exp(epsilon / 2))
    law = stats.binom(reports.size, rate)
    assert law.sf(flips - 1) > FAILURE / 2
    assert law.cdf(flips) > FAILURE / 2
