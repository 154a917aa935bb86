"""The source of randomness, which is exactly uniform, and what compares with e^epsilon exactly."""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_ldp.mechanisms.random import EXP_BITS, RandomSource, exp_lower, uniform
from flower_ldp.mechanisms.signds_size import exp_scaled_at_least
from flower_ldp.privacy import as_fraction
from tests.extras import extra
from tests.statistical.follows import assert_follows
from tests.unit.mechanisms.sources import Scripted

mpmath = extra("mpmath")


def assert_uniform(values: Iterable[int], high: int, cells: int) -> None:
    """Check draws from [0, high) in cells of equal length, which are as likely as each other."""
    counts = Counter(value * cells // high for value in values)
    assert set(counts) <= set(range(cells))
    assert_follows([counts[i] for i in range(cells)], [1 / cells] * cells)


# Seeds and keys.


def test_seeded_stream_is_pinned() -> None:
    # Changing the stream changes every experiment that was ever seeded.
    assert RandomSource.seeded(0).random_bytes(16).hex() == "cca0f79523141386c61f7cf5c61b3f65"
    assert RandomSource.seeded(-7).random_bytes(16).hex() == "c8d69b6343bc78792a2a742cf9386e88"
    rng = RandomSource.seeded(1)
    assert [rng.below(1000) for _ in range(5)] == [715, 925, 118, 122, 573]
    assert rng.integers(1000, 5).tolist() == [594, 352, 868, 64, 924]
    assert rng.words(1).tolist() == [16094361790139458382]
    assert [rng.sign() for _ in range(8)] == [1, -1, 1, 1, 1, -1, -1, 1]


def test_seeded_stream_is_aes_256_in_counter_mode() -> None:
    key = hashlib.sha256(b"flower-ldp seeded source 42").digest()
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(10_000))
    assert RandomSource.seeded(42).random_bytes(10_000) == stream


def test_every_seed_and_every_source_of_the_operating_system_differs() -> None:
    sources = [RandomSource.seeded(seed) for seed in range(-50, 50)]
    assert all(source.is_seeded for source in sources)
    sources += [make() for make in (RandomSource, RandomSource.from_os) for _ in range(50)]
    assert len({source.random_bytes(32) for source in sources}) == 200
    assert not sources[-1].is_seeded


def test_the_key_is_256_bits_of_operating_system_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def entropy(n: int) -> bytes:
        asked.append(n)
        return bytes(range(n))

    monkeypatch.setattr(os, "urandom", entropy)
    stream = RandomSource.from_os().random_bytes(64)
    cipher = Cipher(algorithms.AES(bytes(range(32))), modes.CTR(bytes(16)))
    assert asked == [32]
    assert stream == cipher.encryptor().update(bytes(64))


# One state, one holder.

