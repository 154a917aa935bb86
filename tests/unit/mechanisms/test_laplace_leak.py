"""What floating-point Laplace noise gives away (Mironov 2012), and integer noise does not."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from flower_ldp.mechanisms import Laplace, RandomSource

GRID = 2.0**-53


def reachable(
    outputs: NDArray[np.float64], value: float, scale: float, reach: int = 8
) -> NDArray[np.bool_]:
    """Return which outputs the inverse-transform sampler can make of ``value``.

    The sampler draws u on the grid of multiples of 2^-53, takes -scale * log(u) with a
    random sign and adds it to the value, each step in double precision. An output is
    possible if any u near the one that real arithmetic names gives it.
    """
    distance = np.abs(outputs - value) / scale
    nearest = np.rint(np.exp(-distance) / GRID)
    sign = np.where(outputs >= value, 1.0, -1.0)
    found = np.zeros(len(outputs), dtype=bool)
    for step in range(-reach, reach + 1):
        u = np.clip(nearest + step, 1, 2**53 - 1) * GRID
        found |= value + sign * (-scale * np.log(u)) == outputs
    return found


def textbook(value: float, scale: float, size: int, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    u = rng.integers(1, 2**53, size) * GRID
    return value + rng.choice([-1.0, 1.0], size) * (-scale * np.log(u))


@pytest.mark.parametrize("scale", [0.25, 0.5, 1.0, 2.0])
def test_most_float_outputs_are_impossible_from_the_neighbour(scale: float) -> None:
    for value, neighbour in ((0.0, 1.0), (1.0, 0.0)):
        outputs = textbook(value, scale, 20_000, seed=1)
        assert reachable(outputs, value, scale).all()
        impossible = ~reachable(outputs, neighbour, scale)
        assert impossible.mean() > 0.27
        # and looking farther finds no more ways to make them
        np.testing.assert_array_equal(impossible, ~reachable(outputs, neighbour, scale, 64))


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_no_integer_output_is_impossible_or_gives_away_more_than_epsilon(epsilon: float) -> None:
    mechanism = Laplace(epsilon, classes=2)
    value, neighbour = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    rng = RandomSource.seeded(2)
    for _ in range(400):  # of the textbook's outputs a quarter are impossible
        report = mechanism.randomize(value, rng)
        for x in (report - np.array([[0, mechanism.steps]])).ravel():
            assert mechanism.noise.probability(int(x)) > 0
        loss = mechanism.log_prob(report, value) - mechanism.log_prob(report, neighbour)
        assert abs(loss) <= epsilon + 1e-9


def test_outputs_of_both_inputs_lie_on_one_lattice() -> None:
    mechanism = Laplace(2.0, classes=2, rows=50_000)
    rng = RandomSource.seeded(3)
    seen = [
        set(np.unique(mechanism.randomize(np.tile(row, (50_000, 1)), rng)[:, 0] // 64).tolist())
        for row in (np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    ]
    # cells of 64 steps near both inputs are hit by either, since none is impossible
    common = set(range(0, mechanism.steps // 64))
    assert common <= seen[0]
    assert common <= seen[1]
