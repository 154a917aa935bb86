"""The subset code: exact, canonical, within its size bound, and safe on any bytes."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flower_ldp.errors import WireError
from flower_ldp.mechanisms import subset_code as subset
from flower_ldp.mechanisms.subset_code import (
    MAX_DIM_OUT,
    MAX_DIMENSION,
    decode,
    encode,
    encoded_length,
)
from tests.fixtures import reason_of

#: (d, h) with a plain bitmap and with a ranked one, single and many blocks, edges of the domain.
SIZES = [
    *[(1, 1), (2, 1), (5_994, 9), (61_706, 238), (10_000_000, 238)],
    *[(MAX_DIMENSION, h) for h in (1, 2, 239, MAX_DIM_OUT)],
    *[(100, 100), (200, 199), (320, 310), (321, 311), (400, 390), (700, 640), (2_000, 300)],
    *[(10_000, 1_000), *((d, MAX_DIM_OUT) for d in (4_096, 4_097, 8_192, 55_397, 200_000))],
]


def random_subset(d: int, h: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw h of range(d) without a permutation of the whole range."""
    if d <= 4 * h:
        return np.sort(rng.permutation(d)[:h]).astype(np.int64)
    drawn: NDArray[np.int64] = np.empty(0, dtype=np.int64)
    while drawn.size < h:
        drawn = np.unique(np.append(drawn, rng.integers(0, d, 2 * h)))
    return np.sort(rng.permutation(drawn)[:h])


