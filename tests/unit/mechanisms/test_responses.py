"""Randomized responses: the samplers' own weights against the theorem, the draws, the estimates."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from flower_ldp.mechanisms import BinaryResponse, KaryResponse, RRWithPrior, SubsetSelection
from flower_ldp.mechanisms.labels import best_size, mutual_information
from flower_ldp.mechanisms.random import RandomSource, toss
from tests.extras import extra
from tests.statistical.follows import assert_follows
from tests.unit.mechanisms.sources import Scripted

mpmath = extra("mpmath")

Response = BinaryResponse | KaryResponse | SubsetSelection
EPSILONS = [1e-6, 0.01, 0.1, 0.5, 1.0, math.log(3), 4.0, 10.0, 30.0, 64.0, 99.9, 100.0]
#: Categories, and how many of them a report holds.
SIZES = [(3, 2), (10, 1), (10, 3), (10, 9), (62, 1), (62, 31), (62, 61)]
CATEGORIES = [2, 3, 10, 1000, 2**31]
WHOLE = 1 << 256


def responses(epsilon: float) -> list[Response]:
    of_one = [KaryResponse(epsilon, categories) for categories in CATEGORIES]
    return [BinaryResponse(epsilon), *of_one, *(SubsetSelection(epsilon, *both) for both in SIZES)]


def power(epsilon: float) -> mpmath.mpf:
    return mpmath.exp(mpmath.mpf(repr(float(epsilon))))


def size_of(response: Response) -> tuple[int, int]:
    """Return how many categories there are and how many a report holds."""
    if isinstance(response, BinaryResponse):
        return 2, 1
    return response.categories, response._report_size


def odds(response: Response) -> tuple[int, int]:
    """Return the sampler's weights of a report that holds the value and of one that does not."""
    if isinstance(response, BinaryResponse):
        return WHOLE - response._flip_weight, response._flip_weight
    (categories, size), truth = size_of(response), response._truth_weight
    return size * (WHOLE - truth) + categories * truth, size * (WHOLE - truth)


@pytest.mark.parametrize("epsilon", [5e-324, 1e-300, 1e-60, 1e-39, 1e-38, 1e-20, *EPSILONS])
def test_odds_are_at_most_e_to_epsilon_and_reach_it(epsilon: float) -> None:
    for response in responses(epsilon):
        with mpmath.workdps(800):
            held, other = odds(response)
            assert other <= held <= other * power(epsilon)
            if epsilon >= 1e-6:
                assert held >= other * power(epsilon) * (1 - mpmath.mpf(2) ** -100)


@pytest.mark.parametrize("categories", [1, 2, 3, 50])
@pytest.mark.parametrize("epsilon", [5e-324, 1e-60, 1e-38, 1.0, 100.0])
def test_with_a_prior_every_ratio_of_the_weights_is_safe(epsilon: float, categories: int) -> None:
    # For j of the values: under itself, under another member, under a value outside.
    truth = RRWithPrior(epsilon, 50)._truth_weights[categories - 1]
    own, other, outside = WHOLE - truth + categories * truth, WHOLE - truth, WHOLE
    with mpmath.workdps(800):
        if categories > 1:
            assert other <= outside <= own <= other * power(epsilon)
        else:  # the report is constant: the coin is tossed and decides nothing
            assert own == outside


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_probabilities_are_the_theorems(epsilon: float) -> None:
    for response in responses(epsilon):
        categories, size = size_of(response)
        with mpmath.workdps(200):
            bottom = size * power(epsilon) + categories - size
            keep = size * power(epsilon) / bottom
            held = float(mpmath.log(keep / math.comb(categories - 1, size - 1)))
            other = float(mpmath.log((1 - keep) / math.comb(categories - 1, size)))
            truth = float(size * (power(epsilon) - 1) / bottom)
        # The report of the first values, under the first and under the last of all.
        report = (1 << size) - 1 if isinstance(response, SubsetSelection) else 0
        assert response.log_prob(report, 0) == pytest.approx(held, abs=1e-12)
        assert response.log_prob(report, categories - 1) == pytest.approx(other, abs=1e-12)
        assert response.keep_probability == pytest.approx(float(keep), rel=1e-14)
        if not isinstance(response, BinaryResponse):
            assert response.truth == pytest.approx(truth, rel=1e-14)
        if isinstance(response, SubsetSelection):
            found = np.log(response.likelihood([report])[0, [0, -1]])
            assert found == pytest.approx([held, other], abs=1e-12)


