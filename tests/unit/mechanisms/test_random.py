"""The source of randomness: repeatable only by name, never shared, exactly uniform."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_ldp.mechanisms.random import RandomSource
from tests.extras import extra

mpmath = extra("mpmath")

FAILURE_RATE = 1e-6


def p_value(observed: Iterable[int], cells: int) -> float:
    """Return the chi-square p-value of draws that should be uniform on [0, cells)."""
    counts = Counter(observed)
    assert set(counts) <= set(range(cells))
    expected = sum(counts.values()) / cells
    statistic = sum((counts[i] - expected) ** 2 / expected for i in range(cells))
    return float(mpmath.gammainc((cells - 1) / 2, statistic / 2, regularized=True))


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


def test_seeds_give_different_streams() -> None:
    streams = {RandomSource.seeded(seed).random_bytes(32) for seed in range(-50, 50)}
    assert len(streams) == 100


def test_sources_of_the_operating_system_differ() -> None:
    make: list[Callable[[], RandomSource]] = [RandomSource, RandomSource.from_os]
    streams = {source().random_bytes(32) for source in make for _ in range(50)}
    assert len(streams) == 100


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


def test_numpys_global_seed_has_no_influence() -> None:
    state = np.random.get_state()  # noqa: NPY002
    try:
        np.random.seed(0)  # noqa: NPY002
        first = RandomSource.from_os().random_bytes(32)
        np.random.seed(0)  # noqa: NPY002
        assert RandomSource.from_os().random_bytes(32) != first
    finally:
        np.random.set_state(state)  # noqa: NPY002


def test_a_source_says_whether_it_is_seeded() -> None:
    assert RandomSource.seeded(0).is_seeded
    assert not RandomSource.from_os().is_seeded


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
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["3", "3"]


@pytest.mark.parametrize("source", [RandomSource.from_os(), RandomSource.seeded(0)])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_source_cannot_be_duplicated(
    source: RandomSource, duplicate: Callable[[object], object]
) -> None:
    with pytest.raises(TypeError, match=r"cannot be (copied|pickled)"):
        duplicate(source)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_pickle_protocol_works(protocol: int) -> None:
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        pickle.dumps(RandomSource.from_os(), protocol)


def test_a_source_has_no_room_for_more_state() -> None:
    with pytest.raises(AttributeError):
        RandomSource.from_os().seed = 1  # type: ignore[attr-defined]


# The buffer.


@settings(deadline=None, derandomize=True)
@given(st.lists(st.one_of(st.integers(0, 40), st.integers(4000, 9000)), max_size=20))
def test_drawing_in_pieces_is_drawing_at_once(pieces: list[int]) -> None:
    rng = RandomSource.seeded(5)
    drawn = b"".join(rng.random_bytes(n) for n in pieces)
    assert drawn == RandomSource.seeded(5).random_bytes(sum(pieces))


@pytest.mark.parametrize("first", [0, 1, 4095, 4096, 4097])
def test_pieces_around_the_buffers_end(first: int) -> None:
    rng = RandomSource.seeded(6)
    whole = RandomSource.seeded(6).random_bytes(first + 4097 + 1)
    assert rng.random_bytes(first) + rng.random_bytes(4097) + rng.random_bytes(1) == whole


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
    assert n == 0 or any(value >> (n - 1) for value in drawn)
    assert n == 0 or any(not value >> (n - 1) for value in drawn)


@pytest.mark.parametrize("cells", [1, 2, 3, 5, 17, 200, 256, 257])
def test_below_is_uniform(cells: int) -> None:
    rng = RandomSource.seeded(cells)
    draws = [rng.below(cells) for _ in range(20_000)]
    assert p_value(draws, cells) > FAILURE_RATE if cells > 1 else set(draws) == {0}


def test_below_is_uniform_beyond_64_bits() -> None:
    # Of a range just above a power of two, half of all candidates are rejected.
    n = 2**64 + 1
    rng = RandomSource.seeded(11)
    draws = [rng.below(n) for _ in range(10_000)]
    assert all(0 <= value < n for value in draws)
    assert p_value([value * 50 // n for value in draws], 50) > FAILURE_RATE


def test_below_reaches_both_ends_of_a_range_above_a_power_of_two() -> None:
    rng = RandomSource.seeded(12)
    assert {rng.below(2**3 + 1) for _ in range(1000)} == set(range(9))


@pytest.mark.parametrize("cells", [2, 3, 5, 17, 200, 256, 257])
def test_integers_are_uniform(cells: int) -> None:
    drawn = RandomSource.seeded(cells).integers(cells, 100_000)
    assert drawn.dtype == np.int64
    assert drawn.shape == (100_000,)
    assert p_value(drawn.tolist(), cells) > FAILURE_RATE


@pytest.mark.parametrize("high", [3 * 2**61, 2**62 + 1, 2**63 - 1, 2**63])
def test_integers_of_large_ranges_are_uniform(high: int) -> None:
    drawn = RandomSource.seeded(13).integers(high, 20_000).tolist()
    assert all(0 <= value < high for value in drawn)
    assert p_value([value * 64 // high for value in drawn], 64) > FAILURE_RATE


@pytest.mark.parametrize("high", [1, 2, 1000, 2**63])
@pytest.mark.parametrize("size", [0, 1])
def test_integers_have_the_asked_size(high: int, size: int) -> None:
    drawn = RandomSource.seeded(14).integers(high, size)
    assert drawn.shape == (size,)
    assert drawn.dtype == np.int64
    assert np.all((drawn >= 0) & (drawn.astype(object) < high))


def test_a_range_of_one_is_zero() -> None:
    rng = RandomSource.seeded(15)
    assert rng.below(1) == 0
    assert rng.integers(1, 4).tolist() == [0, 0, 0, 0]
    assert rng.bits(0) == 0


def test_signs_are_a_fair_coin() -> None:
    rng = RandomSource.seeded(16)
    draws = [rng.sign() for _ in range(20_000)]
    assert set(draws) == {-1, 1}
    assert p_value([(sign + 1) // 2 for sign in draws], 2) > FAILURE_RATE


def test_bytes_are_uniform() -> None:
    assert p_value(RandomSource.seeded(17).random_bytes(200_000), 256) > FAILURE_RATE


# Domains.


@pytest.mark.parametrize("n", [0, -1, -(2**70)])
def test_below_domain(n: int) -> None:
    with pytest.raises(ValueError, match=f"n must be positive, got {n}"):
        RandomSource.seeded(0).below(n)


@pytest.mark.parametrize("high", [0, -1, 2**63 + 1])
def test_integers_domain(high: int) -> None:
    with pytest.raises(ValueError, match=rf"high must be in \[1, 2\^63\], got {high}"):
        RandomSource.seeded(0).integers(high, 1)


@pytest.mark.parametrize("size", [-1, -100])
def test_a_negative_size_is_refused(size: int) -> None:
    rng = RandomSource.seeded(0)
    with pytest.raises(ValueError, match=r"must be|negative"):
        rng.words(size)
    for high in (1, 5, 2**63):
        with pytest.raises(ValueError, match=r"must be|negative"):
            rng.integers(high, size)


@pytest.mark.parametrize("n", [-1, -7, -8, -100])
def test_a_negative_number_of_bytes_or_bits_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"must be at least 0, got {n}"):
        RandomSource.seeded(0).random_bytes(n)
    with pytest.raises(ValueError, match="must be at least 0"):
        RandomSource.seeded(0).bits(n)
