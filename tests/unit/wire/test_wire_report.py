"""The SignDS report: header, strictness, and that it inherits the subset code's promises."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flower_ldp.errors import WireError
from flower_ldp.mechanisms.signds_round import (
    decode_report,
    encode_report,
)
from flower_ldp.mechanisms.subset_code import (
    encoded_length,
)

LENGTH, PADDING, RANGE, ORDER = "length", "padding", "range", "order"
VERSION, FLAGS = "version", "flags"
REASONS = {VERSION, FLAGS, LENGTH, PADDING, RANGE, ORDER}
MAX_DIMENSION = 2**32 - 1


@st.composite
def reports(draw: st.DrawFn) -> tuple[int, NDArray[np.int64], int, int | None]:
    """Draw (dimension, indices, sign, bit)."""
    dimension = draw(st.one_of(st.integers(1, 200), st.integers(1, MAX_DIMENSION)))
    members = draw(st.sets(st.integers(0, dimension - 1), min_size=1, max_size=30))
    sign = draw(st.sampled_from([-1, 1]))
    bit = draw(st.sampled_from([None, 0, 1]))
    return dimension, np.array(sorted(members), dtype=np.int64), sign, bit


def accepted_or_refused(data: bytes, dimension: int, dim_out: int, has_bit: bool) -> bool:
    """Decode; whatever is accepted must encode to the very same bytes."""
    try:
        indices, sign, bit = decode_report(
            data, dimension=dimension, dim_out=dim_out, has_bit=has_bit
        )
    except WireError as error:
        if error.reason not in REASONS:
            raise
        return False
    assert (bit is not None) == has_bit
    assert encode_report(indices, sign, bit, dimension=dimension) == data
    return True


@settings(deadline=None, derandomize=True, max_examples=100)
@given(reports())
def test_round_trip(report: tuple[int, NDArray[np.int64], int, int | None]) -> None:
    dimension, indices, sign, bit = report
    data = encode_report(indices, sign, bit, dimension=dimension)
    size = indices.size
    assert len(data) == 2 + encoded_length(dimension, size)
    assert len(data) <= 1.05 * math.log2(math.comb(dimension, size)) / 8 + 16
    got, got_sign, got_bit = decode_report(
        data, dimension=dimension, dim_out=size, has_bit=bit is not None
    )
    np.testing.assert_array_equal(got, indices)
    assert (got_sign, got_bit) == (sign, bit)
    assert type(got_sign) is int
    with pytest.raises(WireError) as caught:
        decode_report(data, dimension=dimension, dim_out=size, has_bit=bit is None)
    assert caught.value.reason == FLAGS


@pytest.mark.parametrize(
    ("dimension", "dim_out", "length"),
    [
        (61_706, 238, 300),
        (10_000_000, 238, 517),
        (5_994, 9, 15),
        (1_000_000_000, 239, 719),
        (1_000_000, 4_096, 5_004),
    ],
)
def test_documented_lengths(dimension: int, dim_out: int, length: int) -> None:
    assert 2 + encoded_length(dimension, dim_out) == length


@settings(deadline=None, derandomize=True, max_examples=100)
@given(
    reports(),
    st.sampled_from(["flip", "cut", "extend", "header"]),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_mutations(
    report: tuple[int, NDArray[np.int64], int, int | None], kind: str, seed: int, has_bit: bool
) -> None:
    dimension, indices, sign, bit = report
    rng = np.random.default_rng(seed)
    data = bytearray(encode_report(indices, sign, bit, dimension=dimension))
    if kind == "flip":
        for at in rng.integers(0, 8 * len(data), int(rng.integers(1, 4))).tolist():
            data[at // 8] ^= 1 << at % 8
    elif kind == "cut":
        del data[int(rng.integers(0, len(data))) :]
    elif kind == "extend":
        data += rng.bytes(int(rng.integers(1, 9)))
    else:
        data[:2] = rng.bytes(2)
    accepted = accepted_or_refused(bytes(data), dimension, indices.size, has_bit)
    if kind in {"cut", "extend"}:
        assert not accepted


@settings(deadline=None, derandomize=True, max_examples=150)
@given(
    st.binary(max_size=40),
    st.sampled_from([(1, 1), (9, 4), (200, 199), (5_994, 9), (MAX_DIMENSION, 3)]),
    st.booleans(),
    st.booleans(),
)
def test_arbitrary_bytes(data: bytes, size: tuple[int, int], has_bit: bool, shape: bool) -> None:
    if shape:
        length = 2 + encoded_length(size[0], size[1])
        data = (bytes((1, 2 * has_bit)) + data).ljust(length, b"\0")[:length]
    accepted_or_refused(data, *size, has_bit)


@pytest.mark.parametrize("has_bit", [False, True])
def test_every_header(has_bit: bool) -> None:
    """Two signs, and two bits where there is one: of 65,536 headers no others pass."""
    body = encode_report(np.array([0, 3, 7]), 1, None, dimension=9)[2:]
    passed = set()
    for version in range(256):
        for flags in range(256):
            if accepted_or_refused(bytes((version, flags)) + body, 9, 3, has_bit):
                passed.add((version, flags))
    assert passed == ({(1, 2), (1, 3), (1, 6), (1, 7)} if has_bit else {(1, 0), (1, 1)})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", LENGTH),
        (b"\1", LENGTH),
        (b"\0", VERSION),
        (b"\2" + bytes(500), VERSION),
        (b"\1" + bytes(500), LENGTH),
        (b"\1\2" + bytes(13), FLAGS),
        (b"\1\4" + bytes(13), FLAGS),
        (b"\1\x08" + bytes(13), FLAGS),
        (b"\1\1" + bytes(13), RANGE),
        (b"\1\1" + bytes(12) + b"\x80", PADDING),
    ],
)
def test_reasons(data: bytes, reason: str) -> None:
    assert 2 + encoded_length(5_994, 9) == 15
    with pytest.raises(WireError) as caught:
        decode_report(data, dimension=5_994, dim_out=9, has_bit=False)
    assert caught.value.reason == reason


def test_order_is_checked() -> None:
    """Two indices in one bucket, swapped."""
    data = bytearray(encode_report(np.array([10, 20]), 1, 1, dimension=2_000_000))
    low_bits = 19
    lows = int.from_bytes(data[2:7], "little")
    first, second = lows & (2**low_bits - 1), lows >> low_bits & (2**low_bits - 1)
    assert (first, second) == (10, 19)
    lows ^= (first ^ second) | (first ^ second) << low_bits
    data[2:7] = lows.to_bytes(5, "little")
    with pytest.raises(WireError) as caught:
        decode_report(bytes(data), dimension=2_000_000, dim_out=2, has_bit=True)
    assert caught.value.reason == ORDER


def test_fixed_bytes() -> None:
    """Bytes written today must be read tomorrow: a changed layout needs a new version."""
    data = encode_report(np.array([0, 5, 6, 99]), -1, 1, dimension=100)
    assert data.hex() == "010640040702"


@pytest.mark.parametrize(
    ("dimension", "dim_out"),
    [(MAX_DIMENSION, 1), (MAX_DIMENSION, 239), (MAX_DIMENSION, 4_096), (200_000, 4_096)],
)
def test_garbage_allocates_little(dimension: int, dim_out: int) -> None:
    """No more than a multiple of the length; a bitmap of the range would take 512 MB."""
    length = 2 + encoded_length(dimension, dim_out)
    body = np.random.default_rng(0).bytes(length - 2)
    garbage = [
        b"\1\0" + rest for rest in (body, bytes(length - 2), b"\xff" * (length - 2), body * 9)
    ]
    for data in garbage:  # fills the caches, which depend on public sizes alone
        accepted_or_refused(data, dimension, dim_out, False)
    tracemalloc.start()
    try:
        for data in garbage:
            accepted_or_refused(data, dimension, dim_out, False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000 + 100 * length


@pytest.mark.parametrize("sign", [0, 2, -2])
def test_bad_sign(sign: int) -> None:
    with pytest.raises(ValueError, match="sign must be"):
        encode_report(np.array([0]), sign, None, dimension=5)


@pytest.mark.parametrize("bit", [-1, 2])
def test_bad_bit(bit: int) -> None:
    with pytest.raises(ValueError, match="bit must be"):
        encode_report(np.array([0]), 1, bit, dimension=5)


@pytest.mark.parametrize(
    ("indices", "dimension"),
    [
        (np.array([3, 1]), 5),
        (np.array([1, 1]), 5),
        (np.array([5]), 5),
        (np.array([-1]), 5),
        (np.array([0.5]), 5),
        (np.array([0]), 2**32),
    ],
)
def test_bad_indices(indices: NDArray[np.int64], dimension: int) -> None:
    with pytest.raises(ValueError, match="must"):
        encode_report(indices, 1, None, dimension=dimension)


@pytest.mark.parametrize(("dimension", "dim_out"), [(0, 1), (5, 6), (5, 0), (10**6, 4097)])
def test_bad_sizes(dimension: int, dim_out: int) -> None:
    with pytest.raises(ValueError, match="must be in"):
        decode_report(b"\1\0", dimension=dimension, dim_out=dim_out, has_bit=False)
