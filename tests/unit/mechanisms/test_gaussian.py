"""The Gaussian mechanism, its curve and its noise: exact, met and tight."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from flower_ldp.mechanisms import Gaussian, RandomSource, integer_noise
from flower_ldp.mechanisms.gaussian import (
    classical_deviation,
    gaussian_delta,
    gaussian_epsilon,
    largest_shift,
    squared_length,
)
from flower_ldp.mechanisms.integer_noise import DEVIATION_BITS, LARGEST, VARIATION_BITS, normal
from tests.extras import extra
from tests.statistical.follows import assert_follows

dp_accounting = extra("dp_accounting")
mpmath = extra("mpmath")
pld = extra("dp_accounting.pld")
stats = extra("scipy.stats")

FAILURE = 1e-6
EPSILONS = (1e-3, 0.1, 1.0, 8.0, 50.0, 100.0)
DELTAS = (1e-18, 1e-9, 1e-5, 1e-2, 0.5)
CORNERS = ((1e-3, 1e-18), (1e-3, 0.5), (1.0, 1e-5), (100.0, 1e-18), (100.0, 0.5))
TINY = (1e-300, 1e-14, 1e-12, 3e-10, 3e-9, 1e-7)


def by_integral(epsilon: float, shift: float) -> mpmath.mpf:
    """Integrate (p - e^epsilon q)_+ for p, q normal at distance ``shift``."""
    e, m = mpmath.mpf(epsilon), mpmath.mpf(shift)
    start = e / m + m / 2  # where p = e^epsilon q, with q at 0 and p at m
    return mpmath.quad(
        lambda t: mpmath.npdf(t, m) - mpmath.exp(e) * mpmath.npdf(t),
        [start + i * i * mpmath.mpf("0.1") for i in range(14)] + [mpmath.inf],
    )


def in_60_digits(epsilon: float, shift: float) -> mpmath.mpf:
    """The curve as it is written, where e^epsilon has hundreds of millions of digits too."""
    e, m = mpmath.mpf(epsilon), mpmath.mpf(shift)
    return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


SETTINGS = [(0.1, 1e-5), (1.0, 1e-9), (8.0, 1e-6), (50.0, 0.01), (100.0, 0.5)]


@pytest.mark.parametrize(("epsilon", "delta"), [*SETTINGS, (1e-3, 1e-18), (100.0, 1e-18)])
def test_shift_has_the_stated_delta(epsilon: float, delta: float) -> None:
    mechanism = Gaussian(epsilon, delta)
    with mpmath.workdps(60):
        true = in_60_digits(epsilon, mpmath.mpf(2 * mechanism.radius) / 2**33)
        sampler = (1 + mpmath.exp(epsilon)) * (2**32 - 1) * mpmath.mpf(2) ** -240
        loss = 1e-3 if mechanism.radius < 2**20 else 3e-6
        assert delta * (1 - loss) <= true + sampler <= delta
    assert 70 < mechanism.largest <= 127  # a report fits in a byte


@pytest.mark.parametrize(("epsilon", "delta"), SETTINGS)
def test_enumerated_reports_meet_delta_and_are_nearly_tight(epsilon: float, delta: float) -> None:
    """Sum of (P - e^epsilon P')_+ over all reports, for the inputs furthest apart."""
    mechanism = Gaussian(epsilon, delta, clip_norm=2.0)
    reports = [np.array([y], dtype=np.int8) for y in range(-127, 128)]
    ends = np.array([[2.0], [-2.0]])
    tables = np.array([[mechanism.log_prob(y, u) for y in reports] for u in ends])
    np.testing.assert_allclose(np.exp(tables).sum(axis=1), 1.0, atol=1e-12)
    for p, q in itertools.permutations(tables):
        found = math.fsum(np.maximum(0.0, np.exp(p) - np.exp(epsilon + q)))
        assert found <= delta * (1 + 1e-9)
        assert found >= 0.5 * delta  # the coarse report loses a little; nothing else does


def test_enumeration_in_two_dimensions() -> None:
    mechanism = Gaussian(1.0, 1e-2)
    inputs = [np.array([math.cos(t), math.sin(t)]) for t in (0.3, 0.3 + math.pi)]
    ys = [np.array([y], dtype=np.int8) for y in range(-80, 81)]

    def marginal(x: float) -> np.ndarray:
        # clipped entries are those of the whole vector, so the marginals are exact
        return np.array([mechanism.log_prob(y, np.array([x])) for y in ys])

    joint = [np.add.outer(marginal(u[0]), marginal(u[1])) for u in inputs]
    found = np.maximum(0.0, np.exp(joint[0]) - np.exp(1.0 + joint[1])).sum()
    assert 0.9e-2 < found <= 1e-2


VECTORS = [
    np.random.default_rng(1).normal(size=1_000),
    np.random.default_rng(2).normal(size=1_000).astype(np.float32) * np.float32(1e37),
    np.random.default_rng(3).normal(size=1_000) * 1e300,
    np.random.default_rng(3).normal(size=1_000) * 1e-200,
    np.random.default_rng(4).normal(size=10).astype(np.float16),
    np.eye(1, 70)[0],
    np.full(3, 5e-324),
    np.full(20_000, 1.0),
    np.array([1.7976931348623157e308, -1.7976931348623157e308]),
]


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
@pytest.mark.parametrize("clip_norm", [1e-30, 0.7, 1.0, 1e30])
def test_clipped_is_in_the_ball_exactly_and_loses_nothing_else(
    vector: np.ndarray, clip_norm: float
) -> None:
    mechanism = Gaussian(2.0, 1e-5, clip_norm)
    x = mechanism.clipped(vector)
    assert sum(v * v for v in x.tolist()) <= mechanism.radius**2
    length = mpmath.norm([mpmath.mpf(float(v)) for v in vector])
    factor = mechanism.radius / max(length, clip_norm)
    target = [float(mpmath.mpf(float(v)) * factor) for v in vector]
    np.testing.assert_allclose(x, target, atol=1.001, rtol=1e-12)


@pytest.mark.parametrize("entry", [3.0, 0.0])
def test_reports_follow_log_prob(entry: float) -> None:
    mechanism, count, ys = Gaussian(50.0, 0.01), 200_000, np.arange(-16, 17)
    # each entry of the clipped vector is x; all entries are equal, and zero is noise alone
    vector = np.full(count, entry)
    x = float(mechanism.clipped(vector)[0]) / mechanism.radius
    report = mechanism.randomize(vector, RandomSource.seeded(3))
    law = np.exp([mechanism.log_prob(np.array([y], np.int8), np.array([x])) for y in ys])
    counts = np.bincount(report.astype(int) + 128, minlength=256)[ys + 128]
    assert_follows([*counts, count - counts.sum()], [*law, 1 - law.sum()])


def test_estimate_is_unbiased_with_the_stated_deviation() -> None:
    mechanism = Gaussian(8.0, 1e-5, clip_norm=0.5)
    rng, reports = RandomSource.seeded(4), 300
    vector = np.linspace(-0.01, 0.01, 400)
    total = sum(mechanism.randomize(vector, rng).astype(np.int64) for _ in range(reports))
    errors = (mechanism.estimate(total, reports) - vector) * math.sqrt(reports)
    errors /= mechanism.deviation
    assert stats.kstest(errors, "norm").pvalue > FAILURE
    assert abs(errors.mean()) < 5 / math.sqrt(400)


@pytest.mark.parametrize("dimension", [1, 4, 100, 10_000])
def test_no_report_is_much_longer_than_an_honest_one(dimension: int) -> None:
    """A report of the largest entries was 19 to 24 times as long as an honest one."""
    for epsilon, delta in SETTINGS:
        mechanism = Gaussian(epsilon, delta)
        longest = mechanism.longest(dimension)
        noise = (longest - mechanism.radius / 2**31 - math.sqrt(dimension) / 2) / 4
        assert stats.chi2.logsf(noise**2, dimension) < -64
        update = np.full(dimension, 1e9)
        report = mechanism.randomize(update, RandomSource.seeded(dimension)).astype(np.float64)
        honest = float(np.linalg.norm(report))
        assert honest < longest
        if dimension == 10_000:
            assert longest < 1.3 * honest
            assert mechanism.largest * 100.0 > 17 * honest


def test_squared_length_is_exact() -> None:
    rng = np.random.default_rng(0)
    vector = rng.integers(-(2**37), 2**37, size=600_001)
    assert squared_length(vector) == sum(v * v for v in vector.tolist())


def test_the_published_setting() -> None:
    mechanism = Gaussian(50.0, 0.01, 1.0)
    assert gaussian_delta(50.0, mechanism.shift) == pytest.approx(0.01, rel=1e-5)
    assert mechanism.deviation == pytest.approx(0.25, rel=0.01)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_the_shift_of_an_epsilon_meets_delta_and_is_tight(epsilon: float, delta: float) -> None:
    shift = largest_shift(epsilon, delta)
    with mpmath.workdps(60):
        found = in_60_digits(epsilon, shift)
        assert delta * (1 - 1e-7) <= found <= delta * (1 + 1e-7)
        if (epsilon, delta) in CORNERS:
            assert abs(by_integral(epsilon, shift) / found - 1) < 1e-9


@pytest.mark.parametrize("shift", [*TINY, 1e-3, 0.1, 1.0, 16.0, 60.0, 41_281.33, 1e9])
@pytest.mark.parametrize("delta", [1e-18, 1e-16, 1e-14, 1e-9, 1e-5, 0.5])
def test_the_epsilon_of_any_shift_meets_delta_and_is_tight(shift: float, delta: float) -> None:
    epsilon = gaussian_epsilon(shift, delta)
    with mpmath.workdps(60):
        if epsilon == 0.0:
            assert 2 * mpmath.ncdf(mpmath.mpf(shift) / 2) - 1 <= delta
        elif shift in TINY:
            assert in_60_digits(epsilon, shift) <= delta
            assert epsilon < 1e-6
        else:
            # A double of this size is this far from its neighbours.
            room = 2 * math.ulp(epsilon)
            assert in_60_digits(epsilon + room, shift) <= delta
            assert in_60_digits(epsilon * (1 - 1e-6), shift) >= delta * (1 - 1e-5)


@pytest.mark.parametrize("delta", [3.8e-13, 8e-4, 0.25])
def test_the_epsilon_of_a_huge_shift_is_a_bound_before_roundings_too(delta: float) -> None:
    for shift in (123_615_639_968.35669, 9.194071526233382e16, 1.2818111744405397e37, 1e60):
        found, exact = Fraction(gaussian_epsilon(shift, delta)), Fraction(shift)
        # Beside the tail the other term is nothing; a float of it may be as large as it likes.
        assert math.erfc(min(40.0, float(found / exact - exact / 2)) * math.sqrt(0.5)) / 2 <= delta


def test_agrees_with_dp_accounting() -> None:
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_accounting.GaussianDpEvent(1 / 1.7))
    assert gaussian_delta(2.0, 1.7) == pytest.approx(accountant.get_delta(2.0), rel=1e-3)