def test_the_figure_of_the_literature() -> None:
    assert 1 - KaryResponse(1.0, 10).keep_probability == pytest.approx(0.7680, abs=5e-5)
    response = KaryResponse(1.0, 4)
    np.testing.assert_array_equal(response.transition(), response.likelihood(range(4)).T)


# The samplers.


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 2.0, 6.0, 10.0])
def test_reports_of_bits_follow_the_law(epsilon: float) -> None:
    response, rng = BinaryResponse(epsilon), RandomSource.seeded(2)
    flip = response._flip_weight / WHOLE
    values = np.arange(400_000) % 2
    reports = response.randomize_array(values, rng)
    single = np.array([response.randomize(value % 2, rng) for value in range(40_000)])
    for value, drawn in itertools.product((0, 1), (reports, single)):
        flips = int((drawn[value::2] != value).sum())
        assert_follows([flips, len(drawn) // 2 - flips], [flip, 1 - flip])


@pytest.mark.parametrize(
    "response", [BinaryResponse(1.0), KaryResponse(1.0, 2), SubsetSelection(1.0, 3, 2)]
)
def test_entries_of_an_array_that_cannot_be_read_are_answered_uniformly(response: Response) -> None:
    reports = response.randomize_array(np.full(9_000, -1), RandomSource.seeded(1))
    seen, counts = np.unique(reports, return_counts=True)
    assert len(seen) == size_of(response)[0]
    assert_follows(counts.tolist(), [1 / len(seen)] * len(seen))


def test_reports_of_one_array_are_independent() -> None:
    response = BinaryResponse(0.5)
    flips = response.randomize_array(np.zeros(200_000, dtype=bool), RandomSource.seeded(3))
    flip = response._flip_weight / WHOLE
    both = int((flips[:-1:2] & flips[1::2]).sum())
    assert_follows([both, 100_000 - both], [flip**2, 1 - flip**2])


@pytest.mark.parametrize("epsilon", [1e-6, 0.5, 7.0, 50.0, 100.0])
def test_ties_of_the_first_64_bits_are_settled_by_the_rest(epsilon: float) -> None:
    response = BinaryResponse(epsilon)
    head, tail = divmod(response._flip_weight, 1 << 192)
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
    source = Scripted([first for first, _, _ in draws], tails)
    reports = response.randomize_array(np.zeros((len(draws), 1), dtype=np.int8), source)
    assert reports.tolist() == [[int(flip)] for _, _, flip in draws]
    assert (source.numbers, set(source.asked)) == ([], {192})
    for first, rest, flip in draws:  # the scalar sampler draws head and tail at once
        single = Scripted(numbers=[(first << 192) + (2**192 - 1 if rest is None else rest)])
        assert response.randomize(1, single) == 1 - int(flip)
        assert single.asked == [256]


def test_each_coin_has_ties_of_its_own() -> None:
    weights = [(5 << 192) + 7, 9 << 192]
    draws = [(4, 0), (5, 0), (5, 0), (6, 0), (8, 1), (9, 1), (2**64 - 1, 1)]
    source = Scripted([head for head, _ in draws], [6, 7, 0])
    fell = toss(weights, np.array([coin for _, coin in draws]), source)
    # two ties of the first coin: 6 < 7 and not 7 < 7; one of the second: not 0 < 0
    assert fell.tolist() == [True, True, False, False, True, False, False]
    assert (source.numbers, set(source.asked)) == ([], {192})


CERTAIN = (BinaryResponse(100.0), KaryResponse(100.0, 10), SubsetSelection(100.0, 10, 1))


@pytest.mark.parametrize("response", CERTAIN)
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int64, np.uint64])
def test_shape_and_order_are_kept_and_values_too(response: Response, dtype: type) -> None:
    for shape in ((), (0,), (7,), (2, 3), (2, 0, 3), (40_000, 6)):
        whole = (np.arange(math.prod(shape)).reshape(shape) % 3 == 0).astype(dtype)
        values = whole.T[::2] if whole.ndim == 2 else whole
        before = whole.copy()
        reports = response.randomize_array(values, RandomSource.seeded(5))
        assert reports.dtype == (np.uint8 if isinstance(response, BinaryResponse) else np.int64)
        told = reports >> 1 if isinstance(response, SubsetSelection) else reports
        np.testing.assert_array_equal(told, values)
        np.testing.assert_array_equal(whole, before)


