"""The bounds of an audit, against exact probabilities and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_ldp.audit.bounds import (
    epsilon_lower_bound,
    largest_bound,
    probability_lower,
    probability_upper,
)
from tests.audit_power import draws_to_refute, expected_bound, power
from tests.extras import extra

stats = extra("scipy.stats")


@pytest.mark.parametrize("draws", [1, 7, 40])
@pytest.mark.parametrize("error", [0.0005, 0.05])
@pytest.mark.parametrize("p", [0.0, 1e-3, 0.03, 0.5, 0.9, 1.0])
def test_bounds_on_a_probability_fail_no_more_often_than_stated(
    draws: int, error: float, p: float
) -> None:
    counts = np.arange(draws + 1)
    chances = stats.binom.pmf(counts, draws, p)
    assert chances[probability_lower(counts, draws, error) > p].sum() <= error
    assert chances[probability_upper(counts, draws, error) < p].sum() <= error


@pytest.mark.parametrize(("p", "q", "delta"), [(0.7, 0.3, 0.0), (0.02, 0.9, 0.0), (0.6, 0.3, 0.1)])
@pytest.mark.parametrize("draws", [5, 60])
def test_the_bound_on_epsilon_exceeds_the_truth_no_more_often_than_stated(
    p: float, q: float, delta: float, draws: int
) -> None:
    often, seldom = np.meshgrid(np.arange(draws + 1), np.arange(draws + 1), indexing="ij")
    chances = stats.binom.pmf(often, draws, p) * stats.binom.pmf(seldom, draws, q)
    bounds = epsilon_lower_bound(often, seldom, draws, confidence=0.9, delta=delta)
    assert chances[bounds > math.log((p - delta) / q)].sum() <= 0.1


def test_the_bound_by_hand_where_counts_are_extreme() -> None:
    # all of n: p >= (alpha/2)^(1/n); none of n: q <= 1 - (alpha/2)^(1/n)
    edge = 0.0005 ** (1 / 1000)
    assert largest_bound(1000, confidence=0.999) == pytest.approx(math.log(edge / (1 - edge)))
    assert epsilon_lower_bound(0, 5, 1000, confidence=0.999) == -math.inf
    with_delta = largest_bound(1000, confidence=0.999, delta=0.5)
    assert with_delta == pytest.approx(math.log((edge - 0.5) / (1 - edge)))


def test_swapping_the_counts_swaps_the_direction() -> None:
    assert epsilon_lower_bound(700, 300, 1000, confidence=0.99) > 0.5
    assert epsilon_lower_bound(300, 700, 1000, confidence=0.99) < -0.5


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((11, 0, 10), {"confidence": 0.9}, r"count must be in \[0, 10\], got 11"),
        ((-1, 0, 10), {"confidence": 0.9}, "count must be"),
        ((0, 0, 0), {"confidence": 0.9}, "draws must be in"),
        ((1, 1, 10), {"confidence": 1.0}, r"confidence must be in \(0, 1\)"),
        ((1, 1, 10), {"confidence": math.nan}, "confidence"),
        ((1, 1, 10), {"confidence": 0.9, "delta": 1.0}, r"delta must be in \[0, 1\)"),
    ],
)
def test_impossible_arguments_are_refused(
    arguments: tuple[int, int, int], options: dict[str, float], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        epsilon_lower_bound(*arguments, **options)


@pytest.mark.parametrize(("p", "q", "claimed"), [(0.6, 0.2, 0.8), (1.0, 0.0, 2.0), (0.5, 0.5, 0.5)])
def test_power_is_the_sum_over_all_pairs_of_counts(p: float, q: float, claimed: float) -> None:
    draws = 80
    often, seldom = np.meshgrid(np.arange(draws + 1), np.arange(draws + 1), indexing="ij")
    chances = stats.binom.pmf(often, draws, p) * stats.binom.pmf(seldom, draws, q)
    refuting = epsilon_lower_bound(often, seldom, draws, confidence=0.95) > claimed
    found = power(p, q, claimed, draws, confidence=0.95)
    assert found == pytest.approx(chances[refuting].sum(), abs=1e-12)


def test_the_number_of_draws_is_enough_and_not_wasteful() -> None:
    needed = draws_to_refute(0.3, 0.1, 0.9, confidence=0.999, wanted=0.99)
    assert power(0.3, 0.1, 0.9, needed, confidence=0.999) >= 0.99
    assert power(0.3, 0.1, 0.9, int(0.95 * needed), confidence=0.999) < 0.99
    with pytest.raises(ValueError, match="agrees with 2"):
        draws_to_refute(0.3, 0.1, 2.0, confidence=0.999)


def test_what_a_tight_mechanism_typically_reaches() -> None:
    keep = 1 / (1 + math.exp(-1.0))
    assert expected_bound(keep, 1 - keep, 500_000, confidence=0.999) == pytest.approx(
        0.989, abs=1e-3
    )