def test_the_textbook_formula_fails_at_large_epsilon() -> None:
    settings = ((0.5, 1e-5), (50.0, 1e-5), (50.0, 0.01))
    found = [gaussian_delta(eps, 1 / classical_deviation(eps, delta)) for eps, delta in settings]
    assert found[0] < 1e-5
    assert found[1] == pytest.approx(0.586, abs=1e-3)
    assert 1 - found[2] == pytest.approx(5.8e-7, rel=0.02)
    assert (gaussian_delta(1.0, 1e-3), gaussian_delta(1.0, 1e3)) == (0.0, 1.0)


# Exact normal noise: its table against high precision, its chain and its law against theirs.

S = 512


def test_total_variation_of_the_table_is_below_the_stated_one() -> None:
    """Twice over: what is lost by the table is at most doubled by keeping only some draws."""
    weights = integer_noise.coarse_law().weights
    with mpmath.workdps(120):
        # theta function: the sum over all k, of which those past the table are the tail
        true = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * S**2)) for k in range(len(weights) + 3000)]
        total = mpmath.fsum(true)
        built = [mpmath.ldexp(weight, -256) for weight in weights] + [0] * 3000
        distance = mpmath.fsum(abs(w - t / total) for w, t in zip(built, true, strict=True)) / 2
        assert 0 < distance < mpmath.mpf(2) ** (VARIATION_BITS - 2)


