"""The Gaussian mechanism: its ball is exact, its epsilon and delta are met and are tight."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from flower_ldp.mechanisms import Gaussian, RandomSource
from flower_ldp.mechanisms.gaussian import gaussian_delta, squared_length
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.extras import extra

mpmath = extra("mpmath")
stats = extra("scipy.stats")

FAILURE = 1e-6
SETTINGS = [(0.1, 1e-5), (1.0, 1e-9), (8.0, 1e-6), (50.0, 0.01), (100.0, 0.5)]


@pytest.mark.parametrize(("epsilon", "delta"), [*SETTINGS, (1e-3, 1e-18), (100.0, 1e-18)])
def test_shift_has_the_stated_delta(epsilon: float, delta: float) -> None:
    mechanism = Gaussian(epsilon, delta)
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(2 * mechanism.radius) / 2**33
        true = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        sampler = (1 + mpmath.exp(e)) * (2**32 - 1) * mpmath.mpf(2) ** -240
        assert true + sampler <= delta
        assert true + sampler >= delta * (
            1 - mpmath.mpf("1e-3" if mechanism.radius < 2**20 else "3e-6")
        )


@pytest.mark.parametrize(("epsilon", "delta"), SETTINGS)
def test_enumerated_reports_meet_delta_and_are_nearly_tight(epsilon: float, delta: float) -> None:
    """Sum of (P - e^epsilon P')_+ over all reports, for the inputs furthest apart."""
    mechanism = Gaussian(epsilon, delta, clip_norm=2.0)
    reports = [np.array([y], dtype=np.int8) for y in range(-127, 128)]
    tables = [
        np.array([mechanism.log_prob(y, np.array([u])) for y in reports]) for u in (2.0, -2.0)
    ]
    for table in tables:
        assert math.fsum(np.exp(table)) == pytest.approx(1.0, abs=1e-12)
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


def test_zero_is_safe_and_is_noise_alone() -> None:
    report = Gaussian(1.0, 1e-5).randomize(np.zeros(50_000, np.float32), RandomSource.seeded(1))
    assert report.std() == pytest.approx(math.sqrt(16 + 1 / 12), rel=0.02)
    assert abs(report.mean()) < 0.1


def test_reports_follow_log_prob() -> None:
    mechanism = Gaussian(50.0, 0.01)
    count = 200_000
    # each entry of the clipped vector is x; all entries are equal
    vector = np.full(count, 3.0)
    x = float(mechanism.clipped(vector)[0]) / mechanism.radius
    report = mechanism.randomize(vector, RandomSource.seeded(3))
    ys = np.arange(-16, 17)
    law = np.exp([mechanism.log_prob(np.array([y], np.int8), np.array([x])) for y in ys])
    counts = np.bincount(report.astype(int) + 128, minlength=256)[ys + 128]
    outside = count - counts.sum()
    observed = np.append(counts, outside)
    assert stats.chisquare(observed, np.append(law, 1 - law.sum()) * count).pvalue > FAILURE


def test_estimate_is_unbiased_with_the_stated_deviation() -> None:
    mechanism = Gaussian(8.0, 1e-5, clip_norm=0.5)
    rng = RandomSource.seeded(4)
    vector = np.linspace(-0.01, 0.01, 400)
    assert np.linalg.norm(vector) < 0.5
    reports = 300
    total = sum(mechanism.randomize(vector, rng).astype(np.int64) for _ in range(reports))
    errors = (
        (mechanism.estimate(total, reports) - vector) / mechanism.deviation * math.sqrt(reports)
    )
    assert stats.kstest(errors, "norm").pvalue > FAILURE
    assert abs(errors.mean()) < 5 / math.sqrt(400)


@pytest.mark.parametrize(("epsilon", "delta"), [*SETTINGS, (1e-3, 1e-18)])
def test_a_report_fits_in_a_byte(epsilon: float, delta: float) -> None:
    assert 70 < Gaussian(epsilon, delta).largest <= 127


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


def test_cost_and_published_setting() -> None:
    mechanism = Gaussian(50.0, 0.01, 1.0)
    assert mechanism.events() == (PrivacyEvent("gaussian", 50.0, 0.01, Unit.CLIENT),)
    assert gaussian_delta(50.0, mechanism.shift) == pytest.approx(0.01, rel=1e-5)
    assert mechanism.deviation == pytest.approx(0.25, rel=0.01)
