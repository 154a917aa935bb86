"""Long and nasty vectors: exactly K members, and memory far below a sort's."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import DTypeLike

from flower_ldp.mechanisms import topk as _topk
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.topk import top_set
from tests.unit.mechanisms.topk_cases import (
    DTYPES,
    NASTY,
    by_stable_sort,
    members,
    nasty,
    sample_positions,
    sizes_of_interest,
)


@pytest.fixture
def short_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make vectors of a few thousand entries take the path of millions."""
    monkeypatch.setattr(_topk, "_COPY_LENGTH", 500)
    monkeypatch.setattr(_topk, "_SMALLEST_SAMPLE", 128)
    monkeypatch.setattr(_topk, "_LARGEST_SAMPLE", 128)
    monkeypatch.setattr(_topk, "_BLOCK", 256)
    monkeypatch.setattr(_topk, "_SMALLEST_BLOCK", 64)


@pytest.mark.usefixtures("short_paths")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NASTY)
def test_nasty_vectors_have_exactly_k_members(name: str, dtype: DTypeLike) -> None:
    values = nasty(3000)[name].astype(dtype)
    for size in sizes_of_interest(values):
        for sign in (-1, 1):
            found = members(top_set(values, size, sign))
            assert int(found.sum()) == size
            np.testing.assert_array_equal(found, by_stable_sort(values, size, sign))


@pytest.mark.parametrize("name", NASTY)
def test_nasty_vectors_longer_than_block_and_sample(name: str) -> None:
    length = 300_001
    assert length > _topk._BLOCK
    assert length > _topk._LARGEST_SAMPLE
    assert length > _topk._COPY_LENGTH
    values = nasty(length)[name].astype(np.float32)
    zeros = values == 0
    edge = min(int((values > 0).sum() + zeros.sum()), length)
    for size, sign in ((length // 5, 1), (length // 5, -1), (max(edge, 1), 1), (1, -1)):
        found = members(top_set(values, size, sign))
        assert int(found.sum()) == size
        np.testing.assert_array_equal(found, by_stable_sort(values, size, sign))


def test_ordinary_and_tied_vectors_do_not_need_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("fell back to a copy")

    length = 200_000
    vectors = nasty(length)
    monkeypatch.setattr(_topk, "_by_copy", refuse)
    for name in ("all equal", "all zero", "half zeros", "two values", "denormals", "ascending"):
        for size in (1, length // 5, length // 2, length):
            assert int(members(top_set(vectors[name], size, 1)).sum()) == size
    with pytest.raises(AssertionError, match="fell back"):
        top_set(vectors["sample sees only decoys"], length // 5, 1)


@pytest.mark.usefixtures("short_paths")
def test_threshold_of_random_sizes_matches_partition() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        length = int(rng.integers(600, 4000))
        values = rng.standard_t(2, length).round(int(rng.integers(0, 5))).astype(np.float32)
        size = int(rng.integers(1, length + 1))
        sign = int(rng.choice([-1, 1]))
        top = top_set(values, size, sign)
        np.testing.assert_array_equal(members(top), by_stable_sort(values, size, sign))
        assert top.threshold == np.sort(sign * values)[length - size] * sign


def peak(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("ordinary", 0.25),
        ("half zeros", 0.25),
        ("all zero", 0.25),
        ("decoy", 1.25),
        ("crowd", 1.25),
    ],
)
def test_peak_memory_stays_below_the_limit(kind: str, limit: float) -> None:
    """No sort and no index array: those alone are 1 and 2 times the vector."""
    length = 4_000_000
    rng = np.random.default_rng(9)
    values = rng.standard_normal(length, dtype=np.float32)
    if kind == "half zeros":
        values[rng.random(length, dtype=np.float32) < 0.5] = 0.0
    elif kind == "all zero":
        values[:] = 0.0
    elif kind == "decoy":
        values = -abs(values)
        values[sample_positions(length)] = 9.0
    elif kind == "crowd":
        seen = sample_positions(length)
        values = 5.3 + np.float32(1e-3) * values
        values[seen] = np.linspace(-9, 9, len(seen), dtype=np.float32)
    source = RandomSource.seeded(9)

    def select() -> None:
        top = top_set(values, length // 5, 1)
        top.sample(143, 95, source)
        top.mean()

    assert peak(select) < limit * values.nbytes