def test_sets_of_one_are_kary_response_draw_by_draw() -> None:
    values = np.arange(5_000) % 10
    reports = SubsetSelection(0.7, 10, 1).randomize_array(values, RandomSource.seeded(4))
    alike = KaryResponse(0.7, 10).randomize_array(values, RandomSource.seeded(4))
    np.testing.assert_array_equal(reports, 1 << alike)
    counts = np.bincount(alike)
    estimates = SubsetSelection(0.7, 10, 1).estimate(counts, 5_000)
    np.testing.assert_allclose(KaryResponse(0.7, 10).estimate(counts), estimates)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_every_value_takes_the_same_draws(size: int) -> None:
    left = set()
    for value in range(10):
        source = RandomSource.seeded(9)
        SubsetSelection(1.0, 10, size).randomize_array(np.full(100, value), source)
        left.add(source.random_bytes(16))
    assert len(left) == 1


def test_a_report_of_the_most_categories_is_no_negative_number() -> None:
    mechanism, rng = SubsetSelection(100.0, 62, 31), RandomSource.seeded(3)
    values = np.arange(6_200) % 62
    held = mechanism.members(mechanism.randomize_array(values, rng))
    assert (held.sum(axis=1) == 31).all()
    assert held[np.arange(6_200), values].all()
    # Each other is there with 30 / 61: five deviations of its mean over 6,100 reports.
    shares = (held.sum(axis=0) - 100) / 6_100
    assert np.abs(shares - 30 / 61).max() < 5 * 0.5 / math.sqrt(6_100)


# The size of sets.


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("epsilon", [1e-4, 1.5, 20.0])
def test_what_a_report_tells_is_the_sum_over_its_law(epsilon: float, size: int) -> None:
    mechanism = SubsetSelection(epsilon, 5, size)
    terms = []
    with mpmath.workdps(60):
        keep = size * power(epsilon) / (size * power(epsilon) + 5 - size)
        for report, value in itertools.product(itertools.combinations(range(5), size), range(5)):
            held = value in report
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
    chosen = SubsetSelection(1.5, 10)
    assert chosen == SubsetSelection(1.5, 10, 3)
    assert (chosen.size, chosen.law_terms, chosen.report_end) == (3, (3,), 1024)


@pytest.mark.parametrize("categories", [2, 5, 10, 33, 62])
@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 1.0, 2.0, 5.0])
def test_no_size_tells_more_than_the_best(epsilon: float, categories: int) -> None:
    best = SubsetSelection(epsilon, categories)
    told = [mutual_information(epsilon, categories, size) for size in range(1, categories)]
    assert best.mutual_information == max(told)
    gain = math.expm1(epsilon)
    assert abs(best.size - categories * (epsilon * (gain + 1) - gain) / gain**2) < 1


# The estimates.


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 4.0, 10.0])
def test_mean_and_deviation_by_the_exact_law(epsilon: float) -> None:
    response, true_ones, total = BinaryResponse(epsilon), 4, 9
    flip = response._flip_weight / WHOLE

    def binomial(n: int, p: float) -> NDArray[np.float64]:
        return np.array([math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(n + 1)])

    law = np.convolve(binomial(true_ones, 1 - flip), binomial(total - true_ones, flip))
    estimates = np.array([response.estimate(ones, total) for ones in range(total + 1)])
    mean = float(law @ estimates)
    assert mean == pytest.approx(true_ones, abs=1e-8 / math.tanh(epsilon / 2))
    deviation = math.sqrt(float(law @ (estimates - mean) ** 2))
    assert deviation == pytest.approx(response.standard_deviation(total))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 3.0, 100.0])
def test_the_estimates_of_categories_are_unbiased(epsilon: float, size: int) -> None:
    # They are linear, so the mean is the sum over the law of one report.
    response = SubsetSelection(epsilon, 4, size)
    reports = [report for report in range(16) if report.bit_count() == size]
    told = [response.estimate(one.astype(int), 1) for one in response.members(reports)]
    np.testing.assert_allclose(np.sum(told, axis=1), 1.0)
    for value in range(4):
        chances = np.exp([response.log_prob(one, value) for one in reports])
        found = chances @ np.array(told)
        np.testing.assert_allclose(found, np.eye(4)[value], atol=1e-12 / math.tanh(epsilon))
