"""Hadamard's matrix and public signs, against their definitions."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from flower_ldp.mechanisms.hadamard import order_for, signs, transform


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
        parity = [(number & place).bit_count() % 2 for place in places]
        assert found[number] == sum(
            values[p] * (-1) ** odd for p, odd in zip(places, parity, strict=True)
        )
    assert (transform(found) == order * values).all()


def test_signs_are_the_bits_of_a_standard_function() -> None:
    stream = hashlib.shake_256(b"flower-ldp rotation" + b"\0" * 7 + b"\x05" + b"\0\0\1\2").digest(3)
    bits = "".join(f"{byte:08b}" for byte in stream)
    assert signs(5, 258, 16).tolist() == [-1 if bit == "1" else 1 for bit in bits[:16]]
    assert signs(5, 258, 4).tolist() == signs(5, 258, 16)[:4].tolist()


def test_signs_of_other_codes_have_nothing_in_common() -> None:
    found = [
        signs(seed, number, 4096).astype(int) for seed in (0, 1, 2**63 - 1) for number in (0, 7)
    ]
    for i, one in enumerate(found):
        # Five deviations of a sum of 4096 fair signs.
        assert all(abs(int(one @ other)) < 5 * 64 for other in found[:i])


@pytest.mark.parametrize(
    ("dimension", "order"), [(1, 1), (2, 2), (3, 4), (2010, 2048), (2048, 2048)]
)
def test_order(dimension: int, order: int) -> None:
    assert order_for(dimension) == order
