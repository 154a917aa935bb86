"""The sampler of discrete Laplace noise against its exact law."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_ldp.mechanisms.integer_noise import DiscreteLaplace
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import as_fraction
from tests.extras import extra

stats = extra("scipy.stats")

FAILURE_RATE = 1e-6
DRAWS = 400_000


def cell_law(rate: float, edges: np.ndarray) -> np.ndarray:
    """Return P(edge_i <= X < edge_i+1), and both tails, from the distribution function."""
    q = math.exp(-rate)

    def below(x: int) -> float:  # P(X < x)
        if x <= 0:
            return math.exp(-rate * (1 - x)) / (1 + q)
        return 1 - math.exp(-rate * x) / (1 + q)

    return np.diff([0.0, *(below(int(edge)) for edge in edges), 1.0])


def assert_follows(drawn: np.ndarray, rate: float, edges: np.ndarray) -> None:
    counts = np.bincount(np.searchsorted(edges, drawn, side="right"), minlength=len(edges) + 1)
    expected = cell_law(rate, edges) * len(drawn)
    large = expected >= 5
    observed = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected[large], expected[~large].sum())
    keep = wanted > 0
    assert counts[~large].sum() <= 5 * max(1.0, wanted[-1]) + 30
    p = stats.chisquare(observed[keep], wanted[keep] * observed.sum() / wanted[keep].sum()).pvalue
    assert p > FAILURE_RATE


@pytest.mark.parametrize("rate", [7.3, 1.0, 0.5, 0.49, 0.06, 0.011, 0.001, 4.3e-5, 1e-9, 1e-13])
def test_noise_follows_its_law(rate: float) -> None:
    drawn = DiscreteLaplace(as_fraction(rate)).sample(DRAWS, RandomSource.seeded(11))
    reach = 16 / rate
    edges = np.unique(np.round(np.linspace(-reach, reach, 400)).astype(np.int64))
    assert_follows(drawn, rate, edges)


@pytest.mark.parametrize("rate", [0.06, 0.011, 0.001])
def test_noise_follows_its_law_step_by_step(rate: float) -> None:
    drawn = DiscreteLaplace(as_fraction(rate)).sample(DRAWS, RandomSource.seeded(12))
    assert_follows(drawn, rate, np.arange(-2000, 2000))


@pytest.mark.parametrize("rate", [0.011, 0.001, 1e-9])
def test_low_bits_and_neighbours_are_independent(rate: float) -> None:
    drawn = DiscreteLaplace(as_fraction(rate)).sample(DRAWS, RandomSource.seeded(13))
    low = drawn & 7
    pairs = np.bincount(low[:-1:2] * 8 + low[1::2], minlength=64)
    assert stats.chi2_contingency(pairs.reshape(8, 8)).pvalue > FAILURE_RATE
    signs = np.bincount((drawn < 0) * 8 + low, minlength=16).reshape(2, 8)
    if rate < 1e-6:  # sign and low bits are independent up to the rate
        assert stats.chi2_contingency(signs).pvalue > FAILURE_RATE
