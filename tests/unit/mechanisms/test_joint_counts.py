"""Noise on tables of counts: sensitivity by enumeration, and both laws meet what they promise."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from flower_ldp.mechanisms import Gaussian, JointCounts, RandomSource
from flower_ldp.mechanisms.integer_noise import LARGEST
from flower_ldp.mechanisms.joint_counts import PlacedRows
from flower_ldp.privacy import as_fraction
from tests.extras import extra
from tests.statistical.follows import assert_follows

mpmath = extra("mpmath")
stats = extra("scipy.stats")
STEPS = 64
SETTINGS = [(0.2, 1e-5), (1.0, 1e-2), (8.0, 1e-6), (100.0, 0.5), (1e-3, 1e-18)]


def normal(epsilon: float, delta: float, cells: tuple[int, ...]) -> JointCounts:
    """Return the normal law also where it is not the better one."""
    found = JointCounts(epsilon, cells, delta)
    if not found.factor:
        distance = 2 * Gaussian(epsilon, delta).radius
        vars(found)["factor"] = math.isqrt(distance**2 // (2 * len(cells))) // STEPS
    return found


def one(*rows: tuple[int, ...]) -> PlacedRows:
    """Return the rows of one example."""
    return np.array(rows).reshape(len(rows), -1), np.zeros(len(rows), dtype=np.int64)


def all_examples(cells: tuple[int, ...], most: int) -> list[PlacedRows]:
    """Return every example of up to so many rows, none included."""
    rows = list(itertools.product(*map(range, cells)))
    found = [(np.empty((0, len(cells)), dtype=np.int64), np.empty(0, dtype=np.int64))]
    for size in range(1, most + 1):
        found += [one(*some) for some in itertools.combinations_with_replacement(rows, size)]
    return found


@pytest.mark.parametrize("cells", [(2,), (3,), (2, 3), (2, 2, 2), (1, 4)])
def test_no_two_examples_are_further_apart_than_the_sensitivity(cells: tuple[int, ...]) -> None:
    """All pairs of all examples of up to three rows, in L1 and in the square of L2."""
    mechanism = JointCounts(1.0, cells)
    totals = np.array([mechanism.total(rows) for rows in all_examples(cells, 3)])
    assert (totals >= 0).all()
    ends = np.cumsum(cells)[:-1]
    for table in np.split(totals, ends, axis=1):
        assert set(table.sum(axis=1).tolist()) == {0, STEPS}
    moved = np.abs(totals[:, None] - totals)
    farthest, squares = moved.sum(axis=2).max(), (moved**2).sum(axis=2).max()
    assert farthest <= mechanism.sensitivity == 2 * STEPS * len(cells)
    assert squares <= 2 * STEPS**2 * len(cells)
    if 1 not in cells:  # of which no row can leave its cell
        assert farthest == 2 * STEPS * len(cells)
        assert squares == 2 * STEPS**2 * len(cells)


def test_an_example_moves_nothing_of_the_others() -> None:
    """Totals of three examples are sums of totals of each, in every order of their rows."""
    mechanism, rng = JointCounts(1.0, (3, 4)), np.random.default_rng(0)
    for _ in range(200):
        owners = rng.integers(0, 3, 7)
        places = rng.integers(0, (3, 4), (7, 2))
        whole = mechanism.total((places, owners))
        apart = [mechanism.total((places[owners == o], owners[owners == o])) for o in range(3)]
        np.testing.assert_array_equal(whole, sum(apart))


@pytest.mark.parametrize("rows", range(1, 12))
def test_a_weight_is_shared_as_the_formula_says(rows: int) -> None:
    rng = np.random.default_rng(rows)
    column = rng.integers(0, 4, rows)
    counts = np.cumsum(np.bincount(column, minlength=4))
    wanted = np.diff([STEPS * int(c) // rows for c in counts], prepend=0)
    found = JointCounts(1.0, (4,)).total((column[:, None], np.full(rows, 7)))
    np.testing.assert_array_equal(found, wanted)
    assert np.abs(found - STEPS * np.bincount(column, minlength=4) / rows).max() < 1


@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 1.5, 1000.0])
@pytest.mark.parametrize("cells", [(2,), (2, 2)])
@pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.NoProtectionWarning")
def test_laplace_noise_meets_epsilon_and_uses_it(epsilon: float, cells: tuple[int, ...]) -> None:
    """All pairs of examples of up to two rows, at reports far on all sides and between."""
    mechanism = JointCounts(epsilon, cells)
    assert not mechanism.factor
    reports = itertools.product((-3 * STEPS, 20, 3 * STEPS), repeat=sum(cells))
    told = [np.array(report) for report in reports]
    others = one(*[(0,) * len(cells), (1,) * len(cells)])
    law = []
    for places, owners in all_examples(cells, 2):
        both = np.concatenate([places, others[0]]), np.concatenate([owners, others[1] + 1])
        law.append([mechanism.log_prob(report, both) for report in told])
    assert np.ptp(law, axis=0).max() == pytest.approx(epsilon, rel=1e-9)
    (event,) = mechanism.events()
    assert (event.epsilon, event.delta, event.rho) == (epsilon, 0.0, None)


def curve(epsilon: float, shift: object) -> object:
    e, m = mpmath.mpf(epsilon), mpmath.mpf(shift)
    return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize(("epsilon", "delta"), SETTINGS)
@pytest.mark.parametrize("tables", [1, 2, 100])
def test_normal_noise_meets_delta(epsilon: float, delta: float, tables: int) -> None:
    """By 80 digits, with the sampler's distance from the law for as many entries."""
    mechanism = normal(epsilon, delta, (4,) * tables)
    moved = 2 * tables * (mechanism.factor * STEPS) ** 2
    with mpmath.workdps(80):
        length = mpmath.sqrt(moved) / mpmath.mpf(2) ** 33
        sampler = (1 + mpmath.exp(epsilon)) * 4 * tables * mpmath.mpf(2) ** -240
        assert curve(epsilon, length) + sampler <= delta
        wider = mpmath.sqrt(2 * tables) * (mechanism.factor + 1) * STEPS / mpmath.mpf(2) ** 33
        assert curve(epsilon, wider) >= delta * (0.999 if delta > 1e-18 else 0.9)
    (event,) = mechanism.events()
    assert (event.epsilon, event.delta) == (epsilon, delta)
    if event.rho is None:
        assert moved > 49 << 66
        return
    assert 0 <= as_fraction(event.rho) * 2**67 / moved - 1 < Fraction(1, 10**15)