def shaped_subsets(d: int, h: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Return random, clustered, evenly spread and one-sided subsets."""
    start = np.arange(h, dtype=np.int64)
    span, half, even = min(d, 2 * h), h // 2, (start * d) // h
    two_ends = np.concatenate([start[:half], start[half:] + (d - h)])
    cluster = random_subset(span, h, rng) + int(rng.integers(0, d - span + 1))
    return [start, start + (d - h), even, two_ends, cluster, random_subset(d, h, rng)]


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    """Draw (d, h): an even choice of magnitudes, and d next to h."""
    h = draw(st.one_of(st.integers(1, 40), st.integers(1, MAX_DIM_OUT)))
    exponent = draw(st.integers(0, 32))
    far = st.integers(h, max(h, 2**exponent - 1))
    d = draw(st.one_of(far, st.integers(h, h + 3), st.integers(h, 20 * h)))
    return d, h


@st.composite
def drawn_subsets(draw: st.DrawFn) -> tuple[int, NDArray[np.int64]]:
    """Draw a small subset index by index, so that failures shrink."""
    d = draw(st.one_of(st.integers(1, 60), st.integers(1, MAX_DIMENSION)))
    members = draw(st.sets(st.integers(0, d - 1), min_size=1, max_size=min(d, 40)))
    return d, np.array(sorted(members), dtype=np.int64)


def decode_if_canonical(data: bytes, d: int, h: int) -> NDArray[np.int64] | None:
    """Decode or refuse; what is accepted must be a subset whose only code is ``data``."""
    try:
        indices = decode(data, d, h)
    except WireError as error:
        if error.reason in {"length", "padding", "range", "order"}:
            return None
        raise
    assert indices.dtype == np.int64
    assert indices.shape == (h,)
    assert indices[0] >= 0
    assert indices[-1] < d
    assert (np.diff(indices) > 0).all()
    assert encode(indices, d) == data
    return indices


@pytest.mark.parametrize(("d", "h"), SIZES)
def test_round_trip_and_size_of_every_shape(d: int, h: int) -> None:
    limit = 1.05 * math.log2(math.comb(d, h)) / 8 + 12
    for indices in shaped_subsets(d, h, np.random.default_rng(h)):
        data = encode(indices, d)
        assert len(data) == encoded_length(d, h) <= limit
        np.testing.assert_array_equal(decode(data, d, h), indices)
        assert encode(indices.astype(np.uint32), d) == data


@settings(max_examples=100)
@given(drawn_subsets())
def test_round_trip_of_drawn_subsets(case: tuple[int, NDArray[np.int64]]) -> None:
    d, indices = case
    np.testing.assert_array_equal(decode(encode(indices, d), d, indices.size), indices)


@settings(max_examples=60)
@given(sizes(), st.integers(0, 2**32 - 1))
def test_round_trip_of_random_sizes(size: tuple[int, int], seed: int) -> None:
    d, h = size
    for indices in shaped_subsets(d, h, np.random.default_rng(seed)):
        data = encode(indices, d)
        assert len(data) == encoded_length(d, h)
        np.testing.assert_array_equal(decode(data, d, h), indices)


def test_size_bound_on_a_grid() -> None:
    """5 % and 16 bytes above the entropy, 4 of them left to the report's header."""
    ratios = [1.01, 1.1, 1.3, 1.6, 2, 2.5, 3, 4, 5, 8, 11, 13.6, 15, 16, 24, 60, 100, 300, 900]
    ranked = 0
    for h in [1, 2, 9, 60, 89, 120, 200, 238, 257, 321, 500, 641, 1000, 2000, 3000, 4068, 4096]:
        near = [h, h + 1, h + 2, h + 10, h + 50]
        far = [h * 2**i + i for i in range(12, 20)] + [MAX_DIMENSION]
        for d in near + [math.ceil(h * ratio) for ratio in ratios] + far:
            length, entropy = encoded_length(d, h), math.log2(math.comb(d, h))
            assert length <= 1.05 * entropy / 8 + 12, (d, h)
            assert length >= math.floor(entropy / 8), (d, h)
            ranked += subset._layout(d, h).ranked
    assert ranked > 50


def test_automatic_configurations_are_not_ranked() -> None:
    """The fast decoder covers what dimension selection chooses by itself."""
    for d in [1_000, 5_994, 61_706, 66_404, 10**6, 10**7, 10**8, 10**9, MAX_DIMENSION]:
        for h in [1, 9, 43, 100, 238, 240]:
            assert not subset._layout(d, h).ranked


@pytest.mark.parametrize(
    ("d", "h"), [(d, h) for d in (*range(1, 8), 9) for h in range(1, d + 1) if d < 9 or h % 3 == 1]
)
def test_small_ranges_byte_for_byte(d: int, h: int) -> None:
    """Of all strings of the length, exactly C(d, h) are codes, one to each subset."""
    n_bytes = encoded_length(d, h)
    assert n_bytes <= 2
    codes = (value.to_bytes(n_bytes, "little") for value in range(256**n_bytes))
    found = [decode_if_canonical(code, d, h) for code in codes]
    decoded = {tuple(indices.tolist()) for indices in found if indices is not None}
    assert decoded == set(itertools.combinations(range(d), h))


@pytest.fixture
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Cut bitmaps into smaller blocks, so that short ones have many."""
    monkeypatch.setattr(subset, "_BLOCK", request.param)
    subset._binomials.cache_clear()
    yield request.param
    subset._binomials.cache_clear()


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("block", [1, 2, 3, 5, 16], indirect=True)
@pytest.mark.parametrize(("n", "h"), [(1, 1), (6, 0), (6, 1), (7, 3), (8, 4), (9, 8), (10, 10)])
def test_ranks_are_a_bijection(n: int, h: int) -> None:
    """Each bitmap has one integer, below the bound; every other integer is refused."""
    n_bits = subset._rank_bits(n, h)
    found = {}
    for value in range(2**n_bits + 3):
        with contextlib.suppress(WireError):
            found[value] = subset._unrank(value, n, h)
    assert all(subset._rank(ones, n) == value < 2**n_bits for value, ones in found.items())
    subsets = sorted(tuple(ones.tolist()) for ones in found.values())
    assert subsets == list(itertools.combinations(range(n), h))


@settings(max_examples=150)
@given(st.data())
def test_arbitrary_bytes(data: st.DataObject) -> None:
    d, h = data.draw(st.sampled_from(SIZES))
    length = encoded_length(d, h)
    random = st.integers(0, 2**32).map(lambda seed: np.random.default_rng(seed).bytes(length))
    ends = st.sampled_from([bytes(length), b"\xff" * length])
    decode_if_canonical(data.draw(st.one_of(st.binary(max_size=64), random, ends)), d, h)


@pytest.mark.parametrize(("d", "h"), SIZES)
def test_mutations_of_a_code(d: int, h: int) -> None:
    rng = np.random.default_rng(d)
    indices = random_subset(d, h, rng)
    data = encode(indices, d)
    for other in [data[:-1], data + b"\0", b"\0" + data, b"", data * 2]:
        if len(other) != len(data):
            assert reason_of(decode, other, d, h) == "length"
    for bit in {int(bit) for bit in rng.integers(0, 8 * len(data), 40)} if data else ():
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        other_indices = decode_if_canonical(bytes(flipped), d, h)
        assert other_indices is None or not np.array_equal(other_indices, indices)


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (-1, 0x80, "padding"),
        (237, 0xFF, "range"),  # the last index's low byte
        (238, 0xFE, "range"),  # seven ones too many in the bitmap
        (1, 27, "order"),  # the second index's low byte
    ],
)
def test_reasons(at: int, value: int, reason: str) -> None:
    d, h = 61_706, 238
    data = bytearray(encode(np.arange(d - h, d, dtype=np.int64), d))
    # k = 61,468 = 240 * 256 + 28 throughout, so the bitmap's ones start at bit 240.
    assert data[:h] == bytes([28]) * h
    assert data[h : h + 30] == bytes(30)
    data[at] = value
    assert reason_of(decode, bytes(data), d, h) == reason


@pytest.mark.parametrize(
    ("indices", "d", "message"),
    [
        *((np.zeros(h, dtype=np.int64), 5, "h must be in") for h in (0, 6)),
        (np.arange(MAX_DIM_OUT + 1), 10**6, "h must be in"),
        *((np.array(indices), 5, "increase strictly") for indices in ([1, 1], [2, 1])),
        *((np.array(indices), 5, r"in \[0, 5\)") for indices in ([3, 5], [-1, 3])),
        *((np.array([0, 1]).astype(kind), 5, kind) for kind in ("float64", "int32", "bool")),
        *((np.array(indices), 5, "indices must be") for indices in ([[1, 2]], 1)),
        *((np.array([0]), d, "d must be in") for d in (0, 2**32)),
    ],
)
def test_encode_refuses(indices: NDArray[np.int64], d: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode(indices, d)


@pytest.mark.parametrize(("d", "h"), [(0, 1), (2**32, 1), (5, 0), (5, 6), (10**6, 4097), (-1, 1)])
def test_sizes_outside_the_domain(d: int, h: int) -> None:
    with pytest.raises(ValueError, match="must be in"):
        encoded_length(d, h)
    with pytest.raises(ValueError, match="must be in"):
        decode(b"", d, h)
