"""What sums of reports are worth, and how long they are where reports say nothing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from flower_ldp.mechanisms import Codeword, CodewordReport, Gaussian, RandomSource, SignDS
from flower_ldp.mechanisms.base import (
    NullDistribution,
    cosine_of,
    run_cosine,
    signal_of,
)


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
        named = [
            CodewordReport(plan.order, rotation, row, sign)
            for row in range(plan.order)
            for sign in (1, -1)
        ]
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
    source = RandomSource.seeded(3)
    total = np.zeros(dimension)
    for _ in range(reports):
        total += mechanism.randomize(np.zeros(dimension), source)
    law = mechanism.plan(dimension).null_distribution
    assert law.deviation(reports) == pytest.approx(math.sqrt(2 / dimension), rel=0.06)
    assert abs(law.signal(float(total @ total), reports)) < 5 * law.deviation(reports)


@pytest.mark.parametrize("mechanism", [Codeword(8.0), SignDS(8.0), Gaussian(8.0, 1e-6, 1e-9)])
def test_of_clients_that_agree_the_sum_shows_the_signal_that_is_predicted(
    mechanism: Codeword | SignDS | Gaussian,
) -> None:
    dimension, reports = 300, 60
    update = np.random.default_rng(1).normal(size=dimension)
    source = RandomSource.seeded(2)
    quietly = {"quiet": True} if isinstance(mechanism, SignDS) else {}
    plan = mechanism.plan(dimension, **quietly)
    drawn = [mechanism.randomize(update, source) for _ in range(reports)]
    if isinstance(mechanism, Codeword):
        total = mechanism.total(drawn, dimension)  # type: ignore[arg-type]
    else:
        total = np.zeros(dimension)
        for one in drawn:
            if isinstance(mechanism, SignDS):
                total[one.indices.astype(np.int64)] += one.sign  # type: ignore[union-attr]
            else:
                total += one  # type: ignore[arg-type]
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


def test_one_report_has_no_deviation() -> None:
    assert NullDistribution(2.0, 1.0).deviation(1) == 0.0
