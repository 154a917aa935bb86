"""DP-SGD with little noise, against exact laws in 60 digits: what is stated is never less."""

from __future__ import annotations

import pytest

from flower_ldp.accounting.dpsgd import SampledGaussian
from tests.extras import extra

pytest.importorskip("scipy")
mpmath = extra("mpmath")


def above(at: mpmath.mpf, centre: int, noise: mpmath.mpf, rate: mpmath.mpf) -> mpmath.mpf:
    """Return the mass above a point: of a normal law, with a part of it around ``centre``."""
    return (1 - rate) * mpmath.ncdf(-at / noise) + rate * mpmath.ncdf((centre - at) / noise)


def gaussian(epsilon: float, shift: mpmath.mpf) -> mpmath.mpf:
    """Return the delta of steps in which all take part."""
    e = mpmath.mpf(epsilon)
    return mpmath.ncdf(shift / 2 - e / shift) - mpmath.exp(e) * mpmath.ncdf(-shift / 2 - e / shift)


def one_step(epsilon: float, noise: float, rate: float, *, replace: bool) -> mpmath.mpf:
    """Return the delta of one step, by the outputs at which the loss is larger than epsilon."""
    e, s, q = (mpmath.mpf(value) for value in (epsilon, noise, rate))
    if replace:
        k, middle = q * mpmath.exp(-1 / (2 * s**2)), (1 - q) * mpmath.expm1(e)
        root = mpmath.sqrt(middle**2 + 4 * k**2 * mpmath.exp(e))
        at = s**2 * mpmath.log((middle + root) / (2 * k))
        return above(at, 1, s, q) - mpmath.exp(e) * above(at, -1, s, q)
    at = s**2 * mpmath.log1p(mpmath.expm1(e) / q) + mpmath.mpf(1) / 2
    return above(at, 1, s, q) - mpmath.exp(e) * mpmath.ncdf(-at / s)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize(
    ("noise", "steps", "delta"),
    [(0.05, 1, 0.3), (0.05, 4, 1e-5), (0.055, 16, 1e-10), (0.0625, 1, 1e-10), (0.2, 4, 1e-5)],
)
def test_steps_in_which_all_take_part(
    noise: float, steps: int, delta: float, replace: bool
) -> None:
    found = SampledGaussian(noise, 1.0, steps).epsilon(delta, replace=replace)
    with mpmath.workdps(60):
        shift = (2 if replace else 1) * mpmath.sqrt(steps) / mpmath.mpf(noise)
        assert gaussian(found, shift) <= delta < gaussian(found * (1 - 1e-4), shift)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("rate", [1e-3, 0.5, 0.999])
@pytest.mark.parametrize("noise", [0.05, 0.06, 0.1])
def test_a_step_in_which_some_take_part(noise: float, rate: float, replace: bool) -> None:
    stated, largest = SampledGaussian(noise, rate, 1), (2 if replace else 1) / noise**2 / 2
    for share in (0.05, 0.3, 0.95, 1.05, 1.3):
        found = stated.delta(share * largest, replace=replace)
        with mpmath.workdps(60):
            true = one_step(share * largest, noise, rate, replace=replace)
            assert true <= found <= true * 1.05 + 1e-15
