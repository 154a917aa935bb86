"""Subset selection: the sampler's own weights against the theorem, its size, and its domains."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from flower_ldp.mechanisms import KaryResponse, RandomSource, SubsetSelection
from flower_ldp.mechanisms.labels import best_size, mutual_information
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.extras import extra

mpmath = extra("mpmath")

EPSILONS = [1e-6, 0.1, 0.5, 1.0, math.log(3), 4.0, 10.0, 64.0, 100.0]
SIZES = [(2, 1), (3, 2), (10, 1), (10, 3), (10, 9), (62, 1), (62, 31), (62, 61)]
WHOLE = 1 << 256


def power(epsilon: float) -> mpmath.mpf:
    return mpmath.exp(mpmath.mpf(repr(float(epsilon))))


def sets(categories: int, size: int) -> list[int]:
    return [sum(1 << j for j in some) for some in itertools.combinations(range(categories), size)]


def law(mechanism: SubsetSelection, value: int | None) -> np.ndarray:
    reports = sets(mechanism.categories, mechanism.size)
    return np.exp([mechanism.log_prob(report, value) for report in reports])


@pytest.mark.parametrize(("categories", "size"), SIZES)
@pytest.mark.parametrize("epsilon", [5e-324, 1e-60, 1e-39, 1e-38, *EPSILONS])
def test_ratio_is_at_most_e_to_epsilon_and_never_below_one(
    epsilon: float, categories: int, size: int
) -> None:
    truth = SubsetSelection(epsilon, categories, size)._truth_weight
    with mpmath.workdps(800):
        # Of a set that holds the value and of one that does not, in the same unit.
        held, other = size * (WHOLE - truth) + categories * truth, size * (WHOLE - truth)
        assert other <= held <= other * power(epsilon)
        if epsilon >= 1e-6:
            assert epsilon - 1e-12 <= mpmath.log(mpmath.mpf(held) / other)


@pytest.mark.parametrize(("categories", "size"), SIZES)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_probabilities_are_the_theorems(epsilon: float, categories: int, size: int) -> None:
    mechanism = SubsetSelection(epsilon, categories, size)
    report = (1 << size) - 1
    with mpmath.workdps(200):
        bottom = size * power(epsilon) + categories - size
        keep = size * power(epsilon) / bottom
        held = keep / math.comb(categories - 1, size - 1)
        other = (categories - size) / bottom / math.comb(categories - 1, size)
        # One normalizer for every value: the whole of pure epsilon.
        assert mpmath.almosteq(held / other, power(epsilon), rel_eps=1e-150)
        truth = size * (power(epsilon) - 1) / (size * (power(epsilon) - 1) + categories)
        assert mechanism.keep_probability == pytest.approx(float(keep), rel=1e-14)
        assert mechanism.truth == pytest.approx(float(truth), rel=1e-14)
        within, without = float(mpmath.log(held)), float(mpmath.log(other))
    assert mechanism.log_prob(report, 0) == pytest.approx(within, abs=1e-12)
    assert mechanism.log_prob(report, categories - 1) == pytest.approx(without, abs=1e-12)
    found = mechanism.likelihood([report])[0]
    assert math.log(found[0]) == pytest.approx(within, abs=1e-12)
    assert math.log(found[-1]) == pytest.approx(without, abs=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 5.0])
def test_likelihood_is_the_law_and_adds_up(epsilon: float, size: int) -> None:
    mechanism = SubsetSelection(epsilon, 5, size)
    laws = np.array([law(mechanism, value) for value in range(5)])
    np.testing.assert_allclose(laws.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(laws.mean(axis=0), law(mechanism, None), rtol=1e-12)
    reports = np.array(sets(5, size))
    np.testing.assert_allclose(mechanism.likelihood(reports), laws.T, rtol=1e-12)
    shaped = mechanism.likelihood(reports[:4].reshape(2, 2))
    np.testing.assert_allclose(shaped.reshape(4, 5), laws.T[:4], rtol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("epsilon", [1e-4, 1.5, 20.0])
def test_what_a_report_tells_is_the_sum_over_its_law(epsilon: float, size: int) -> None:
    mechanism = SubsetSelection(epsilon, 5, size)
    terms = []
    with mpmath.workdps(60):
        bottom = size * power(epsilon) + 5 - size
        keep = size * power(epsilon) / bottom
        for report, value in itertools.product(sets(5, size), range(5)):
            held = bool(report >> value & 1)
            chance = keep / math.comb(4, size - 1) if held else (1 - keep) / math.comb(4, size)
            terms.append(chance / 5 * mpmath.log(chance * math.comb(5, size)))
        told = float(sum(terms))
    # At a tiny epsilon the doubles cancel: two parts of 1e-4 leave one of 1e-9.
    assert mechanism.mutual_information == pytest.approx(told, rel=1e-9)


def test_the_figures_of_the_best_size() -> None:
    assert [best_size(epsilon, 10) for epsilon in (0.5, 1.0, 1.5, 2.0, 4.0)] == [4, 3, 3, 2, 1]
    ratio = mutual_information(1.5, 10, 3) / mutual_information(1.5, 10, 1)
    assert ratio == pytest.approx(1.357, abs=5e-4)
    ratio = mutual_information(1.0, 100, best_size(1.0, 100)) / mutual_information(1.0, 100, 1)
    assert ratio == pytest.approx(12.73, abs=5e-3)
    assert [best_size(5e-324, k) for k in (2, 9, 62)] == [1, 4, 31]
    assert best_size(100.0, 62) == 1


@pytest.mark.parametrize("categories", [2, 5, 10, 33, 62])
@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 1.0, 2.0, 5.0])
def test_no_size_tells_more_and_the_best_is_next_to_where_the_derivative_is_zero(
    epsilon: float, categories: int
) -> None:
    best = SubsetSelection(epsilon, categories)
    sizes = range(1, categories)
    told = [mutual_information(epsilon, categories, size) for size in sizes]
    assert best.mutual_information == max(told)
    gain = math.expm1(epsilon)
    assert abs(best.size - categories * (epsilon * (gain + 1) - gain) / gain**2) < 1


def test_a_size_that_is_left_out_is_the_best_one() -> None:
    chosen = SubsetSelection(1.5, 10)
    assert chosen == SubsetSelection(1.5, 10, 3)
    assert (chosen.size, chosen.law_terms, chosen.report_end) == (3, (3,), 1024)


def test_sets_of_one_are_kary_response_draw_by_draw() -> None:
    values = np.arange(5_000) % 10
    reports = SubsetSelection(0.7, 10, 1).randomize_array(values, RandomSource.seeded(4))
    alike = KaryResponse(0.7, 10).randomize_array(values, RandomSource.seeded(4))
    np.testing.assert_array_equal(reports, 1 << alike)


class Counted(RandomSource):
    """Counts the bytes that are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[int] = []
        self._inner = RandomSource.seeded(9)

    def words(self, size: int) -> np.ndarray:
        self.taken.append(8 * size)
        return self._inner.words(size)

    def random_bytes(self, n: int) -> bytes:
        self.taken.append(n)
        return self._inner.random_bytes(n)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_every_value_takes_the_same_draws(size: int) -> None:
    sources = [Counted() for _ in range(10)]
    for value, source in enumerate(sources):
        SubsetSelection(1.0, 10, size).randomize_array(np.full(100, value), source)
    assert all(source.taken == sources[0].taken for source in sources)
    assert len(sources[0].taken) == 1 + size


