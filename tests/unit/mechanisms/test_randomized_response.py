"""Randomized response: the sampler's own weights against the theorem, and the sampler too."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.randomized_response import BinaryResponse
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.extras import extra

mpmath = extra("mpmath")

EPSILONS = [1e-6, 0.01, 0.1, 0.5, 1.0, math.log(3), 4.0, 10.0, 30.0, 64.0, 99.9, 100.0]
FAILURE_RATE = 1e-6
WHOLE = 1 << 256


def flip_weight(response: BinaryResponse) -> int:
    """Return the sampler's flip probability in units of 2^-256."""
    return response._flip_weight


def power(epsilon: float) -> mpmath.mpf:
    return mpmath.exp(mpmath.mpf(repr(float(epsilon))))


def two_sided_p(successes: int, trials: int, probability: float) -> float:
    """Return twice the smaller tail of the binomial, to about nine digits."""
    k = np.arange(trials + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(k[1:]))])
    log_choose = log_factorial[trials] - log_factorial - log_factorial[::-1]
    law = np.exp(log_choose + k * math.log(probability) + (trials - k) * math.log1p(-probability))
    return 2.0 * min(float(law[: successes + 1].sum()), float(law[successes:].sum()))


# Privacy, exactly.


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_ratio_of_reports_is_at_most_e_to_epsilon_and_reaches_it(epsilon: float) -> None:
    flip = flip_weight(BinaryResponse(epsilon))
    with mpmath.workdps(200):
        for report, value, other in itertools.product((0, 1), repeat=3):
            likely = WHOLE - flip if report == value else flip
            unlikely = WHOLE - flip if report == other else flip
            assert likely <= unlikely * power(epsilon)
        loss = mpmath.log(mpmath.mpf(WHOLE - flip) / flip)
        assert epsilon - 1e-12 <= loss


@pytest.mark.parametrize("epsilon", [5e-324, 1e-300, 1e-60, 1e-39, 1e-38, 1e-20])
def test_ratio_is_kept_for_epsilons_below_the_samplers_resolution(epsilon: float) -> None:
    flip = flip_weight(BinaryResponse(epsilon))
    with mpmath.workdps(800):
        assert WHOLE - flip <= flip * power(epsilon)
        assert flip <= (WHOLE - flip) * power(epsilon)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_flip_weight_is_the_theorems_rounded_up(epsilon: float) -> None:
    with mpmath.workdps(200):
        exact = WHOLE / (1 + power(epsilon))
        assert exact <= flip_weight(BinaryResponse(epsilon)) <= exact * (1 + mpmath.mpf(2) ** -100)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_log_prob_is_the_law_of_the_sampler(epsilon: float) -> None:
    response = BinaryResponse(epsilon)
    flip = flip_weight(response)
    with mpmath.workdps(100):
        kept = float(mpmath.log(mpmath.mpf(WHOLE - flip) / WHOLE))
        flipped = float(mpmath.log(mpmath.mpf(flip) / WHOLE))
    for value in (0, 1):
        assert response.log_prob(value, value) == pytest.approx(kept, abs=1e-12)
        assert response.log_prob(1 - value, value) == pytest.approx(flipped, abs=1e-12)
        total = sum(math.exp(response.log_prob(report, value)) for report in (0, 1))
        assert total == pytest.approx(1.0, abs=1e-12)
        loss = response.log_prob(value, value) - response.log_prob(value, 1 - value)
        assert loss == pytest.approx(epsilon, abs=1e-12)


def test_cost_is_epsilon_per_unit_of_the_bit() -> None:
    assert BinaryResponse(0.5).events() == (PrivacyEvent("binary_response", 0.5),)
    named = BinaryResponse(2.0, name="label", unit=Unit.LABEL)
    assert named.events() == (PrivacyEvent("label", 2.0, unit=Unit.LABEL),)


# The sampler.


@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 2.0, 6.0])
def test_scalar_reports_follow_the_law(epsilon: float, value: int) -> None:
    response, rng = BinaryResponse(epsilon), RandomSource.seeded(1)
    flips = sum(response.randomize(value, rng) != value for _ in range(20_000))
    assert two_sided_p(flips, 20_000, flip_weight(response) / WHOLE) > FAILURE_RATE


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 2.0, 6.0, 10.0])
def test_array_reports_follow_the_law(epsilon: float) -> None:
    response = BinaryResponse(epsilon)
    values = np.arange(400_000) % 2
    reports = response.randomize_array(values, RandomSource.seeded(2))
    for value in (0, 1):
        flips = int((reports[values == value] != value).sum())
        assert two_sided_p(flips, 200_000, flip_weight(response) / WHOLE) > FAILURE_RATE


def test_reports_of_one_array_are_independent() -> None:
    response = BinaryResponse(0.5)
    flips = response.randomize_array(np.zeros(200_000, dtype=bool), RandomSource.seeded(3))
    both = int((flips[:-1:2] & flips[1::2]).sum())
    assert two_sided_p(both, 100_000, (flip_weight(response) / WHOLE) ** 2) > FAILURE_RATE


def test_at_epsilon_100_nothing_flips() -> None:
    response, rng = BinaryResponse(100.0), RandomSource.seeded(4)
    values = np.arange(10_000) % 2
    np.testing.assert_array_equal(response.randomize_array(values, rng), values)
    assert [response.randomize(value, rng) for value in (0, 1)] == [0, 1]


