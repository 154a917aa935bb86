"""What sums of reports are worth, and how long they are where reports say nothing."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from flower_ldp.mechanisms import Codeword, CodewordReport, Gaussian, RandomSource, SignDS
from flower_ldp.mechanisms.base import NullDistribution, cosine_of, run_cosine, signal_of
from flower_ldp.mechanisms.signds import sum_of_signs


def moments(vectors: np.ndarray, others: np.ndarray) -> tuple[float, float, float]:
    """Return the mean square length, and the products' mean and mean square, over all pairs."""
    products = vectors @ others.T
    squares = (vectors**2).sum(axis=1)
    return float(squares.mean()), float(products.mean()), float((products**2).mean())


@pytest.mark.parametrize(("dimension", "favoured"), [(8, 1), (5, 3), (11, 2)])
def test_the_law_of_uniform_codewords(dimension: int, favoured: int) -> None:
    """Of two codes and of one and the same, by every pair of codewords."""
    mechanism = Codeword(2.0, favoured=favoured, rotations=3, seed=5)
    plan = mechanism.plan(dimension)
    codes = []
    for rotation in range(3):
        rows = itertools.product(range(plan.order), (1, -1))
        named = [CodewordReport(plan.order, rotation, *one) for one in rows]
        codes.append(np.array([mechanism.total([one], dimension) for one in named]))
    for one, other in itertools.product(codes, codes):
        square, mean, product = moments(one, other)
        assert square == pytest.approx(plan.null_distribution.square_length)
        assert mean == pytest.approx(0.0, abs=1e-12)
        assert product == pytest.approx(plan.null_distribution.square_product)


@pytest.mark.parametrize(("dimension", "dim_out"), [(7, 3), (5, 1), (4, 4)])
def test_the_law_of_uniform_selections(dimension: int, dim_out: int) -> None:
    subsets = []
    for chosen in itertools.combinations(range(dimension), dim_out):
        vector = np.zeros(dimension)
        vector[list(chosen)] = 1.0
        subsets += [vector, -vector]
    law = SignDS(2.0, 0.25, dim_out=dim_out).plan(dimension, quiet=True).null_distribution
    square, mean, product = moments(np.array(subsets), np.array(subsets))
    assert square == law.square_length
    assert mean == pytest.approx(0.0)
    assert product == pytest.approx(law.square_product)


def test_the_law_of_noise_alone() -> None:
    mechanism, dimension, reports = Gaussian(2.0, 1e-6), 20_000, 10
    zeros, source = np.zeros(dimension), RandomSource.seeded(3)
    total = sum(mechanism.randomize(zeros, source).astype(float) for _ in range(reports))
    law = mechanism.plan(dimension).null_distribution
    assert law.deviation(reports) == pytest.approx(math.sqrt(2 / dimension), rel=0.06)
    assert abs(law.signal(float(total @ total), reports)) < 5 * law.deviation(reports)


@pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.SmallTopSetWarning")
@pytest.mark.parametrize(
    ("mechanism", "add"),
    [
        (Codeword(8.0), lambda drawn: Codeword(8.0).total(drawn, 300)),
        (SignDS(8.0), lambda drawn: sum_of_signs(drawn, 300).astype(float)),
        (Gaussian(8.0, 1e-6, 1e-9), lambda drawn: np.sum(drawn, axis=0, dtype=float)),
    ],
)
def test_of_clients_that_agree_the_sum_shows_the_signal(mechanism: Any, add: Any) -> None:
    dimension, reports = 300, 60
    update = np.random.default_rng(1).normal(size=dimension)
    source, plan = RandomSource.seeded(2), mechanism.plan(dimension)
    total = add([mechanism.randomize(update, source) for _ in range(reports)])
    signal = plan.null_distribution.signal(float(total @ total), reports)
    expected = reports * plan.efficiency / dimension
    assert signal == pytest.approx(expected, abs=0.45 * expected + 4 * 0.082)
    cosine = float(total @ update) / math.sqrt(float(total @ total) * float(update @ update))
    assert cosine == pytest.approx(plan.cosine_of_sum(reports), abs=0.12)


def test_signals_and_cosines_are_each_others_inverse() -> None:
    assert cosine_of(signal_of(0.7)) == pytest.approx(0.7)
    assert cosine_of(-1.0) == 0.0
    plan = Codeword(8.0).plan(2_010)
    assert run_cosine(plan, 0) == 0.0
    assert run_cosine(plan, 1_000) == pytest.approx(0.888, abs=1e-3)
    assert NullDistribution(2.0, 1.0).deviation(1) == 0.0
