"""The top set against its definition by a full sort, its mean, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import DTypeLike

from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.topk import top_set
from tests.unit.mechanisms.topk_cases import (
    DTYPES,
    Vector,
    by_definition,
    by_stable_sort,
    members,
    nasty,
)

few_levels = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 6e-8, -6e-8, 1e4, -1e4])
any_value = st.floats(-60000, 60000, width=16)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    entries=st.one_of(
        st.lists(few_levels, min_size=1, max_size=30), st.lists(any_value, min_size=1)
    ),
    dtype=st.sampled_from(DTYPES),
    sign=st.sampled_from([-1, 1]),
    data=st.data(),
)
def test_small_vectors_match_a_full_sort(
    entries: list[float], dtype: type[np.floating[Any]], sign: int, data: st.DataObject
) -> None:
    values: Vector = np.asarray(entries, dtype=np.float64).astype(dtype)
    size = data.draw(st.integers(1, len(values)))
    top = top_set(values, size, sign)
    assert set(np.flatnonzero(members(top)).tolist()) == by_definition(values, size, sign)
    assert top.threshold in values
    expected = math.fsum(sign * float(values[i]) for i in by_definition(values, size, sign)) / size
    assert top.mean() == pytest.approx(expected, rel=1e-12, abs=1e-12 * float(abs(values).max()))


def test_layouts_give_one_answer() -> None:
    rng = np.random.default_rng(4)
    base = np.round(rng.standard_normal(200_000), 2).astype(np.float32)
    expected = by_stable_sort(base, 40_000, 1)
    strided = np.empty((len(base), 3), dtype=np.float32)[:, 1]
    strided[:] = base
    reversed_view = base[::-1].copy()[::-1]
    unaligned = np.frombuffer(b"x" + base.tobytes(), dtype=np.uint8)[1:].view(np.float32)
    frozen = base.copy()
    frozen.flags.writeable = False
    swapped = base.astype(">f4")
    for values in (base, strided, reversed_view, unaligned, frozen, swapped):
        top = top_set(values, 40_000, 1)
        np.testing.assert_array_equal(members(top), expected)
        assert top.mean() == pytest.approx(math.fsum(base[expected]) / 40_000, rel=1e-12)
        drawn = top.sample(30_000, 5, RandomSource.seeded(1))
        assert int(expected[drawn].sum()) == 30_000
    assert not frozen.flags.writeable
    assert base.flags.writeable


def test_the_vector_is_neither_copied_nor_changed() -> None:
    values = np.random.default_rng(5).standard_normal(100_000).astype(np.float32)
    before = values.tobytes()
    top = top_set(values, 20_000, -1)
    top.sample(100, 100, RandomSource.seeded(2))
    top.mean()
    assert values.tobytes() == before
    assert np.shares_memory(top.values, values)
    with pytest.raises(ValueError, match="read-only"):
        top.values[0] = 1.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["half zeros", "two values", "outliers", "signed zeros"])
def test_mean_of_long_vectors_is_exact_to_rounding(name: str, dtype: DTypeLike) -> None:
    values = nasty(150_000)[name].astype(dtype)
    for size, sign in ((30_000, 1), (30_000, -1), (90_001, 1), (150_000, -1)):
        chosen = values[by_stable_sort(values, size, sign)].astype(np.float64)
        expected = sign * math.fsum(chosen) / size
        scale = math.fsum(abs(chosen)) / size
        assert abs(top_set(values, size, sign).mean() - expected) <= 1e-13 * scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 5, 70_000, 300_000])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_entries_are_refused_anywhere(
    bad: float, length: int, dtype: type[np.floating[Any]]
) -> None:
    clean = np.random.default_rng(6).standard_normal(length).astype(dtype)
    for position in {0, length // 2, length - 1}:
        values = clean.copy()
        values[position] = bad
        for size, sign in ((1, 1), (max(1, length // 5), -1), (length, 1)):
            with pytest.raises(ValueError, match=rf"at position {position}$"):
                top_set(values, size, sign)
    with pytest.raises(ValueError, match=r"at position 0$"):
        top_set(np.full(length, bad, dtype=dtype), 1, 1)


def test_extreme_finite_values_are_accepted() -> None:
    for dtype in DTYPES:
        largest = float(np.finfo(dtype).max)
        values = np.tile(np.array([largest, -largest, 0.0], dtype=dtype), 40_000)
        for sign in (-1, 1):
            top = top_set(values, 40_000, sign)
            assert top.threshold == sign * largest
            assert int(members(top).sum()) == 40_000
            assert top.mean() == pytest.approx(largest, rel=1e-12)


def test_the_mean_of_members_whose_sum_overflows_is_their_mean() -> None:
    values = np.tile(np.array([1.5e308, 0.5e308, -1e308, 0.0]), 50_000)
    assert top_set(values, 100_000, 1).mean() == pytest.approx(1e308, rel=1e-12)
    assert top_set(values, 100_000, -1).mean() == pytest.approx(0.5e308, rel=1e-12)
    assert top_set(values[:3], 1, -1).mean() == 1e308


def test_indices_and_counts_out_of_range_are_refused() -> None:
    top = top_set(np.arange(10.0), 4, 1)
    rng = RandomSource.seeded(3)
    with pytest.raises(IndexError):
        top.contains(np.array([0, 10]))
    for inside, outside in ((5, 0), (-1, 0), (0, 7), (0, -1)):
        with pytest.raises(ValueError, match="must be in"):
            top.sample(inside, outside, rng)
    assert top.contains(np.array([], dtype=np.int64)).shape == (0,)
    assert top.contains(np.array([[0, 9], [6, 5]])).tolist() == [[False, True], [True, False]]