@pytest.mark.parametrize(("coarse", "fine"), [(9_000, 0xFFFFFF), (9_000, 0x123456), (600, 1)])
def test_a_pair_is_kept_with_probability_exp_minus_gamma(coarse: int, fine: int) -> None:
    rng = RandomSource.seeded(coarse + fine)
    count = 75_000  # sees a share that is off by 0.005
    w = (fine + 0.5) / 2**24
    gamma = w * (2 * coarse + w) / (2 * S**2)
    first = rng.integers(1 << 39, count).tolist()
    kept = sum(integer_noise.is_kept(coarse, fine, v, rng) for v in first)
    assert stats.binomtest(kept, count, math.exp(-gamma)).pvalue > FAILURE


def test_a_chain_that_has_begun_ends_even_with_probability_one_minus_exp_minus_v() -> None:
    """Given V_1 = v below gamma, an even number of members means an odd number after it."""
    rng = RandomSource.seeded(12)
    first = int(0.03 * 2**39)
    count = 50_000
    kept = sum(integer_noise.is_kept(9_000, 0xFFFFFF, first, rng) for _ in range(count))
    assert stats.binomtest(kept, count, -math.expm1(-0.03)).pvalue > FAILURE


def test_what_the_first_bits_decide_is_what_all_bits_decide() -> None:
    """A draw that the fast path keeps unseen is one whose chain is empty for every ending."""
    for coarse, fine in ((0, 0), (1, 77), (512, 1 << 23), (9_400, (1 << 24) - 1)):
        gamma = (fine + 1) * ((coarse << 25) + fine + 1)
        threshold = gamma >> 28
        # V_1 >= (threshold + 1) / 2^39 > gamma, even with all further bits of w set
        assert (threshold + 1) << 28 >= gamma
        assert integer_noise.is_kept(coarse, fine, threshold + 1, RandomSource.seeded(1))


def test_law_tails_and_cells_of_the_draws() -> None:
    draws = normal(2_000_000, RandomSource.seeded(5))
    edges = stats.norm.ppf(np.linspace(0, 1, 201)[1:-1])
    counts = np.bincount(np.searchsorted(edges, draws / 2.0**DEVIATION_BITS), minlength=200)
    assert stats.chisquare(counts).pvalue > FAILURE
    beyond = int((np.abs(draws) > 4 << DEVIATION_BITS).sum())
    assert stats.binomtest(beyond, len(draws), 2 * stats.norm.sf(4)).pvalue > FAILURE
    assert np.abs(draws).max() <= LARGEST
    # within a cell of the table: the first bits of w near the middle of the law are flat
    cells = (draws >> 20) & 15
    assert stats.chisquare(np.bincount(cells, minlength=16)).pvalue > FAILURE
    low = draws & 255
    assert stats.chisquare(np.bincount(low, minlength=256)).pvalue > FAILURE
    for size in (0, 1, 3, 40_001):
        noise = normal(size, RandomSource.seeded(2))
        assert (noise.shape, noise.dtype) == ((size,), np.int64)
