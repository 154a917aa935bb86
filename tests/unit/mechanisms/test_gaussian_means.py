"""Normal noise on many columns' sums: delta is met, and nearly used up."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from flower_ldp.mechanisms import GaussianMeans, RandomSource, gaussian
from flower_ldp.mechanisms.integer_noise import LARGEST
from flower_ldp.privacy import as_fraction
from tests.extras import extra
from tests.statistical.follows import assert_follows

mpmath = extra("mpmath")
stats = extra("scipy.stats")

FAILURE = 1e-6
SETTINGS = [(0.2, 1e-5), (1.0, 1e-2), (8.0, 1e-6), (100.0, 0.5), (1e-3, 1e-18), (100.0, 1e-18)]
WRONG: list[Any] = [None, "x", math.nan, [1.0], {}, 1j, np.zeros(2), "1.0"]


def columns_of(count: int) -> list[tuple[float, float]]:
    return [(0.0, 1.0)] * count


def curve(epsilon: float, shift: Any) -> Any:
    """The curve as it is written, in many digits."""
    e, m = mpmath.mpf(epsilon), mpmath.mpf(shift)
    return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize(
    ("epsilon", "delta", "columns"),
    [
        *((*one, columns) for one in SETTINGS for columns in (1, 30, 1_000)),
        *((*one, 1 << 20) for one in SETTINGS[::3]),
    ],
)
def test_two_examples_at_opposite_corners_meet_delta(
    epsilon: float, delta: float, columns: int
) -> None:
    """With the sampler's distance from the law of as many entries, by integers and 80 digits."""
    steps = GaussianMeans(epsilon, delta, 1, columns_of(columns)).steps
    with mpmath.workdps(80):
        length = mpmath.sqrt(columns) * steps / mpmath.mpf(2) ** 33
        sampler = (1 + mpmath.exp(epsilon)) * columns * mpmath.mpf(2) ** -240
        assert curve(epsilon, length) + sampler <= delta
        wider = mpmath.sqrt(columns) * (steps + 2) / mpmath.mpf(2) ** 33
        # At the smallest delta a twentieth is the sampler's, of four billion entries.
        assert curve(epsilon, wider) >= delta * (0.999 if delta > 1e-18 else 0.9)
    assert steps >= 1_000
    (event,) = GaussianMeans(epsilon, delta, 1, columns_of(columns)).events()
    if event.rho is None:
        assert columns * steps**2 > 49 << 66
        return
    assert 0 <= as_fraction(event.rho) * 2**67 / (columns * steps**2) - 1 < Fraction(1, 10**15)


@functools.cache
def law(mechanism: GaussianMeans, value: object) -> np.ndarray:
    """Return P(y) of one column's report about one example, by its log_prob."""
    reach = -(-(mechanism.steps + LARGEST) >> 29) + 2
    one = GaussianMeans(mechanism.epsilon, mechanism.delta, 1)
    object.__setattr__(one, "steps", mechanism.steps)  # the same grid, a column by itself
    reports = np.arange(-reach, reach + 1)
    return np.exp([one.log_prob(reports[i : i + 1], [[value]]) for i in range(len(reports))])


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize(("epsilon", "delta"), SETTINGS[:4])
def test_enumerated_reports_meet_delta_and_nearly_use_it(
    epsilon: float, delta: float, columns: int
) -> None:
    """Sum of (P - e^epsilon P')_+ over all reports, for an example at two corners of the box."""
    mechanism = GaussianMeans(epsilon, delta, 1, ((0.0, 1.0),) * columns)
    places = [(0.0,) * columns, (1.0,) * columns, (0.3,) * columns, (0.0, 1.0)[:columns]]
    places += [(math.nan,) * columns, (math.inf, -math.inf)[:columns]]
    tables = [functools.reduce(np.multiply.outer, [law(mechanism, v) for v in p]) for p in places]
    assert all(abs(table.sum() - 1) < 1e-12 for table in tables)
    found = {
        (i, j): np.maximum(0.0, p - math.exp(epsilon) * q).sum()
        for (i, p), (j, q) in itertools.permutations(enumerate(tables), 2)
    }
    assert max(found.values()) <= delta
    assert min(found[0, 1], found[1, 0]) >= 0.98 * delta  # what the report's rounding hides
    assert found[0, 4] == 0.0  # what is no number is the lower bound


@pytest.mark.parametrize("columns", [1, 3])
def test_log_prob_is_the_normal_law_of_each_column(columns: int) -> None:
    mechanism = GaussianMeans(1.0, 1e-3, 4, [(-1.0, 3.0)] * columns)
    values = [[3.0, 1.0, -7.0, None]] * columns
    total = mechanism.steps + mechanism.steps // 2
    for y in (-20, 0, 3, 9, 40):
        ends = (np.array([y - 0.5, y + 0.5]) * 2**29 - total) / 2**33
        wanted = math.log(np.diff(stats.norm.cdf(ends))[0]) * columns
        assert mechanism.log_prob(np.full(columns, y), values) == pytest.approx(wanted, abs=1e-6)


