"""Laplace mechanism on rows of probabilities: rounding, price, refusals."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_ldp.mechanisms import Laplace, NoProtectionWarning, RandomSource
from flower_ldp.mechanisms.laplace import round_to_grid
from flower_ldp.mechanisms.signds_size import exp_scaled_at_least
from flower_ldp.privacy import PrivacyEvent, Unit, compose

ONE_HOT = np.eye(3)


def softmax(rows: np.ndarray) -> np.ndarray:
    weights = np.exp(rows - rows.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


# Privacy, exactly.


@pytest.mark.parametrize(("epsilon", "bits"), [(0.5, 0), (2.0, 1), (12.0, 2)])
def test_stated_epsilon_is_met_by_the_sampler_as_built_for_every_pair_of_rows(
    epsilon: float, bits: int
) -> None:
    mechanism = Laplace(epsilon, classes=3, grid_bits=bits)
    steps = mechanism.steps
    grid = [row for row in itertools.product(range(steps + 1), repeat=3) if sum(row) == steps]
    window = range(-steps - 1, 2 * steps + 2)
    law = {x: mechanism.noise.probability(x) for x in range(-3 * steps - 2, 3 * steps + 3)}
    reached = False
    for row, other in itertools.product(grid, repeat=2):
        # coordinates are independent, so the worst output is the worst of each
        worst = math.prod(
            max(law[y - a] / law[y - b] for y in window) for a, b in zip(row, other, strict=True)
        )
        assert exp_scaled_at_least(epsilon, worst.denominator, worst.numerator)
        reached |= math.log(worst) > epsilon * (1 - 1e-12)
    assert reached


def test_one_row_costs_epsilon_and_n_rows_n_times() -> None:
    assert Laplace(4.0, 10).events() == (PrivacyEvent("laplace", 4.0),)
    spent = compose(Laplace(4.0, 10, rows=25).events())
    assert spent[Unit.CLIENT].epsilon == 100.0


def test_neighbouring_clients_may_differ_in_all_rows() -> None:
    mechanism = Laplace(3.0, classes=3, rows=2, grid_bits=2)
    report = np.array([[9, -5, -5], [9, -5, -5]])
    gap = mechanism.log_prob(report, ONE_HOT[[0, 0]]) - mechanism.log_prob(report, ONE_HOT[[1, 1]])
    assert gap == pytest.approx(6.0, abs=1e-12)


def test_the_published_scale_names_half_of_the_true_epsilon() -> None:
    mechanism = Laplace(8.0, 10)
    assert mechanism.published_epsilon == 4.0
    # Lap(1 / published) has standard deviation sqrt(2) / published
    assert mechanism.standard_deviation == pytest.approx(math.sqrt(2) / 4.0, rel=1e-6)


def test_an_epsilon_that_protects_nothing_is_taken_and_warned_of() -> None:
    with pytest.warns(NoProtectionWarning, match=re.escape("10^200,001 times")):
        mechanism = Laplace(460_520.0, 10)
    assert mechanism.events()[0].epsilon == 460_520.0
    assert mechanism.noise.standard_deviation > 1000


# Rounding.


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 40).flatmap(
        lambda k: st.lists(st.floats(0, 1), min_size=k, max_size=k).filter(lambda x: sum(x) > 1e-3)
    ),
    st.integers(0, 40),
)
def test_rounded_rows_add_up_exactly_and_move_less_than_a_step(
    entries: list[float], bits: int
) -> None:
    row = np.array([entries]) / sum(entries)
    grid = round_to_grid(row, 1 << bits)
    assert (grid >= 0).all()
    assert grid.sum() == 1 << bits
    assert np.abs(grid - row * (1 << bits)).max() < 1 + 1e-3


def test_units_go_to_the_largest_remainders() -> None:
    rows = np.array([[0.30, 0.35, 0.35], [0.125, 0.375, 0.5], [1.0, 0.0, 0.0]])
    assert round_to_grid(rows, 4).tolist() == [[1, 2, 1], [1, 1, 2], [4, 0, 0]]


def test_sums_that_float_arithmetic_leaves_are_made_exact() -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float16, np.float32, np.float64):
        rows = softmax(rng.normal(size=(500, 100)) * 6).astype(dtype)
        mechanism = Laplace(1.0, classes=100, rows=500)
        assert (mechanism._rounded(rows)[0].sum(axis=1) == mechanism.steps).all()


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 2.0, 8.0, 77.7, 100.0])
def test_default_grid_is_fine_beside_the_noise(epsilon: float) -> None:
    mechanism = Laplace(epsilon, 10)
    assert mechanism.steps >= 1024
    assert 1 / float(mechanism.noise.rate) >= 1024


# Reports.


def test_reports_are_integers_and_the_estimate_is_unbiased() -> None:
    rows = np.tile(softmax(np.array([[2.0, 0.0, 1.0, -1.0]])), (40_000, 1))
    mechanism = Laplace(2.0, classes=4, rows=len(rows))
    report = mechanism.randomize(rows, RandomSource.seeded(5))
    assert report.dtype == np.int64
    error = mechanism.estimate(report).mean(axis=0) - rows[0]
    # 4.9 standard deviations are exceeded once in 1e6
    allowed = 4.9 * mechanism.standard_deviation / math.sqrt(len(rows)) + 1 / mechanism.steps
    assert np.abs(error).max() < allowed


def test_value_is_not_modified_and_noise_is_fresh() -> None:
    rows = softmax(np.random.default_rng(0).normal(size=(4, 3)))
    before = rows.copy()
    mechanism, rng = Laplace(1.0, classes=3, rows=4), RandomSource.seeded(1)
    first, second = mechanism.randomize(rows, rng), mechanism.randomize(rows, rng)
    np.testing.assert_array_equal(rows, before)
    assert (first != second).any()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epsilon": 0.0}, r"epsilon must be in \[1e-6, 1e6\], got 0.0"),
        ({"epsilon": math.nan}, "epsilon must be in"),
        ({"epsilon": 2e6}, "epsilon must be in"),
        ({"classes": 1}, "classes must be an integer in"),
        ({"rows": 0}, "rows must be an integer in"),
        ({"grid_bits": -1}, "grid_bits must be an integer in"),
        ({"grid_bits": 41}, "grid_bits must be an integer in"),
        ({"epsilon": 90.0, "grid_bits": 0}, "grid_bits must keep"),
        ({"epsilon": 1e-6, "grid_bits": 40}, "grid_bits must keep"),
    ],
)
def test_parameters_outside_their_intervals_are_refused(
    parameters: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Laplace(**{"epsilon": 1.0, "classes": 3, **parameters})  # type: ignore[arg-type]
