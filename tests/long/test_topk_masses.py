"""Top sets of long vectors, with equal values where the selection looks, and counted sizes."""

from __future__ import annotations

import ctypes
import platform
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

from flower_ldp.mechanisms import topk as _rank
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.signds import top_by_sort
from flower_ldp.mechanisms.topk import TopSet, top_set
from tests.unit.mechanisms.topk_cases import DTYPES, Vector, by_stable_sort
from tests.unit.mechanisms.topk_masses import LENGTHS, masses, probes, to_floats

Cut = float | None


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each way of finding a threshold is taken, and gives one."""
    taken: Counter[str] = Counter()

    def spied(name: str) -> None:
        way = getattr(_rank, name)

        def spy(values: Vector, size: int, sign: int) -> Cut:
            found: Cut = way(values, size, sign)
            taken[name, "none" if found is None else "found"] += 1
            return found

        monkeypatch.setattr(_rank, name, spy)

    taken = Counter()
    spied("_by_bracket")
    spied("_by_copy")
    return taken


def test_levels_keep_their_order_as_floats() -> None:
    rng = np.random.default_rng(1)
    levels = np.sort(rng.integers(-0x7BFF, 0x7C00, 5000)).astype(np.int16)
    for dtype in DTYPES * 4:
        values = to_floats(levels, dtype, rng)
        assert np.isfinite(values).all()
        np.testing.assert_array_equal(np.sign(np.diff(values)), np.sign(np.diff(levels)))


def test_the_probes_are_where_anyone_can_compute_them() -> None:
    """The positions are public, so a vector can be made for them: that must not matter."""
    for length in LENGTHS:
        count = 8192
        o = np.arange(count)
        stated = o * length // count + ((o * 40503 & 0xFFFF) * (length // count) >> 16)
        np.testing.assert_array_equal(probes(length), stated)


def test_equals_at_the_probes_and_a_rank_beyond_them() -> None:
    d = 131_073
    u = -np.arange(1, d + 1, dtype=np.float32)
    u[probes(d)] = 0
    for size in (8191, 8192, 8193, 26_214):
        assert top_set(u, size, 1).contains(np.arange(d)).sum() == size


@pytest.mark.parametrize(("length", "way"), [(131_072, "_by_copy"), (131_073, "_by_bracket")])
def test_which_way_is_taken_depends_on_the_length(
    length: int, way: str, ways: Counter[str]
) -> None:
    values = ordinary(length)
    for sign in (-1, 1):
        inside = top_set(values, length // 5, sign).contains(np.arange(length))
        np.testing.assert_array_equal(inside, by_stable_sort(values, length // 5, sign))
    assert ways == {(way, "found"): 2}


def test_sets_have_their_size_where_the_processor_takes_subnormals_for_zeros() -> None:
    """PyTorch can switch a thread to that: then all of them are equal to zero, and ties."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    for dtype in DTYPES:
        tiny = np.finfo(dtype).smallest_subnormal
        values = (rng.integers(-5, 6, 140_000) * tiny).astype(dtype)
        values[::7] = 1
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor has no such mode")
        try:
            for size in (1, 20_001, 70_000):
                for sign in (-1, 1):
                    top = top_set(values, size, sign)
                    assert top.contains(np.arange(len(values))).sum() == size
        finally:
            torch.set_flush_denormal(False)


@contextmanager
def flushed_results() -> Iterator[None]:
    """Let this thread's results flush to zero, but not what it compares; skip without x86-64."""
    if platform.machine() not in ("x86_64", "AMD64") or platform.libc_ver()[0] != "glibc":
        pytest.skip("sets a register of x86-64 by glibc")
    libm = ctypes.CDLL("libm.so.6")
    kept = ctypes.create_string_buffer(32)  # fenv_t: 28 bytes, then the register MXCSR
    libm.fegetenv(kept)
    (register,) = struct.unpack_from("<I", kept, 28)
    changed = ctypes.create_string_buffer(kept.raw, 32)
    struct.pack_into("<I", changed, 28, register | 1 << 15)
    libm.fesetenv(changed)
    try:
        if np.float32(2.0**-126) * np.float32(0.5) != 0.0:
            pytest.skip("the register has no effect")
        yield
    finally:
        libm.fesetenv(kept)