class ScriptedSource(RandomSource):
    """Hands out prepared 64-bit heads and 192-bit tails."""

    def __init__(self, heads: list[int], tails: list[int]) -> None:
        super().__init__()
        self._heads, self._tails = heads, tails

    def words(self, size: int) -> NDArray[np.uint64]:
        assert size == len(self._heads)
        return np.array(self._heads, dtype=np.uint64)

    def bits(self, n: int) -> int:
        if n == 256:  # the scalar sampler draws head and tail at once
            return (self._heads.pop(0) << 192) + self._tails.pop(0)
        assert n == 192
        return self._tails.pop(0)


@pytest.mark.parametrize("epsilon", [1e-6, 0.5, 7.0, 50.0, 100.0])
def test_ties_of_the_first_64_bits_are_settled_by_the_rest(epsilon: float) -> None:
    response = BinaryResponse(epsilon)
    head, tail = divmod(flip_weight(response), 1 << 192)
    assert tail > 0
    # (head, tail drawn if there is a tie, whether the draw is below the weight)
    draws = [
        (head, tail - 1, True),
        (head + 1, None, False),
        (head, tail, False),
        (head, 0, True),
        (2**64 - 1, None, False),
        (head, 2**192 - 1, False),
        *([(head - 1, None, True), (0, None, True)] if head else []),
    ]
    tails = [rest for _, rest, _ in draws if rest is not None]
    source = ScriptedSource([first for first, _, _ in draws], list(tails))
    reports = response.randomize_array(np.zeros((len(draws), 1), dtype=np.int8), source)
    assert reports.shape == (len(draws), 1)
    assert reports.ravel().tolist() == [int(flip) for _, _, flip in draws]
    assert source._tails == []
    # The scalar sampler decides the same draws alike.
    for first, rest, flip in draws:
        single = ScriptedSource([first], [rest if rest is not None else 2**192 - 1])
        assert response.randomize(1, single) == 1 - int(flip)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int64, np.uint64])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3), (2, 0, 3)])
def test_shape_is_kept_and_dtype_is_uint8(
    dtype: type[np.integer | np.bool_], shape: tuple[int, ...]
) -> None:
    values = np.ones(shape, dtype=dtype)
    reports = BinaryResponse(100.0).randomize_array(values, RandomSource.seeded(5))
    assert reports.dtype == np.uint8
    np.testing.assert_array_equal(reports, np.ones(shape))
    np.testing.assert_array_equal(values, np.ones(shape))


def test_arrays_that_are_not_contiguous_are_read_in_order() -> None:
    values = (np.arange(24).reshape(4, 6) % 3 == 0).T[::2]
    reports = BinaryResponse(100.0).randomize_array(values, RandomSource.seeded(6))
    np.testing.assert_array_equal(reports, values)


# The estimate.


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 5.0, 40.0, 100.0])
@pytest.mark.parametrize(("true_ones", "total"), [(0, 10), (3, 10), (10, 10), (777, 1000)])
def test_estimate_is_unbiased(epsilon: float, true_ones: int, total: int) -> None:
    # The estimate is linear, so its mean is its value at the mean number of ones.
    response = BinaryResponse(epsilon)
    origin, slope = response.estimate(0, total), response.estimate(1, total)
    with mpmath.workdps(60):
        flip = 1 / (1 + power(epsilon))
        mean_ones = true_ones * (1 - flip) + (total - true_ones) * flip
        mean = origin + (mpmath.mpf(slope) - origin) * mean_ones
        assert float(mean) == pytest.approx(true_ones, abs=1e-9 * total / math.tanh(epsilon / 2))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_mean_and_deviation_by_the_exact_law(epsilon: float) -> None:
    response, true_ones, total = BinaryResponse(epsilon), 4, 9
    flip = flip_weight(response) / WHOLE

    def binomial(n: int, p: float) -> NDArray[np.float64]:
        return np.array([math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(n + 1)])

    law = np.convolve(binomial(true_ones, 1 - flip), binomial(total - true_ones, flip))
    estimates = np.array([response.estimate(ones, total) for ones in range(total + 1)])
    mean = float(law @ estimates)
    assert mean == pytest.approx(true_ones)
    assert math.sqrt(float(law @ (estimates - mean) ** 2)) == pytest.approx(
        response.standard_deviation(total)
    )


def test_estimate_of_simulated_reports_is_near_the_truth() -> None:
    response = BinaryResponse(1.0)
    values = np.arange(100_000) < 30_000
    ones = int(response.randomize_array(values, RandomSource.seeded(7)).sum())
    deviation = response.standard_deviation(len(values))
    assert abs(response.estimate(ones, len(values)) - 30_000) < 4.9 * deviation  # 1e-6


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_keep_probability(epsilon: float) -> None:
    with mpmath.workdps(60):
        exact = float(power(epsilon) / (1 + power(epsilon)))
    assert BinaryResponse(epsilon).keep_probability == pytest.approx(exact, rel=1e-15)


# Domains.


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nextafter(100, 101), math.inf, math.nan])
def test_epsilon_domain(epsilon: float) -> None:
    with pytest.raises(ValueError, match=rf"epsilon must be in \(0, 100\], got {epsilon}"):
        BinaryResponse(epsilon)