FORK = """
import os, sys
from flower_ldp.mechanisms.random import RandomSource

rng = RandomSource.from_os()
rng.random_bytes(8)  # leaves a filled buffer behind
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    grandchild = os.fork()
    os.write(writer, rng.random_bytes(32))
    if grandchild:
        os.waitpid(grandchild, 0)
    os._exit(0)
os.waitpid(child, 0)
os.close(writer)
drawn = [rng.random_bytes(32)]
while piece := os.read(reader, 32):
    drawn.append(piece)
print(len(drawn), len(set(drawn)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_after_a_fork_every_process_draws_its_own_bytes() -> None:
    # In a process of its own: forking this one, which has threads, is a warning.
    command = [sys.executable, "-c", FORK]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["3", "3"]


@pytest.mark.parametrize("source", [RandomSource.from_os(), RandomSource.seeded(0)])
def test_a_source_cannot_be_duplicated(source: RandomSource) -> None:
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            duplicate(source)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            pickle.dumps(source, protocol)
    with pytest.raises(AttributeError):
        source.seed = 1  # type: ignore[attr-defined]


sizes = st.integers(0, 40) | st.sampled_from([4095, 4096, 4097]) | st.integers(4000, 9000)


@settings(deadline=None, derandomize=True)
@given(st.lists(sizes, max_size=20))
def test_drawing_in_pieces_is_drawing_at_once(pieces: list[int]) -> None:
    rng = RandomSource.seeded(5)
    drawn = b"".join(rng.random_bytes(n) for n in pieces)
    assert drawn == RandomSource.seeded(5).random_bytes(sum(pieces))


# Draws.


def test_words_are_the_streams_bytes_little_end_first() -> None:
    words = RandomSource.seeded(3).words(5)
    stream = RandomSource.seeded(3).random_bytes(40)
    assert words.dtype == np.uint64
    assert words.shape == (5,)
    assert words.tolist() == [int.from_bytes(stream[8 * i : 8 * i + 8], "little") for i in range(5)]


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 64, 65, 256])
def test_bits_stay_in_range_and_reach_the_highest(n: int) -> None:
    rng = RandomSource.seeded(n)
    drawn = [rng.bits(n) for _ in range(200)]
    assert all(0 <= value < 1 << n for value in drawn)
    assert n == 0 or {value >> (n - 1) for value in drawn} == {0, 1}


# Of a range just above a power of two, half of all candidates are rejected.
@pytest.mark.parametrize("high", [2, 3, 5, 9, 17, 200, 256, 257, 2**62 + 1, 2**63, 2**64 + 1])
def test_integers_are_uniform_one_by_one_and_in_arrays(high: int) -> None:
    rng, cells = RandomSource.seeded(high), min(high, 257)
    drawn = [[rng.below(high) for _ in range(20_000)]]
    if high <= 2**63:
        array = rng.integers(high, 100_000)
        assert (array.dtype, array.shape) == (np.int64, (100_000,))
        drawn.append(array.tolist())
    for values in drawn:
        assert_uniform(values, high, cells)


def test_a_range_of_one_is_zero_and_few_integers_are_as_many_as_asked_for() -> None:
    rng = RandomSource.seeded(15)
    assert (rng.below(1), rng.bits(0)) == (0, 0)
    assert rng.integers(1, 4).tolist() == [0, 0, 0, 0]
    for high in (1, 2, 1000, 3 * 2**61, 2**63 - 1, 2**63):
        for size in (0, 1):
            drawn = rng.integers(high, size)
            assert (drawn.dtype, drawn.shape) == (np.int64, (size,))
            assert all(0 <= value < high for value in drawn.tolist())


def test_signs_and_bytes_are_uniform() -> None:
    rng = RandomSource.seeded(16)
    signs = [rng.sign() for _ in range(20_000)]
    assert set(signs) == {-1, 1}
    assert_uniform([(sign + 1) // 2 for sign in signs], 2, 2)
    assert_uniform(rng.random_bytes(200_000), 256, 256)


def test_uniform_is_exact_over_all_its_draws() -> None:
    # 3 * 2^30 ends: of the 2^32 draws each end gets exactly one, 2^30 are refused. The
    # surplus is 2^30: draw x gives 3x // 4, refused where 3x mod 4 (in units of 2^30) is 0.
    draws = np.array([0, 1, 4, 5, 6, 7], dtype="<u4").tobytes()
    found = uniform(3 * 2**30, 4, Scripted(drawn=draws))
    assert found.tolist() == [3 * 6 // 4, 0, 3 * 7 // 4, 3]
    assert uniform(1, 3, RandomSource.seeded(0)).tolist() == [0, 0, 0]
    assert uniform(5, 0, RandomSource.seeded(0)).shape == (0,)
    ends = Scripted(drawn=b"\0\0\0\0\xff\xff\xff\xff")
    assert uniform(2**32, 2, ends).tolist() == [0, 2**32 - 1]


def test_uniform_with_an_end_for_each() -> None:
    ends = np.tile([1, 2, 3, 2**31], 20_000)
    found = uniform(ends, len(ends), RandomSource.seeded(3)).reshape(-1, 4)
    assert (found[:, 0] == 0).all()
    for column, end in zip(found.T[1:].tolist(), (2, 3, 2**31), strict=True):
        assert_uniform(column, end, min(end, 100))


EPSILONS = [1e-6, 1e-3, 0.1, 0.15, 0.5, math.log(2), 1.0, 2.0, 7.3, 10.0, 33.3, 64.0, 99.9, 100.0]
DIGITS = 800
any_integer = st.integers(-(10**40), 10**40)


def power(epsilon: float) -> mpmath.mpf:
    """Return e^epsilon for the decimal that ``epsilon`` prints as; call under workdps."""
    return mpmath.exp(mpmath.mpf(repr(float(epsilon))))


def convergents(epsilon: float, largest: int) -> list[tuple[int, int]]:
    """Return the continued-fraction convergents b/a of e^epsilon up to ``largest``, as (a, b)."""
    x = power(epsilon)
    before, last = (0, 1), (1, 0)
    pairs = []
    while last[0] < largest:
        digit = int(mpmath.floor(x))
        before, last = last, (digit * last[0] + before[0], digit * last[1] + before[1])
        pairs.append((last[1], last[0]))
        x = 1 / (x - digit)
    return pairs


def test_parameters_are_the_decimals_that_they_print_as() -> None:
    values = [0.15, 0.1, 1e-30, 7]
    exact = [Fraction(3, 20), Fraction(1, 10), Fraction(1, 10**30), 7]
    assert [as_fraction(value) for value in values] == exact
    assert as_fraction(0.15) != Fraction(0.15)


@pytest.mark.parametrize("epsilon", [0.0, 5e-324, 1e-300, 1e-40, *EPSILONS])
def test_lower_bound_is_below_by_less_than_two_units(epsilon: float) -> None:
    for bits in (0, 1, 10, 64, EXP_BITS, 1000, 1200):
        with mpmath.workdps(DIGITS):
            true = power(epsilon) * mpmath.mpf(2) ** bits
            assert exp_lower(epsilon, bits) <= true < exp_lower(epsilon, bits) + 2


@settings(deadline=None, derandomize=True, max_examples=120)
@given(st.floats(1e-6, 100), st.integers(0, 300))
def test_lower_bound_holds_for_any_epsilon(epsilon: float, bits: int) -> None:
    with mpmath.workdps(DIGITS):
        true = power(epsilon) * mpmath.mpf(2) ** bits
        assert exp_lower(epsilon, bits) <= true < exp_lower(epsilon, bits) + 2


@settings(deadline=None, derandomize=True, max_examples=120)
@given(st.sampled_from(EPSILONS), any_integer, any_integer)
def test_comparison_of_any_integers(epsilon: float, a: int, b: int) -> None:
    with mpmath.workdps(DIGITS):
        assert exp_scaled_at_least(epsilon, a, b) == bool(a * power(epsilon) >= b)


@settings(deadline=None, derandomize=True, max_examples=120)
@given(st.sampled_from(EPSILONS), st.integers(1, 10**60), st.integers(-2, 2))
def test_comparison_of_neighbouring_integers(epsilon: float, a: int, offset: int) -> None:
    with mpmath.workdps(DIGITS):
        b = int(mpmath.floor(a * power(epsilon))) + offset
        assert exp_scaled_at_least(epsilon, a, b) == (offset <= 0)
        assert exp_scaled_at_least(epsilon, -a, -b) == (offset > 0)


@pytest.mark.parametrize("epsilon", EPSILONS[::2])
def test_near_ties_are_decided_by_more_digits(epsilon: float) -> None:
    with mpmath.workdps(DIGITS):
        near = 0
        for a, b in convergents(epsilon, 10**200):
            gap = a * power(epsilon) - b
            near += abs(gap) < mpmath.mpf(10) ** -60
            assert exp_scaled_at_least(epsilon, a, b) == bool(gap > 0)
            assert exp_scaled_at_least(epsilon, -a, -b) == bool(gap < 0)
        assert near >= 10


@pytest.mark.parametrize("epsilon", [0.0, 1e-300, 1e-6, 1.0, 100.0])
def test_signs_and_zeros(epsilon: float) -> None:
    sizes = (0, 1, 2, 3, 10**50, 10**50 + 1)
    for a, b in itertools.product([*sizes, *(-size for size in sizes)], repeat=2):
        with mpmath.workdps(DIGITS):
            assert exp_scaled_at_least(epsilon, a, b) == bool(a * power(epsilon) >= b)
