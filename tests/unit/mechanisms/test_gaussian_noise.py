"""Exact normal noise: its table against high precision, its chain and its law against theirs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_ldp.mechanisms import integer_noise as gaussian_noise
from flower_ldp.mechanisms.integer_noise import (
    DEVIATION_BITS,
    LARGEST,
    VARIATION_BITS,
    normal,
)
from flower_ldp.mechanisms.random import RandomSource
from tests.extras import extra

mpmath = extra("mpmath")
stats = extra("scipy.stats")

FAILURE = 1e-6
S = 512


def test_total_variation_of_the_table_is_below_the_stated_one() -> None:
    """Twice over: what is lost by the table is at most doubled by keeping only some draws."""
    weights = gaussian_noise.coarse_law().weights
    with mpmath.workdps(120):
        # theta function: the sum over all k, of which those past the table are the tail
        true = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * S**2)) for k in range(len(weights) + 3000)]
        total = mpmath.fsum(true)
        scale = mpmath.mpf(2) ** -256
        distance = (
            mpmath.fsum(
                abs(weight * scale - t / total) for weight, t in zip(weights, true, strict=False)
            )
            + mpmath.fsum(true[len(weights) :]) / total
        )
        assert distance / 2 < mpmath.mpf(2) ** (VARIATION_BITS - 2)
        assert distance > 0


@pytest.mark.parametrize(("coarse", "fine"), [(9_000, 0xFFFFFF), (9_000, 0x123456), (600, 1)])
def test_a_pair_is_kept_with_probability_exp_minus_gamma(coarse: int, fine: int) -> None:
    rng = RandomSource.seeded(coarse + fine)
    count = 75_000  # sees a share that is off by 0.005
    w = (fine + 0.5) / 2**24
    gamma = w * (2 * coarse + w) / (2 * S**2)
    first = rng.integers(1 << 39, count).tolist()
    kept = sum(gaussian_noise.is_kept(coarse, fine, v, rng) for v in first)
    assert stats.binomtest(kept, count, math.exp(-gamma)).pvalue > FAILURE


def test_a_chain_that_has_begun_ends_even_with_probability_one_minus_exp_minus_v() -> None:
    """Given V_1 = v below gamma, an even number of members means an odd number after it."""
    rng = RandomSource.seeded(12)
    first = int(0.03 * 2**39)
    count = 50_000
    kept = sum(gaussian_noise.is_kept(9_000, 0xFFFFFF, first, rng) for _ in range(count))
    assert stats.binomtest(kept, count, -math.expm1(-0.03)).pvalue > FAILURE


def test_what_the_first_bits_decide_is_what_all_bits_decide() -> None:
    """A draw that the fast path keeps unseen is one whose chain is empty for every ending."""
    for coarse, fine in ((0, 0), (1, 77), (512, 1 << 23), (9_400, (1 << 24) - 1)):
        gamma = (fine + 1) * ((coarse << 25) + fine + 1)
        threshold = gamma >> 28
        # V_1 >= (threshold + 1) / 2^39 > gamma, even with all further bits of w set
        assert (threshold + 1) << 28 >= gamma
        assert gaussian_noise.is_kept(coarse, fine, threshold + 1, RandomSource.seeded(1))


@pytest.fixture(scope="module")
def draws() -> np.ndarray:
    return normal(2_000_000, RandomSource.seeded(5))


def test_law_of_the_draws(draws: np.ndarray) -> None:
    edges = stats.norm.ppf(np.linspace(0, 1, 201)[1:-1])
    counts = np.bincount(np.searchsorted(edges, draws / 2.0**DEVIATION_BITS), minlength=200)
    assert stats.chisquare(counts).pvalue > FAILURE


def test_tails_and_cells_of_the_draws(draws: np.ndarray) -> None:
    beyond = int((np.abs(draws) > 4 << DEVIATION_BITS).sum())
    assert stats.binomtest(beyond, len(draws), 2 * stats.norm.sf(4)).pvalue > FAILURE
    assert np.abs(draws).max() <= LARGEST
    # within a cell of the table: the first bits of w near the middle of the law are flat
    cells = (draws >> 20) & 15
    assert stats.chisquare(np.bincount(cells, minlength=16)).pvalue > FAILURE
    low = draws & 255
    assert stats.chisquare(np.bincount(low, minlength=256)).pvalue > FAILURE


def test_refused_pairs_are_drawn_again_and_thin_out_the_outer_cells() -> None:
    """Far out a cell is visibly steeper than flat: the part that the keeping rule makes."""
    lookup = gaussian_noise.coarse_law()
    assert sum(lookup.weights) == 1 << 256
    rng = RandomSource.seeded(8)
    inner = np.array(
        [
            gaussian_noise.is_kept(9_400, w, v, rng)
            for w, v in zip(
                rng.integers(1 << 24, 60_000).tolist(),
                rng.integers(1 << 39, 60_000).tolist(),
                strict=True,
            )
        ]
    )
    mean_gamma = 9_400 / (2 * S**2)
    assert 1 - inner.mean() == pytest.approx(mean_gamma, rel=0.1)


@pytest.mark.parametrize("size", [0, 1, 3, 40_001])
def test_sizes(size: int) -> None:
    noise = normal(size, RandomSource.seeded(2))
    assert noise.shape == (size,)
    assert noise.dtype == np.int64


def test_a_fresh_source_never_repeats() -> None:
    a, b = (normal(100, RandomSource.from_os()) for _ in range(2))
    assert not (a == b).any()
