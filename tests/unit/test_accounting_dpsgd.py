"""DP-SGD's noise: published figures by their own accounting, integrals, brute force."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    calibrate_dp_mechanism,
)
from dp_accounting.rdp import RdpAccountant

from flower_ldp.accounting.dpsgd import SampledGaussian, noise_multiplier
from flower_ldp.mechanisms.gaussian_law import gaussian_delta

RATE, STEPS, DELTA = 250 / 60_000, 720, 1e-5


def by_rdp(orders: list[float] | None) -> float:
    return float(
        calibrate_dp_mechanism(
            lambda: RdpAccountant(orders),
            lambda noise: SelfComposedDpEvent(
                PoissonSampledDpEvent(RATE, GaussianDpEvent(noise)), STEPS
            ),
            1.0,
            DELTA,
            tol=1e-6,
        )
    )


def test_published_noise_is_that_of_renyi_accounting_with_whole_orders() -> None:
    """1.0188 for (1, 1e-5): add-or-remove, Poisson sampling, orders 2, 3, ..., 63."""
    assert by_rdp([float(order) for order in range(2, 64)]) == pytest.approx(1.01884, abs=2e-5)
    assert by_rdp(None) == pytest.approx(1.01127, abs=2e-5)


def test_what_the_published_noise_guarantees() -> None:
    published = SampledGaussian(1.01884, RATE, STEPS)
    assert published.epsilon(DELTA, replace=False) == pytest.approx(0.585, abs=2e-3)
    assert published.epsilon(DELTA) == pytest.approx(1.281, abs=3e-3)


def test_noise_for_one_replaced_example() -> None:
    noise = noise_multiplier(1.0, DELTA, sample_rate=RATE, steps=STEPS)
    assert noise == pytest.approx(1.142, abs=3e-3)
    assert SampledGaussian(noise, RATE, STEPS).delta(1.0, interval=2.5e-4) <= DELTA
    assert SampledGaussian(noise * 0.99, RATE, STEPS).delta(1.0) > DELTA


@pytest.mark.parametrize(("noise", "rate"), [(0.8, 0.3), (2.0, 0.05)])
@pytest.mark.parametrize("epsilon", [0.05, 0.2])
def test_one_step_against_the_closed_form(noise: float, rate: float, epsilon: float) -> None:
    """A removed example, in 40 digits: the part of the mixture that differs, and its weight."""
    with mpmath.workdps(40):
        e, m = mpmath.log1p(mpmath.expm1(epsilon) / rate), 1 / mpmath.mpf(noise)
        true = rate * (mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))
    found = SampledGaussian(noise, rate, 1).delta(epsilon, replace=False)
    assert float(true) * (1 - 1e-9) <= found <= float(true) * (1 + 2e-3)


def test_without_sampling_it_is_the_gaussian_curve() -> None:
    plan = SampledGaussian(4.0, 1.0, 9)
    assert plan.delta(1.0, replace=False) == pytest.approx(gaussian_delta(1.0, 0.75), rel=1e-3)


def test_a_replaced_example_is_covered_in_a_case_that_can_be_enumerated() -> None:
    """One dimension, one step: the worst that C and -C can do is within what is stated."""
    noise, rate, epsilon = 1.5, 0.2, 0.5
    x = np.linspace(-20, 20, 400_001)

    def density(centre: float) -> np.ndarray:
        kernel = (1 - rate) * np.exp(-(x**2) / (2 * noise**2))
        kernel += rate * np.exp(-((x - centre) ** 2) / (2 * noise**2))
        return kernel / (noise * math.sqrt(2 * math.pi))

    p, q = density(1.0), density(-1.0)
    true = np.maximum(0, p - math.exp(epsilon) * q).sum() * (x[1] - x[0])
    stated = SampledGaussian(noise, rate, 1)
    assert true > stated.delta(epsilon, replace=False)  # half the story is too little
    assert true <= stated.delta(epsilon)


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": 31.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 0.7}, "delta"),
        ({"sample_rate": 0.0}, "sample_rate"),
        ({"sample_rate": 1.5}, "sample_rate"),
        ({"steps": 0}, "steps"),
        ({"steps": 2.0}, "steps"),
        ({"steps": True}, "steps"),
    ],
)
def test_parameters_outside_their_intervals(parameters: dict[str, float], name: str) -> None:
    given = {"epsilon": 1.0, "delta": 1e-5, "sample_rate": 0.1, "steps": 10, **parameters}
    with pytest.raises(ValueError, match=f"{name} must be"):
        noise_multiplier(given.pop("epsilon"), given.pop("delta"), **given)  # type: ignore[arg-type]


def test_plans_outside_their_intervals() -> None:
    with pytest.raises(ValueError, match="noise_multiplier must be in"):
        SampledGaussian(0.0, 0.1, 1)
    with pytest.raises(ValueError, match="epsilon must be at least 0"):
        SampledGaussian(1.0, 0.1, 1).delta(-1.0)
    with pytest.raises(ValueError, match="delta must be in"):
        SampledGaussian(1.0, 0.1, 1).epsilon(1.0)