def test_a_report_of_the_most_categories_is_no_negative_number() -> None:
    mechanism, rng = SubsetSelection(100.0, 62, 31), RandomSource.seeded(3)
    values = np.arange(6_200) % 62
    reports = mechanism.randomize_array(values, rng)
    held = mechanism.members(reports)
    assert (held.sum(axis=1) == 31).all()
    assert held[np.arange(6_200), values].all()
    # Each other is there with 30 / 61: five deviations of its mean over 6,100 reports.
    shares = (held.sum(axis=0) - 100) / 6_100
    assert np.abs(shares - 30 / 61).max() < 5 * 0.5 / math.sqrt(6_100)


def test_cost_is_epsilon_per_unit_of_the_value() -> None:
    assert SubsetSelection(0.5, 3).events() == (PrivacyEvent("subset_selection", 0.5),)
    named = SubsetSelection(2.0, 3, name="label", unit=Unit.LABEL)
    assert named.events() == (PrivacyEvent("label", 2.0, unit=Unit.LABEL),)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 3.0, 100.0])
def test_estimate_is_unbiased(epsilon: float, size: int) -> None:
    mechanism, reports = SubsetSelection(epsilon, 4, size), np.array(sets(4, size))
    for value in range(4):
        # The estimate is linear, so its mean is the sum over the law of one report.
        mean = sum(
            chance * mechanism.estimate(held.astype(int), 1)
            for chance, held in zip(law(mechanism, value), mechanism.members(reports), strict=True)
        )
        np.testing.assert_allclose(mean, np.eye(4)[value], atol=1e-12 / math.tanh(epsilon))


