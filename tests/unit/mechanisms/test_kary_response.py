"""k-ary randomized response: the sampler's own weights against the theorem, and its domains."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from flower_ldp.mechanisms.random import RandomSource, toss, uniform
from flower_ldp.mechanisms.randomized_response import KaryResponse
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.extras import extra

mpmath = extra("mpmath")

EPSILONS = [1e-6, 0.1, 0.5, 1.0, math.log(3), 4.0, 10.0, 64.0, 100.0]
CATEGORIES = [2, 3, 10, 1000, 2**31]
WHOLE = 1 << 256


def power(epsilon: float) -> mpmath.mpf:
    return mpmath.exp(mpmath.mpf(repr(float(epsilon))))


@pytest.mark.parametrize("categories", CATEGORIES)
@pytest.mark.parametrize("epsilon", [5e-324, 1e-60, 1e-39, 1e-38, *EPSILONS])
def test_ratio_is_at_most_e_to_epsilon_and_never_below_one(epsilon: float, categories: int) -> None:
    truth = KaryResponse(epsilon, categories)._truth_weight
    with mpmath.workdps(800):
        kept, other = WHOLE - truth + categories * truth, WHOLE - truth
        assert other <= kept <= other * power(epsilon)
        if epsilon >= 1e-6:
            assert epsilon - 1e-12 <= mpmath.log(mpmath.mpf(kept) / other)


@pytest.mark.parametrize("categories", CATEGORIES)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_probabilities_are_the_theorems(epsilon: float, categories: int) -> None:
    response = KaryResponse(epsilon, categories)
    with mpmath.workdps(200):
        bottom = power(epsilon) + categories - 1
        kept, other = float(mpmath.log(power(epsilon) / bottom)), float(-mpmath.log(bottom))
        assert response.keep_probability == pytest.approx(float(power(epsilon) / bottom), rel=1e-14)
        assert response.truth == pytest.approx(float((power(epsilon) - 1) / bottom), rel=1e-14)
    assert response.log_prob(1, 1) == pytest.approx(kept, abs=1e-12)
    assert response.log_prob(0, 1) == pytest.approx(other, abs=1e-12)
    assert response.log_prob(categories - 1, 0) == pytest.approx(other, abs=1e-12)


def test_the_figure_of_the_literature() -> None:
    assert 1 - KaryResponse(1.0, 10).keep_probability == pytest.approx(0.7680, abs=5e-5)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 5.0])
def test_transition_and_likelihood_are_the_law(epsilon: float) -> None:
    response = KaryResponse(epsilon, 4)
    law = [
        [math.exp(response.log_prob(report, value)) for report in range(4)] for value in range(4)
    ]
    np.testing.assert_allclose(response.transition(), law, rtol=1e-12)
    reports = np.array([[0, 3], [1, 1]])
    likelihood = response.likelihood(reports)
    assert likelihood.shape == (2, 2, 4)
    for at, report in np.ndenumerate(reports):
        np.testing.assert_allclose(likelihood[at], np.array(law)[:, report], rtol=1e-12)


def test_cost_is_epsilon_per_unit_of_the_value() -> None:
    assert KaryResponse(0.5, 3).events() == (PrivacyEvent("kary_response", 0.5),)
    named = KaryResponse(2.0, 3, name="label", unit=Unit.LABEL)
    assert named.events() == (PrivacyEvent("label", 2.0, unit=Unit.LABEL),)


@pytest.mark.parametrize("epsilon", [1e-6, 0.5, 3.0, 100.0])
def test_estimate_is_unbiased(epsilon: float) -> None:
    # The estimate is linear in the counts, so its mean is its value at their means.
    response, true = KaryResponse(epsilon, 4), np.array([600, 0, 300, 100])
    zero = response.estimate(np.array([1000, 0, 0, 0]))
    slope = np.array([response.estimate(1000 * row) - zero for row in np.eye(4, dtype=np.int64)])
    with mpmath.workdps(60):
        bottom = power(epsilon) + 3
        expected = np.array([float((t * power(epsilon) + 1000 - t) / bottom) for t in true])
    found = zero + (expected / 1000) @ slope
    np.testing.assert_allclose(found, true, atol=1e-9 * 1000 / math.tanh(epsilon / 2))


def test_estimates_add_up_and_are_near_the_truth() -> None:
    response, rng = KaryResponse(1.0, 10), RandomSource.seeded(1)
    values = np.repeat(np.arange(10), np.arange(10) * 4_000)
    reports = response.randomize_array(values, rng)
    found = response.estimate(np.bincount(reports, minlength=10))
    assert found.sum() == pytest.approx(len(values))
    keep = response.keep_probability
    deviation = math.sqrt(len(values) * keep * (1 - keep)) / response.truth
    assert np.abs(found - np.bincount(values, minlength=10)).max() < 5.4 * deviation  # 1e-6


class ScriptedSource(RandomSource):
    """Hands out prepared 64-bit heads, wide tails and bytes."""

    def __init__(self, heads: list[int], tails: list[int], rest: bytes = b"") -> None:
        super().__init__()
        self._heads, self._tails, self._rest = heads, tails, rest

    def words(self, size: int) -> NDArray[np.uint64]:
        assert size == len(self._heads)
        return np.array(self._heads, dtype=np.uint64)

    def bits(self, n: int) -> int:
        assert n == 192
        return self._tails.pop(0)

    def random_bytes(self, n: int) -> bytes:
        found, self._rest = self._rest[:n], self._rest[n:]
        assert len(found) == n
        return found


def test_ties_of_the_first_64_bits_are_settled_by_the_rest() -> None:
    weights = [(5 << 192) + 7, 9 << 192]
    draws = [(4, 0), (5, 0), (5, 0), (6, 0), (8, 1), (9, 1), (2**64 - 1, 1)]
    source = ScriptedSource([head for head, _ in draws], [6, 7, 0])
    fell = toss(weights, np.array([coin for _, coin in draws]), source)
    # two ties of the first coin: 6 < 7 and not 7 < 7; one of the second: not 0 < 0
    assert fell.tolist() == [True, True, False, False, True, False, False]
    assert source._tails == []


def test_uniform_is_exact_over_all_its_draws() -> None:
    # 3 * 2^30 ends: of the 2^32 draws each end gets exactly one, 2^30 are refused. The
    # surplus is 2^30: draw x gives 3x // 4, refused where 3x mod 4 (in units of 2^30) is 0.
    high = 3 * 2**30
    draws = np.array([0, 1, 4, 5, 6, 7, 2**32 - 1, 8, 9], dtype="<u4")
    rest = draws[:4].tobytes() + draws[4:6].tobytes()
    found = uniform(high, 4, ScriptedSource([], [], rest))
    assert found.tolist() == [3 * 6 // 4, 0, 3 * 7 // 4, 3]
    assert uniform(1, 3, RandomSource.seeded(0)).tolist() == [0, 0, 0]
    assert uniform(5, 0, RandomSource.seeded(0)).shape == (0,)
    full = np.array([0, 2**32 - 1], dtype="<u4").tobytes()
    assert uniform(2**32, 2, ScriptedSource([], [], full)).tolist() == [0, 2**32 - 1]


def test_uniform_with_an_end_for_each() -> None:
    ends = np.tile([1, 2, 3, 2**31], 20_000)
    found = uniform(ends, len(ends), RandomSource.seeded(3)).reshape(-1, 4)
    assert (found < ends[:4]).all()
    assert (found >= 0).all()
    assert np.bincount(found[:, 1]).min() > 10_000 - 5 * 71
    assert np.bincount(found[:, 2]).min() > 6_667 - 5 * 67
    assert abs(found[:, 3].mean() / 2**31 - 0.5) < 5 * 0.2887 / math.sqrt(20_000)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int64, np.uint64])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3), (2, 0, 3)])
def test_shape_is_kept_and_dtype_is_int64(
    dtype: type[np.integer | np.bool_], shape: tuple[int, ...]
) -> None:
    values = np.ones(shape, dtype=dtype)
    reports = KaryResponse(100.0, 10).randomize_array(values, RandomSource.seeded(5))
    assert reports.dtype == np.int64
    np.testing.assert_array_equal(reports, np.ones(shape))


def test_arrays_that_are_not_contiguous_are_read_in_order_and_not_changed() -> None:
    whole = np.arange(40_000 * 6).reshape(40_000, 6) % 11
    before, values = whole.copy(), whole.T[::2]
    reports = KaryResponse(100.0, 11).randomize_array(values, RandomSource.seeded(6))
    np.testing.assert_array_equal(reports, values)
    KaryResponse(0.1, 11).randomize_array(values, RandomSource.seeded(6))
    np.testing.assert_array_equal(whole, before)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nextafter(100, 101), math.inf, math.nan])
def test_epsilon_domain(epsilon: float) -> None:
    with pytest.raises(ValueError, match=rf"epsilon must be in \(0, 100\], got {epsilon}"):
        KaryResponse(epsilon, 2)


@pytest.mark.parametrize("categories", [1, 0, -1, 2**31 + 1, 2.0, True, None])
def test_categories_domain(categories: object) -> None:
    with pytest.raises(ValueError, match=r"categories must be an integer in \[2, 2\^31\]"):
        KaryResponse(1.0, categories)  # type: ignore[arg-type]


@pytest.mark.parametrize("counts", [[1, 2], [1, 2, -1], [1.0, 2.0, 3.0], [[1, 2, 3]]])
def test_counts_that_are_none_are_refused(counts: list[float]) -> None:
    with pytest.raises(ValueError, match="counts must"):
        KaryResponse(1.0, 3).estimate(counts)
