"""The curve of the Gaussian mechanism against integrals in 60 digits and dp-accounting."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from flower_ldp.mechanisms.gaussian import (
    classical_deviation,
    gaussian_delta,
    gaussian_epsilon,
    largest_shift,
)
from tests.extras import extra

mpmath = extra("mpmath")
dp_accounting = extra("dp_accounting")
pld = extra("dp_accounting.pld")

EPSILONS = (1e-3, 0.1, 1.0, 8.0, 50.0, 100.0)
DELTAS = (1e-18, 1e-9, 1e-5, 1e-2, 0.5)


def by_integral(epsilon: float, shift: float) -> mpmath.mpf:
    """Integrate (p - e^epsilon q)_+ for p, q normal at distance ``shift``."""
    e, m = mpmath.mpf(epsilon), mpmath.mpf(shift)
    start = e / m + m / 2  # where p = e^epsilon q, with q at 0 and p at m
    return mpmath.quad(
        lambda t: mpmath.npdf(t, m) - mpmath.exp(e) * mpmath.npdf(t),
        [start + i * i * mpmath.mpf("0.1") for i in range(14)] + [mpmath.inf],
    )


def by_sum(epsilon: float, shift: float) -> float:
    """The same integral in doubles: p (1 - e^(-shift u)), at u beyond the start."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    u = (np.arange(0.0, 40.0, 0.5)[:, None] + (nodes + 1) / 4).ravel()
    p = np.exp(-((epsilon / shift - shift / 2 + u) ** 2) / 2) / math.sqrt(2 * math.pi)
    return float(np.tile(weights / 4, 80) @ (p * -np.expm1(-shift * u)))


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_inverse_meets_delta_and_is_tight(epsilon: float, delta: float) -> None:
    true = by_sum(epsilon, largest_shift(epsilon, delta))
    assert true <= delta * (1 + 1e-7)
    assert true >= delta * (1 - 1e-7)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1e-3, 1e-18), (1e-3, 0.5), (1.0, 1e-5), (100.0, 1e-18), (100.0, 0.5)]
)
def test_the_integral_is_right_in_doubles(epsilon: float, delta: float) -> None:
    """At the corners, against the same in 60 digits: a hundredth of what the test above allows."""
    shift = largest_shift(epsilon, delta)
    with mpmath.workdps(60):
        assert abs(by_integral(epsilon, shift) / by_sum(epsilon, shift) - 1) < 1e-9


def test_agrees_with_dp_accounting() -> None:
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_accounting.GaussianDpEvent(1 / 1.7))
    assert gaussian_delta(2.0, 1.7) == pytest.approx(accountant.get_delta(2.0), rel=1e-3)


def test_the_textbook_formula_fails_at_large_epsilon() -> None:
    assert gaussian_delta(0.5, 1 / classical_deviation(0.5, 1e-5)) < 1e-5
    assert gaussian_delta(50.0, 1 / classical_deviation(50.0, 1e-5)) == pytest.approx(
        0.586, abs=1e-3
    )
    assert 1 - gaussian_delta(50.0, 1 / classical_deviation(50.0, 0.01)) == pytest.approx(
        5.8e-7, rel=0.02
    )


def test_delta_falls_with_epsilon_and_grows_with_the_shift() -> None:
    by_epsilon = [gaussian_delta(e, 1.0) for e in (0.01, 0.5, 1.0, 3.0, 40.0)]
    assert by_epsilon == sorted(by_epsilon, reverse=True)
    by_shift = [gaussian_delta(1.0, m) for m in (1e-3, 0.1, 1.0, 5.0, 1e3)]
    assert by_shift == sorted(by_shift)
    assert by_shift[0] == 0.0
    assert by_shift[-1] == 1.0


@pytest.mark.parametrize(
    ("epsilon", "shift"),
    [(0.0, 1.0), (101.0, 1.0), (float("nan"), 1.0), (1.0, 0.0), (1.0, float("inf"))],
)
def test_delta_refuses(epsilon: float, shift: float) -> None:
    with pytest.raises(ValueError, match="must be in"):
        gaussian_delta(epsilon, shift)


@pytest.mark.parametrize("delta", [0.0, -1e-5, 0.6, float("nan")])
def test_inverse_refuses(delta: float) -> None:
    with pytest.raises(ValueError, match="delta must be in"):
        largest_shift(1.0, delta)


SHIFTS = (1e-3, 0.1, 1.0, 16.0, 60.0, 41_281.33, 1e9)


def in_60_digits(epsilon: float, shift: float) -> mpmath.mpf:
    """The curve as it is written, where e^epsilon has hundreds of millions of digits too."""
    e, m = mpmath.mpf(epsilon), mpmath.mpf(shift)
    return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("delta", [1e-18, 1e-9, 1e-5, 0.5])
def test_the_epsilon_of_any_shift_meets_delta_and_is_tight(shift: float, delta: float) -> None:
    epsilon = gaussian_epsilon(shift, delta)
    with mpmath.workdps(60):
        if epsilon == 0.0:
            assert 2 * mpmath.ncdf(mpmath.mpf(shift) / 2) - 1 <= delta
            return
        # A double of this size is this far from its neighbours.
        room = 2 * math.ulp(epsilon)
        assert in_60_digits(epsilon + room, shift) <= delta
        assert in_60_digits(epsilon * (1 - 1e-6), shift) >= delta * (1 - 1e-5)


@pytest.mark.parametrize("shift", [1e-300, 1e-14, 1e-12, 3e-10, 3e-9, 1e-7])
@pytest.mark.parametrize("delta", [1e-18, 1e-16, 1e-14, 1e-9])
def test_the_epsilon_of_a_tiny_shift_meets_delta_too(shift: float, delta: float) -> None:
    epsilon = gaussian_epsilon(shift, delta)
    with mpmath.workdps(60):
        if epsilon == 0.0:
            assert 2 * mpmath.ncdf(mpmath.mpf(shift) / 2) - 1 <= delta
        else:
            assert in_60_digits(epsilon, shift) <= delta
            assert epsilon < 1e-6


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 50.0])
def test_epsilon_and_shift_are_inverse(epsilon: float) -> None:
    shift = largest_shift(epsilon, 1e-6)
    assert gaussian_epsilon(shift, 1e-6) == pytest.approx(epsilon, rel=1e-5)


@pytest.mark.parametrize(
    ("shift", "delta", "name"),
    [(0.0, 0.1, "shift"), (math.inf, 0.1, "shift"), (1.0, 0.0, "delta"), (1.0, 1.0, "delta")],
)
def test_epsilon_of_a_shift_refuses_what_is_none(shift: float, delta: float, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be in"):
        gaussian_epsilon(shift, delta)


@pytest.mark.parametrize("delta", [3.8e-13, 8e-4, 0.25])
def test_the_epsilon_of_a_huge_shift_is_a_bound_before_roundings_too(delta: float) -> None:
    for shift in (123_615_639_968.35669, 9.194071526233382e16, 1.2818111744405397e37, 1e60):
        found, exact = Fraction(gaussian_epsilon(shift, delta)), Fraction(shift)
        # Beside the tail the other term is nothing; a float of it may be as large as it likes.
        assert math.erfc(min(40.0, float(found / exact - exact / 2)) * math.sqrt(0.5)) / 2 <= delta