@pytest.mark.parametrize("length", [300, 140_000])
def test_sets_are_right_where_results_flush_to_zero_and_comparisons_do_not(length: int) -> None:
    """Compilers and audio code switch a thread to that: a converted threshold would be zero."""
    rng = np.random.default_rng(6)
    for dtype in DTYPES:
        values = (rng.integers(-5, 6, length) * np.finfo(dtype).smallest_subnormal).astype(dtype)
        values[::7] = 1
        for size in (1, length // 7, length // 4, length // 2):
            for sign in (-1, 1):
                expected = np.flatnonzero(by_stable_sort(values, size, sign))
                with flushed_results():
                    top = top_set(values, size, sign)
                    members = np.flatnonzero(top.contains(np.arange(length)))
                    sorted_out = top_by_sort(values, size, sign)
                assert np.array_equal(members, expected)
                assert np.array_equal(np.sort(sorted_out), expected)


@pytest.mark.parametrize("seed", range(2))
def test_hundreds_of_vectors_with_masses_at_the_probes(seed: int, ways: Counter[str]) -> None:
    """Of both seeds together each mass meets each background three times on average."""
    wrong = [
        complaint
        for case in masses(100, seed)
        for size, sign in case.asked
        if (complaint := case.wrong(top_set(case.values, size, sign)))
    ]
    assert not wrong
    # Both ways are taken often, and the fast one also fails: none of these is a test of nothing.
    assert min(ways["_by_bracket", "found"], ways["_by_copy", "found"]) > 20
    assert ways["_by_copy", "found"] >= ways["_by_bracket", "none"]


def ordinary(length: int = 140_000) -> NDArray[np.float64]:
    return np.random.default_rng(5).integers(-300, 300, length) / 64.0


LIES: dict[str, Cut] = {
    "too good": 4.0,
    "not good enough": 1.0,
    "worst": -4.0,
    "no such value": 1e9,
    "none that is worse": -1e9,
    "not a number": float("nan"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_wrong_cut_is_counted_and_the_plain_way_taken(
    lie: str, ways: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = ordinary()
    right = top_set(values, 28_000, 1)
    assert ways == {("_by_bracket", "found"): 1}
    monkeypatch.setattr(_rank, "_by_bracket", lambda *_: LIES[lie])
    found = top_set(values, 28_000, 1)
    assert ways["_by_copy", "found"] == 1
    assert (found.threshold, found.tie_cut) == (right.threshold, right.tie_cut)


@pytest.mark.parametrize("lie", LIES)
def test_nothing_is_drawn_from_a_set_that_never_counted_right(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_rank, "_by_bracket", lambda *_: LIES[lie])
    monkeypatch.setattr(_rank, "_by_copy", lambda *_: LIES[lie])
    with pytest.raises(RuntimeError, match="changed"):
        top_set(ordinary(), 28_000, 1)


def test_draws_by_rank_and_by_trial_hit_the_same_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few draws test positions, many turn ranks into positions: both from the levels' set."""
    rng = RandomSource.seeded(3)
    taken: Counter[str] = Counter()
    at_ranks, contains = TopSet._at_ranks, TopSet.contains

    def by_rank(self: TopSet, ranks: NDArray[np.int64], member: bool) -> NDArray[np.int64]:
        taken["ranks"] += len(ranks)
        return at_ranks(self, ranks, member)

    def by_trial(self: TopSet, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        taken["trials"] += len(indices)
        return contains(self, indices)

    monkeypatch.setattr(TopSet, "_at_ranks", by_rank)
    monkeypatch.setattr(TopSet, "contains", by_trial)
    for case in masses(3, 77):
        for size, sign in case.asked:
            top, inside = top_set(case.values, size, sign), case.best(size, sign)
            others = len(inside) - size
            for counts in (
                (1, 0),
                (size // 100, others // 200),
                (size // 2, others % 4),
                (size, others),
            ):
                drawn = top.sample(*counts, rng)
                assert inside[drawn].sum() == counts[0]
                assert len(np.unique(drawn)) == sum(counts)
    assert min(taken["ranks"], taken["trials"]) > 1_000
