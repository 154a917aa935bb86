"""Draws from a top set: sound for any counts, and exactly uniform."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flower_ldp.mechanisms.random import RandomSource, uniform_subset
from flower_ldp.mechanisms.topk import TopSet, top_set
from tests.statistical.follows import assert_follows
from tests.unit.mechanisms.topk_cases import members


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


def tied_top() -> TopSet:
    """Return a set cut in the middle of a tie, over a vector of 12 entries."""
    return top_set(np.array([0, 3, 0, -1, 0, 2, 0, 0, -2, 5, 0, -0.0], dtype=np.float32), 6, 1)


@pytest.mark.parametrize("trial_cost", [1, 10**9])
def test_draws_are_uniform_over_all_choices(
    trial_cost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways of drawing: 3 of 6 members and 2 of 6 others, 20 * 15 outcomes."""
    monkeypatch.setattr("flower_ldp.mechanisms.topk._TRIAL_COST", trial_cost)
    top, rng = tied_top(), RandomSource.seeded(5)
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


def test_a_source_that_repeats_itself_is_an_error_not_a_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