@functools.cache
def law(mechanism: JointCounts, count: int) -> np.ndarray:
    """Return P(y) of one cell's report of a count in steps."""
    cell = JointCounts(mechanism.epsilon, (1,), mechanism.delta)
    vars(cell)["factor"] = mechanism.factor
    vars(cell)["total"] = lambda rows: np.array([count])
    reach = (mechanism.factor * STEPS + LARGEST >> 29) + 2
    rows = one((0,))
    return np.exp([cell.log_prob(np.array([y]), rows) for y in range(-reach, reach + 1)])


@pytest.mark.parametrize(("epsilon", "delta"), SETTINGS[:3])
def test_enumerated_reports_of_normal_noise_meet_delta(epsilon: float, delta: float) -> None:
    """Sum of (P - e^epsilon P')+ over all reports of two cells, of all shares of one example."""
    mechanism = normal(epsilon, delta, (2,))
    totals = [(STEPS, 0), (0, STEPS), (STEPS // 2, STEPS // 2), (0, 0), (21, 43)]
    tables = [np.outer(*(law(mechanism, count) for count in pair)) for pair in totals]
    assert all(abs(table.sum() - 1) < 1e-11 for table in tables)
    found = {
        (i, j): np.maximum(0.0, p - math.exp(epsilon) * q).sum()
        for (i, p), (j, q) in itertools.permutations(enumerate(tables), 2)
    }
    assert max(found.values()) <= delta
    assert min(found[0, 1], found[1, 0]) >= 0.98 * delta  # what the report's rounding hides


@pytest.mark.parametrize(("epsilon", "delta", "cells"), [(2.0, 0.0, (1,)), (8.0, 1e-6, (1,) * 60)])
def test_the_sampler_follows_the_law(epsilon: float, delta: float, cells: tuple[int, ...]) -> None:
    mechanism, rng = JointCounts(epsilon, cells, delta), RandomSource.seeded(4)
    assert bool(mechanism.factor) == bool(delta)
    rows = np.zeros((3, len(cells)), dtype=np.int64), np.arange(3)
    draws = 1_980 // len(cells)
    found = np.concatenate([mechanism.randomize(rows, rng) for _ in range(draws)])
    deviation = mechanism.deviation * mechanism.unit_report
    away = (found - 3 * mechanism.unit_report) / deviation
    edges = np.array([-np.inf, -1.5, -0.7, -0.2, 0.2, 0.7, 1.5, np.inf])
    base = stats.norm if delta else stats.laplace(scale=1 / math.sqrt(2))
    seen = np.histogram(away, edges)[0]
    assert_follows(seen.tolist(), np.diff(base.cdf(edges)).tolist())
    spread = found.std()
    assert spread == pytest.approx(deviation, rel=0.1)
    assert mechanism.estimate(found).mean() == pytest.approx(3.0, abs=5 * mechanism.deviation / 44)
    assert (np.abs(found - 3 * mechanism.unit_report) <= mechanism.farthest + 1).all()


def test_the_smaller_deviation_decides_the_law() -> None:
    """At epsilon 0.2 and delta 1e-5, mu is 0.0613: sqrt(2 T) / mu is below 2 sqrt(2) T / 0.2."""
    deviations = {}
    for tables in range(1, 12):
        mechanism = JointCounts(0.2, (4,) * tables, 1e-5)
        laplace = JointCounts(0.2, (4,) * tables).deviation
        assert laplace == pytest.approx(2 * math.sqrt(2) * tables / 0.2, rel=1e-3)
        wanted = math.sqrt(2 * tables) / 0.0613
        deviations[tables] = (laplace, wanted)
        assert bool(mechanism.factor) == (wanted < laplace)
        assert mechanism.deviation == pytest.approx(min(laplace, wanted), rel=3e-3)
    assert {t for t, (laplace, wanted) in deviations.items() if wanted < laplace} == set(
        range(3, 12)
    )


def test_a_neutral_report_is_even() -> None:
    mechanism, rng = JointCounts(100.0, (2, 5)), RandomSource.seeded(1)
    found = mechanism.estimate(mechanism.neutral(1_000, rng))
    np.testing.assert_allclose(found, [500.0] * 2 + [200.0] * 5, atol=2.0)


@pytest.mark.parametrize(
    ("cells", "text"),
    [((), "tables"), ((2,) * 101, "tables"), ((0,), "cells"), ((1 << 20, 1), "of all tables")],
)
def test_tables_end_where_their_intervals_do(cells: tuple[int, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        JointCounts(1.0, cells)