def test_reports_follow_the_normal_law() -> None:
    columns = 40_000
    mechanism = GaussianMeans(50.0, 0.01, 3, columns_of(columns))
    total = 2 * mechanism.steps
    report = mechanism.randomize([[1.0, 0.0, 1.0]] * columns, RandomSource.seeded(7))
    assert report.dtype == np.int64
    ys = np.arange(-70, 71)
    edges = (np.append(ys, ys[-1] + 1) - 0.5) * 2**29 - total
    chances = np.diff(stats.norm.cdf(edges / 2**33))
    counts = np.bincount(report + 1_000, minlength=2_000)[ys + 1_000]
    assert_follows([*counts, columns - counts.sum()], [*chances, 1 - chances.sum()])
    assert abs(np.corrcoef(report[::2], report[1::2])[0, 1]) < 5 / math.sqrt(columns / 2)


def test_sums_are_those_of_fractions_at_production_size() -> None:
    """A plain oracle: exact shares, rounded by Fraction; values of every kind."""
    rng = np.random.default_rng(5)
    bounds = [(float(low), float(low + width)) for low, width in rng.normal(0, 9, (30, 2)) ** 2]
    mechanism = GaussianMeans(0.2, 1e-5, 1_200, bounds)
    columns: list[list[Any]] = [
        [*rng.normal(low, 2 * (high - low), 1_190).tolist(), *WRONG, math.inf, -math.inf]
        for low, high in bounds
    ]
    found = mechanism.total(columns)
    for total, column, (low, high) in zip(found, columns, bounds, strict=True):
        wanted = mechanism.steps  # of the infinite one
        for value in column[:1_190]:
            inside = Fraction(min(max(value, low), high)) - Fraction(low)
            wanted += round(mechanism.steps * inside / (Fraction(high) - Fraction(low)))
        assert abs(total - wanted) <= 2  # ties that a double cannot see


def test_no_example_moves_another_ones_integers() -> None:
    mechanism = GaussianMeans(0.2, 1e-5, 4, [(0.0, 1.0), (-1.0, 1.0)])
    alone = [mechanism.total([[one], [one]]) for one in (0.1, 0.7, None, math.inf)]
    together = mechanism.total([[0.1, 0.7, None, math.inf]] * 2)
    assert together == np.sum(alone, axis=0).tolist()
    assert all(0 <= one <= mechanism.steps for pair in alone for one in pair)


def test_sums_longer_than_64_bits_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = GaussianMeans(100.0, 0.5, 1, columns_of(2))
    total = 10**12 * mechanism.steps
    assert total > 2**63
    monkeypatch.setattr(GaussianMeans, "total", lambda self, columns: [total, -total])
    report = mechanism.randomize([[], []], RandomSource.seeded(1))
    assert mechanism.estimate(report) == pytest.approx([1e12, -1e12], rel=1e-12)


def test_bounds_as_wide_and_as_narrow_as_doubles_are_estimated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gaussian, "normal", lambda size, rng: np.zeros(size, np.int64))
    bounds = [(-8e307, 8e307), (0.0, 5e-324), (1.0, 1.0 + 2**-52), (-3e-308, 0.0)]
    mechanism = GaussianMeans(0.5, 1e-3, 2, bounds)
    columns = [[8e307, -8e307], [1.0, -1.0], [9.0, 1.0], [0.0, math.nan]]
    found = mechanism.estimate(mechanism.randomize(columns, RandomSource.seeded(1)))
    shares = (found - [low for low, _ in bounds]) / [high - low for low, high in bounds]
    assert np.isfinite(found).all()
    assert shares[[0, 3]] == pytest.approx([0.5, 0.5], abs=0.2)
    assert (shares[[1, 2]] >= 0).all()


@pytest.mark.parametrize("columns", [1, 5, 30])
def test_the_mean_is_unbiased_and_as_wide_as_it_says(columns: int) -> None:
    mechanism = GaussianMeans(0.2, 1e-5, 5, [(-1.0, 3.0)] * columns)
    values = [[3.0] * 2 + [-1.0] * 3] * columns
    rng, draws = RandomSource.seeded(5), 3_000 // columns
    found = np.array([mechanism.estimate(mechanism.randomize(values, rng)) for _ in range(draws)])
    errors = (found.ravel() - 0.6) / (mechanism.deviation * 4.0 / 5)
    assert stats.kstest(errors, "norm").pvalue > FAILURE


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"bounds": []}, "columns must be an integer in"),
        ({"bounds": [(0.0, 1.0)] * ((1 << 20) + 1)}, "columns must be an integer in"),
        ({"bounds": [(0.0, 1.0), (1.0, 1.0)]}, "lower must be below upper"),
        ({"bounds": [(0.0, math.nan)]}, "lower must be below upper"),
        ({"delta": 0.25}, "delta must be below one over examples"),
        ({"delta": 1e-19}, "delta must be in"),
        ({"delta": math.nan}, "delta must be in"),
        ({"epsilon": 9e-4}, "epsilon must be in"),
        ({"examples": 0}, "examples must be an integer in"),
    ],
)
def test_what_is_no_setting_is_refused(changes: dict[str, Any], text: str) -> None:
    given = {"epsilon": 1.0, "delta": 1e-5, "examples": 4, "bounds": [(0.0, 1.0)], **changes}
    with pytest.raises(ValueError, match=text):
        GaussianMeans(**given)


def test_other_numbers_of_columns_are_no_data_set() -> None:
    mechanism = GaussianMeans(1.0, 1e-5, 4, columns_of(2))
    for columns in ([], [[1.0]], [[1.0]] * 3):
        with pytest.raises(ValueError, match="zip"):
            mechanism.randomize(columns, RandomSource.seeded(1))
