"""Server optimizers against their recursions, written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from flower_ldp.strategies.optimizers import FixedLength, Momentum, ServerOptimizer


def proposals(rounds: int, dimension: int = 5) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=dimension).astype(np.float32) for _ in range(rounds)]


def running_sums(steps: list[NDArray[np.float32]], momentum: float) -> list[NDArray[np.float64]]:
    return [
        np.sum([momentum ** (i - j) * steps[j].astype(float) for j in range(i + 1)], axis=0)
        for i in range(len(steps))
    ]


def length(step: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(step.astype(float)))


@pytest.mark.parametrize(("momentum", "rate"), [(0.0, 1.0), (0.9, 1.0), (0.5, 0.25)])
def test_momentum_is_a_discounted_sum(momentum: float, rate: float) -> None:
    steps = proposals(20)
    optimizer = Momentum(momentum, rate)
    for i, total in enumerate(running_sums(steps, momentum)):
        taken = optimizer.step(steps[i], i + 1)
        assert taken.dtype == np.float32
        np.testing.assert_allclose(taken, rate * total, rtol=1e-5, atol=1e-6)


def test_without_momentum_the_step_is_the_proposal() -> None:
    optimizer = Momentum(0.0)
    for i, proposed in enumerate(proposals(5)):
        np.testing.assert_array_equal(optimizer.step(proposed, i + 1), proposed)


@pytest.mark.parametrize("final_fraction", [0.0, 0.25, 1.0])
def test_length_decays_linearly_over_the_plan_and_stays(final_fraction: float) -> None:
    optimizer = FixedLength(2.0, rounds=8, momentum=0.9, final_fraction=final_fraction)
    lengths = [length(optimizer.step(step, i + 1)) for i, step in enumerate(proposals(12))]
    planned = [2.0 * (1 - min(i / 8, 1) * (1 - final_fraction)) for i in range(12)]
    np.testing.assert_allclose(lengths, planned, rtol=1e-6)
    assert lengths[0] == pytest.approx(2.0)


def test_direction_is_that_of_the_running_sum() -> None:
    steps = proposals(10)
    optimizer = FixedLength(1.0, rounds=100, momentum=0.7)
    for i, total in enumerate(running_sums(steps, 0.7)):
        taken = optimizer.step(steps[i], i + 1).astype(float)
        cosine = taken @ total / (np.linalg.norm(taken) * np.linalg.norm(total))
        assert cosine == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("scale", [1e-25, 1e-6, 1e6, 1e25])
def test_only_the_direction_of_proposals_counts(scale: float) -> None:
    plain, scaled = FixedLength(1.0, rounds=10), FixedLength(1.0, rounds=10)
    for i, proposed in enumerate(proposals(5)):
        expected = plain.step(proposed, i + 1)
        taken = scaled.step(proposed * np.float32(scale), i + 1)
        np.testing.assert_allclose(taken, expected, rtol=1e-4, atol=1e-6)


def test_no_direction_means_no_step() -> None:
    optimizer = FixedLength(1.0, rounds=10)
    np.testing.assert_array_equal(optimizer.step(np.zeros(3, dtype=np.float32), 1), np.zeros(3))
    assert length(optimizer.step(np.array([0, 3, 4], dtype=np.float32), 2)) == pytest.approx(0.9)


@pytest.mark.parametrize("optimizer", [Momentum(), FixedLength(1.0, rounds=10)])
def test_arrays_of_the_caller_are_never_changed_or_kept(optimizer: ServerOptimizer) -> None:
    first, second = proposals(2)
    kept_first, kept_second = first.copy(), second.copy()
    taken = optimizer.step(first, 1)
    kept_taken = taken.copy()
    first[:] = 99.0
    optimizer.step(second, 2)
    np.testing.assert_array_equal(taken, kept_taken)
    np.testing.assert_array_equal(second, kept_second)
    taken[:] = 99.0
    fresh = Momentum() if isinstance(optimizer, Momentum) else FixedLength(1.0, rounds=10)
    fresh.step(kept_first, 1)
    fresh.step(second, 2)
    np.testing.assert_array_equal(fresh.step(second, 3), optimizer.step(second, 3))


def test_state_is_not_part_of_equality() -> None:
    used = Momentum(0.9)
    used.step(np.ones(3, dtype=np.float32), 1)
    assert used == Momentum(0.9)


NOT_BELOW_ONE = [1.0, -0.1, math.nan]
NOT_POSITIVE = [0.0, -1.0, math.inf, math.nan]


@pytest.mark.parametrize("value", NOT_BELOW_ONE)
def test_momentum_domain(value: float) -> None:
    with pytest.raises(ValueError, match=rf"momentum must be in \[0, 1\), got {value}"):
        Momentum(value)
    with pytest.raises(ValueError, match=rf"momentum must be in \[0, 1\), got {value}"):
        FixedLength(1.0, 1, value)


@pytest.mark.parametrize("value", NOT_POSITIVE)
def test_rate_and_length_domains(value: float) -> None:
    with pytest.raises(ValueError, match=rf"learning_rate must be in \(0, inf\), got {value}"):
        Momentum(0.9, value)
    with pytest.raises(ValueError, match=rf"length must be in \(0, inf\), got {value}"):
        FixedLength(value, 1)


@pytest.mark.parametrize("value", [0, -1])
def test_rounds_domain(value: int) -> None:
    with pytest.raises(ValueError, match=f"rounds must be an integer in .*, got {value}"):
        FixedLength(1.0, value)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_final_fraction_domain(value: float) -> None:
    with pytest.raises(ValueError, match=rf"final_fraction must be in \[0, 1\], got {value}"):
        FixedLength(1.0, 1, final_fraction=value)


def test_descriptions_hold_every_parameter() -> None:
    assert Momentum(0.8, 0.5).describe() == "Momentum(momentum=0.8, learning_rate=0.5)"
    text = FixedLength(2.5, 40, 0.7, 0.1).describe()
    for number in ("2.5", "40", "0.7", "0.1"):
        assert number in text
