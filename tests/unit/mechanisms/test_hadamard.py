"""Hadamard's matrix, public signs and public subspaces, against their definitions."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from flower_ldp.mechanisms import Codeword, Gaussian, RandomSource, SignDS, Subspace
from flower_ldp.mechanisms import hadamard as module
from flower_ldp.mechanisms.hadamard import signs, transform
from flower_ldp.mechanisms.inputs import noted


def sylvester(order: int) -> np.ndarray:
    matrix = np.ones((1, 1))
    while len(matrix) < order:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


@pytest.mark.parametrize("order", [1, 2, 4, 32, 64, 128, 512])
def test_transform_is_that_of_the_matrix(order: int) -> None:
    matrix = sylvester(order)
    values = np.random.default_rng(order).integers(-1000, 1000, order)
    assert (transform(values) == matrix @ values).all()


@pytest.mark.parametrize("order", [1 << 13, 1 << 18])
def test_a_large_transform_is_exact_on_integers(order: int) -> None:
    places = [0, 1, 63, 64, 4095, order - 1]
    values = np.zeros(order)
    values[places] = [3, -5, 7, 11, -13, 2**40]
    found = transform(values)
    for number in (0, 1, 64, 4096, order // 2 + 17, order - 1):
        flips = [(-1) ** (number & place).bit_count() for place in places]
        assert found[number] == values[places] @ flips
    assert (transform(found) == order * values).all()


def test_signs_are_the_bits_of_a_standard_function() -> None:
    stream = hashlib.shake_256(b"flower-ldp rotation" + b"\0" * 7 + b"\x05" + b"\0\0\1\2").digest(3)
    bits = "".join(f"{byte:08b}" for byte in stream)
    assert signs(5, 258, 16).tolist() == [-1 if bit == "1" else 1 for bit in bits[:16]]
    assert signs(5, 258, 4).tolist() == signs(5, 258, 16)[:4].tolist()


#: Weights and dimensions: powers of two, others, one more, one less, k near d, and k = d.
SIZES = [(1, 1), (2, 1), (3, 2), (5, 4), (6, 6), (31, 7), (32, 9), (33, 32), (63, 5), (100, 60)]
SIZES += [(127, 126), (128, 128), (201, 100), (201, 101)]


def bits(name: bytes, count: int) -> list[int]:
    stream = hashlib.shake_256(name).digest(-(-count // 8))
    return [byte >> (7 - place) & 1 for byte in stream for place in range(8)][:count]


def named(seed: int, count: int, weights: int) -> list[int]:
    stream = hashlib.shake_256(b"flower-ldp subspace" + seed.to_bytes(8, "big")).digest(80_000)
    found: list[int] = []
    for start in range(0, len(stream), 8):
        number = int.from_bytes(stream[start : start + 8], "big") % weights
        if len(found) < count and number not in found:
            found.append(number)
    assert len(found) == count
    return found


def dense(weights: int, dimension: int, seed: int, most: int = 2**24) -> np.ndarray:
    """Return S as a matrix, by the definition alone."""
    order = min(most, 2 ** int(math.log2(weights)))
    whole = np.eye(weights)
    for number in range(math.ceil(weights / order)):
        start = min(number * order, weights - order)
        name = b"flower-ldp rotation" + seed.to_bytes(8, "big")
        flips = bits(name + (2**31 + number).to_bytes(4, "big"), order)
        window = np.eye(weights)
        for i in range(order):
            for j in range(order):
                parity = bin(i & j).count("1") + flips[j]
                window[start + i, start + j] = (-1) ** parity / math.sqrt(order)
        whole = window @ whole
    if 2 * dimension <= weights:
        return whole[sorted(named(seed, dimension, weights))]
    left_out = set(named(seed, weights - dimension, weights))
    return whole[[row for row in range(weights) if row not in left_out]]


@pytest.mark.parametrize(("weights", "dimension"), SIZES)
def test_rows_are_orthonormal_and_those_of_the_definition(weights: int, dimension: int) -> None:
    subspace = Subspace(dimension, seed=2**63 - 1 - weights)
    matrix = dense(weights, dimension, subspace.seed)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(dimension), atol=1e-12)
    rng = np.random.default_rng(weights)
    update, step = rng.normal(size=weights), rng.normal(size=dimension)
    update.flags.writeable = step.flags.writeable = False
    np.testing.assert_allclose(subspace.project(update), matrix @ update, atol=1e-12)
    np.testing.assert_allclose(subspace.lift(step, weights), matrix.T @ step, atol=1e-12)


@pytest.mark.parametrize("weights", [8, 9, 23, 31, 40])
def test_long_models_have_windows(weights: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ORDER", 8)
    matrix = dense(weights, 5, 3, most=8)
    update, step = np.random.default_rng(0).normal(size=weights), np.arange(5.0)
    np.testing.assert_allclose(Subspace(5, 3).project(update), matrix @ update, atol=1e-12)
    np.testing.assert_allclose(Subspace(5, 3).lift(step, weights), matrix.T @ step, atol=1e-12)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(5), atol=1e-12)


@pytest.mark.parametrize(("weights", "dimension"), [(61_706, 2_000), (100_003, 99_000)])
def test_a_real_size_is_isometric_and_adjoint(weights: int, dimension: int) -> None:
    subspace, rng = Subspace(dimension, seed=5), np.random.default_rng(1)
    update, step = rng.normal(size=weights), rng.normal(size=dimension)
    lifted, projected = subspace.lift(step, weights), subspace.project(update)
    assert projected @ step == pytest.approx(update @ lifted, rel=1e-9)
    assert np.linalg.norm(lifted) == pytest.approx(np.linalg.norm(step), rel=1e-12)
    np.testing.assert_allclose(subspace.project(lifted), step, atol=1e-10)


@pytest.mark.parametrize("size", [np.finfo(np.float32).max, np.float32(1e-45)])
def test_huge_and_tiny_entries_stay_finite_and_count(size: np.float32) -> None:
    subspace = Subspace(100, seed=2)
    update = np.full(1_000, size, dtype=np.float32)
    with np.errstate(all="raise"):
        found = subspace.project(update)
    assert np.isfinite(found).all()
    plain = subspace.project(np.ones(1_000))
    np.testing.assert_allclose(found / np.float64(size), plain, rtol=1e-6, atol=1e-12)


def test_what_is_projected_of_huge_entries_is_no_neutral_value() -> None:
    update = np.full(1_000, np.finfo(np.float32).max, dtype=np.float32)
    projected = Subspace(64).project(update)
    for mechanism in (SignDS(8.0, 0.25, dim_out=5), Codeword(8.0), Gaussian(8.0, 1e-6)):
        with noted() as notes:
            mechanism.randomize(projected, RandomSource.seeded(0), 64)
        assert notes == []
