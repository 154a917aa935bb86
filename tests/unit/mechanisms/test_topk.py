"""The top set against its definition by a full sort, its mean, and uniform draws from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import DTypeLike, NDArray

from flower_ldp.mechanisms.random import RandomSource, uniform_subset
from flower_ldp.mechanisms.topk import TopSet, top_set
from tests.statistical.follows import assert_follows
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


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    entries=st.lists(few_levels, min_size=1, max_size=30) | st.lists(any_value, min_size=1),
    dtype=st.sampled_from(DTYPES),
    sign=st.sampled_from([-1, 1]),
    data=st.data(),
)
def test_small_vectors_match_a_full_sort(
    entries: list[float], dtype: type, sign: int, data: st.DataObject
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
def test_non_finite_entries_are_refused_anywhere(bad: float, length: int, dtype: type) -> None:
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


def assert_uniform(counts: Iterable[int]) -> None:
    seen = list(counts)
    assert_follows(seen, [1 / len(seen)] * len(seen))


def assert_sound(top: TopSet, inside: int, outside: int, rng: RandomSource) -> None:
    drawn = top.sample(inside, outside, rng)
    assert drawn.dtype == np.int64
    assert drawn.shape == (inside + outside,)
    assert bool((np.diff(drawn) > 0).all())
    assert int(top.contains(drawn).sum()) == inside


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    length=st.integers(1, 400),
    sign=st.sampled_from([-1, 1]),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_any_counts_can_be_drawn(length: int, sign: int, seed: int, data: st.DataObject) -> None:
    values = np.random.default_rng(seed).integers(-3, 4, length).astype(np.float32)
    size = data.draw(st.integers(1, length))
    inside = data.draw(st.integers(0, size))
    outside = data.draw(st.integers(0, length - size))
    assert_sound(top_set(values, size, sign), inside, outside, RandomSource.seeded(seed))


@pytest.mark.parametrize("size", [1, 50, 200_000, 999_990, 1_000_000])
def test_extreme_counts_of_a_long_vector(size: int) -> None:
    length = 1_000_000
    values = np.random.default_rng(7).standard_normal(length).astype(np.float32)
    values[::3] = 0.0
    top = top_set(values, size, 1)
    rest = length - size
    rng = RandomSource.seeded(4)
    for inside in {0, 1, min(143, size), size - 1, size}:
        for outside in {0, min(95, rest), rest}:
            assert_sound(top, inside, outside, rng)


@pytest.mark.parametrize("trial_cost", [1, 10**9])
def test_draws_are_uniform(trial_cost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of drawing: 3 of 6 members and 2 of 6 others, 20 * 15 outcomes."""
    monkeypatch.setattr("flower_ldp.mechanisms.topk._TRIAL_COST", trial_cost)
    # Cut in the middle of a tie.
    values = np.array([0, 3, 0, -1, 0, 2, 0, 0, -2, 5, 0, -0.0], dtype=np.float32)
    top, rng = top_set(values, 6, 1), RandomSource.seeded(5)
    counts = Counter(tuple(top.sample(3, 2, rng).tolist()) for _ in range(3_000))
    assert len(counts) == 300
    assert_uniform(counts.values())


def test_long_vectors_are_drawn_uniformly_by_position() -> None:
    rng = RandomSource.seeded(6)
    values = np.random.default_rng(8).standard_normal(300_000).astype(np.float32)
    values[values < 0.2] = 0.0
    top = top_set(values, 150_000, 1)
    # Twenty bins of members in the order of their positions, and of the others.
    rank = np.cumsum(members(top)) - 1
    other = np.arange(len(values)) - rank - 1
    for inside, outside in ((1000, 1000), (20_000, 20_000)):
        drawn = np.concatenate([top.sample(inside, outside, rng) for _ in range(20)])
        chosen = drawn[top.contains(drawn)]
        rest = drawn[~top.contains(drawn)]
        assert_uniform(np.bincount(rank[chosen] * 20 // 150_000, minlength=20))
        assert_uniform(np.bincount(other[rest] * 20 // 150_000, minlength=20))


@pytest.mark.parametrize(("high", "count"), [(7, 2), (7, 5), (8, 4), (6, 6), (5, 0)])
def test_uniform_subset_is_uniform(high: int, count: int) -> None:
    rng = RandomSource.seeded(7)
    counts = Counter(tuple(uniform_subset(rng, high, count).tolist()) for _ in range(3_000))
    assert set(counts) == set(combinations(range(high), count))
    if len(counts) > 1:
        assert_uniform(counts.values())


class Stuck(RandomSource):
    """A broken source: every integer is 0."""

    def integers(self, high: int, size: int) -> NDArray[np.int64]:
        return np.zeros(size, dtype=np.int64)


def test_a_source_that_repeats_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flower_ldp.mechanisms.random._MOST_BATCHES", 50)
    with pytest.raises(RuntimeError, match="repeating"):
        uniform_subset(Stuck(), 100, 2)
    top = top_set(np.arange(1000.0), 300, 1)
    with pytest.raises(RuntimeError, match="repeating"):
        top.sample(1, 0, Stuck())


def test_a_vector_changed_underneath_is_an_error() -> None:
    values = np.arange(1000.0)
    top = top_set(values, 300, 1)
    values[:] = 0.0
    with pytest.raises(RuntimeError, match="changed"):
        top.sample(300, 0, RandomSource.seeded(8))
