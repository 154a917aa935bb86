"""The SignDS report: header, strictness, and that it inherits the subset code's promises."""

from __future__ import annotations

import math
import tracemalloc
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flower_ldp.errors import WireError
from flower_ldp.mechanisms.signds_round import decode_report, encode_report
from flower_ldp.mechanisms.subset_code import encoded_length
from tests.fixtures import reason_of

REASONS = {"version", "flags", "length", "padding", "range", "order"}
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
    asked = {"dimension": dimension, "dim_out": dim_out}
    try:
        indices, sign, bit = decode_report(data, **asked, has_bit=has_bit)
    except WireError as error:
        if error.reason not in REASONS:
            raise
        return False
    assert (bit is not None) == has_bit
    assert encode_report(indices, sign, bit, dimension=dimension) == data
    return True


@settings(max_examples=100)
@given(reports())
def test_round_trip(report: tuple[int, NDArray[np.int64], int, int | None]) -> None:
    dimension, indices, sign, bit = report
    data = encode_report(indices, sign, bit, dimension=dimension)
    size = indices.size
    assert len(data) == 2 + encoded_length(dimension, size)
    assert len(data) <= 1.05 * math.log2(math.comb(dimension, size)) / 8 + 16
    asked = {"dimension": dimension, "dim_out": size}
    got, got_sign, got_bit = decode_report(data, **asked, has_bit=bit is not None)
    np.testing.assert_array_equal(got, indices)
    assert (got_sign, got_bit) == (sign, bit)
    assert type(got_sign) is int
    assert reason_of(decode_report, data, **asked, has_bit=bit is None) == "flags"


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


@settings(max_examples=100)
@given(reports(), st.sampled_from(["flip", "cut", "extend", "header"]), st.data())
def test_mutations(
    report: tuple[int, NDArray[np.int64], int, int | None], kind: str, drawn: st.DataObject
) -> None:
    dimension, indices, sign, bit = report
    rng = np.random.default_rng(drawn.draw(st.integers(0, 2**32 - 1)))
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
    accepted = accepted_or_refused(bytes(data), dimension, indices.size, drawn.draw(st.booleans()))
    assert not (accepted and kind in {"cut", "extend"})


@settings(max_examples=150)
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
    headers = product(range(256), repeat=2)
    passed = {head for head in headers if accepted_or_refused(bytes(head) + body, 9, 3, has_bit)}
    assert passed == ({(1, 2), (1, 3), (1, 6), (1, 7)} if has_bit else {(1, 0), (1, 1)})


@pytest.mark.parametrize(
    ("dimension", "dim_out"),
    [(MAX_DIMENSION, 1), (MAX_DIMENSION, 239), (MAX_DIMENSION, 4_096), (200_000, 4_096)],
)
def test_garbage_allocates_little(dimension: int, dim_out: int) -> None:
    """No more than a multiple of the length; a bitmap of the range would take 512 MB."""
    length = 2 + encoded_length(dimension, dim_out)
    body = np.random.default_rng(0).bytes(length - 2)
    bodies = (body, bytes(length - 2), b"\xff" * (length - 2), body * 9)
    garbage = [b"\1\0" + rest for rest in bodies]
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


@pytest.mark.parametrize(
    ("indices", "sign", "bit", "dimension", "text"),
    [([0], sign, None, 5, "sign must be") for sign in (0, 2, -2)]
    + [([0], 1, bit, 5, "bit must be") for bit in (-1, 2)]
    + [(indices, 1, None, 5, "must") for indices in ([3, 1], [1, 1], [5], [-1], [0.5])]
    + [([0], 1, None, 2**32, "must")],
)
def test_what_is_no_report_is_not_encoded(
    indices: list[float], sign: int, bit: int | None, dimension: int, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        encode_report(np.array(indices), sign, bit, dimension=dimension)


@pytest.mark.parametrize(("dimension", "dim_out"), [(0, 1), (5, 6), (5, 0), (10**6, 4097)])
def test_bad_sizes(dimension: int, dim_out: int) -> None:
    with pytest.raises(ValueError, match="must be in"):
        decode_report(b"\1\0", dimension=dimension, dim_out=dim_out, has_bit=False)
