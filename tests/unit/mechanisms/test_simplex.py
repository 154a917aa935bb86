"""Projection onto the simplex: against its optimality conditions in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_ldp.mechanisms.laplace import check_simplex_rows, project_to_simplex


def exact_projection(row: list[float]) -> list[Fraction]:
    """Return the projection by trying every support size, in rational arithmetic."""
    entries = [Fraction(entry) for entry in row]
    for size in range(len(entries), 0, -1):
        tau = (sum(sorted(entries, reverse=True)[:size]) - 1) / size
        found = [max(entry - tau, Fraction(0)) for entry in entries]
        if sum(found) == 1:
            return found
    raise ValueError("no support fits")


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=7))
def test_projection_is_the_exact_one(row: list[float]) -> None:
    found = project_to_simplex(row)
    np.testing.assert_allclose(found, [float(x) for x in exact_projection(row)], atol=1e-14)


def test_many_rows_at_a_time() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 10)) * 3
    together = project_to_simplex(rows)
    for row, found in zip(rows, together, strict=True):
        np.testing.assert_array_equal(project_to_simplex(row), found)


def test_no_row_on_the_simplex_is_nearer() -> None:
    rng = np.random.default_rng(1)
    reports = rng.dirichlet(np.ones(6), 40) + rng.laplace(size=(40, 6))
    others = rng.dirichlet(np.full(6, 0.3), 500)
    found = np.linalg.norm(reports - project_to_simplex(reports), axis=1)
    nearest = np.linalg.norm(reports[:, None] - others[None], axis=2).min(axis=1)
    assert (found <= nearest + 1e-12).all()


def test_rows_on_the_simplex_stay() -> None:
    rows = np.random.default_rng(2).dirichlet(np.ones(5), 20)
    np.testing.assert_allclose(project_to_simplex(rows), rows, atol=1e-15)


def test_huge_entries_do_not_overflow() -> None:
    np.testing.assert_array_equal(project_to_simplex([1e300, 0.0, -1e300]), [1.0, 0.0, 0.0])
    np.testing.assert_allclose(project_to_simplex([1e9 + 0.5, 1e9]), [0.75, 0.25])


@pytest.mark.parametrize("rows", [np.nan, [np.nan, 1.0], [np.inf, 0.0], [], np.zeros((2, 2, 2))])
def test_what_is_no_row_is_refused(rows: object) -> None:
    with pytest.raises(ValueError, match="rows must"):
        project_to_simplex(rows)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([[0.5, 0.6]], "add up"),
        ([[1.5, -0.5]], "negative"),
        ([[np.nan, 1.0]], "finite"),
        ([0.5, 0.5], "shape"),
        ([[1.0, 0.0, 0.0]], "shape"),
    ],
)
def test_rows_off_the_simplex_are_refused(rows: list[object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_simplex_rows("value", np.array(rows), 2)


def test_integers_are_no_probabilities() -> None:
    with pytest.raises(ValueError, match="floats"):
        check_simplex_rows("value", np.array([[1, 0]]), 2)


def test_half_precision_is_near_enough() -> None:
    row = np.random.default_rng(3).dirichlet(np.ones(100), 20).astype(np.float16)
    assert check_simplex_rows("value", row, 100).dtype == np.float64