def test_estimates_add_up_and_are_near_the_truth() -> None:
    mechanism, rng = SubsetSelection(1.0, 10), RandomSource.seeded(1)
    values = np.repeat(np.arange(10), np.arange(10) * 2_000)
    held = mechanism.members(mechanism.randomize_array(values, rng))
    found = mechanism.estimate(held.sum(axis=0), len(values))
    assert found.sum() == pytest.approx(len(values))
    gain = mechanism.truth * (1 - (mechanism.size - 1) / 9)
    deviation = 0.5 * math.sqrt(len(values)) / gain
    assert np.abs(found - np.bincount(values, minlength=10)).max() < 5.4 * deviation  # 1e-6


@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3), (2, 0, 3)])
def test_shape_is_kept_and_dtype_is_int64(shape: tuple[int, ...]) -> None:
    values = np.ones(shape, dtype=np.uint8)
    reports = SubsetSelection(100.0, 10, 1).randomize_array(values, RandomSource.seeded(5))
    assert reports.dtype == np.int64
    np.testing.assert_array_equal(reports, np.full(shape, 2))
    assert (values == 1).all()


@pytest.mark.parametrize("report", [0b1, 0b111, 0b1100000, -1, 2.0, None, "x"])
def test_what_is_no_set_of_the_size_is_refused(report: object) -> None:
    mechanism = SubsetSelection(1.0, 6, 2)
    with pytest.raises(ValueError, match="report must be"):
        mechanism.log_prob(report, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reports must be"):
        mechanism.likelihood(np.array([0b11, report]))


def test_a_prior_is_refused() -> None:
    mechanism = SubsetSelection(1.0, 3)
    with pytest.raises(ValueError, match="prior must be left out"):
        mechanism.randomize_array([0], RandomSource.seeded(1), [1, 1, 1])
    with pytest.raises(ValueError, match="prior must be left out"):
        mechanism.likelihood([1], [1, 1, 1])


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nextafter(100, 101), math.inf, math.nan])
def test_epsilon_domain(epsilon: float) -> None:
    with pytest.raises(ValueError, match=rf"epsilon must be in \(0, 100\], got {epsilon}"):
        SubsetSelection(epsilon, 2)


@pytest.mark.parametrize(
    ("categories", "text"), [(1, "an integer in"), (2.0, "an integer in"), (63, "an integer in")]
)
def test_categories_domain(categories: int, text: str) -> None:
    with pytest.raises(ValueError, match=f"categories must be {text}"):
        SubsetSelection(1.0, categories)


@pytest.mark.parametrize("size", [-1, 10, 2.0, True, None])
def test_size_domain(size: object) -> None:
    with pytest.raises(ValueError, match=r"size must be an integer in \[0, 10\)"):
        SubsetSelection(1.0, 10, size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("counts", "total"),
    [([1, 1], 1), ([1, 1, -1], 1), ([2, 0, 0], 1), ([1.0, 1, 0], 1), ([1] * 3, 2)],
)
def test_counts_that_are_none_are_refused(counts: list[int], total: int) -> None:
    with pytest.raises(ValueError, match="counts must"):
        SubsetSelection(1.0, 3, 2).estimate(counts, total)
