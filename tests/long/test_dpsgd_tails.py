"""DP-SGD at small deltas, against draws from a law that is tilted towards them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_ldp.accounting.dpsgd import SampledGaussian
from tests.extras import extra
from tests.long.test_accounting_dpsgd import DELTA, RATE, outcomes

special = extra("scipy.special")


def sampled(
    epsilon: float, noise: float, rate: float, steps: int, draws: int = 2_000
) -> tuple[float, float]:
    """Delta for one example replaced by drawing outputs of a tilted law, and its deviation."""
    _, weights, losses = outcomes(noise, rate)

    def moment(tilt: float) -> float:
        return float(special.logsumexp(np.log(weights) + tilt * losses))

    tilts = np.geomspace(0.05, 60, 50)
    tilt = float(tilts[np.argmin([steps * moment(t) - t * epsilon for t in tilts])])
    law = np.cumsum(np.exp(np.log(weights) + tilt * losses - moment(tilt)))
    rng = np.random.default_rng(1)
    sums = np.zeros(draws)
    for _ in range(steps):
        sums += losses[np.searchsorted(law, rng.random(draws) * law[-1])]
    over = np.maximum(sums - epsilon, 0)
    found = -np.expm1(-over) * np.exp(steps * moment(tilt) - tilt * sums)
    return float(found.mean()), float(found.std() / math.sqrt(draws))


@pytest.mark.parametrize(
    ("epsilon", "noise", "rate", "steps"),
    [(14.0, 0.46, 0.002, 2_048), (30.0, 0.36, 0.002, 2_048), (8.0, 0.5, 0.01, 50)],
)
def test_small_deltas_against_draws_from_a_tilted_law(
    epsilon: float, noise: float, rate: float, steps: int
) -> None:
    true, deviation = sampled(epsilon, noise, rate, steps)
    assert deviation < 0.08 * true
    assert SampledGaussian(noise, rate, steps).delta(epsilon) == pytest.approx(
        true, abs=5.5 * deviation
    )


def test_little_noise() -> None:
    epsilon = SampledGaussian(0.36, RATE, 72).epsilon(DELTA)
    true, deviation = sampled(epsilon, 0.36, RATE, 72)
    assert true == pytest.approx(DELTA, abs=5 * deviation)
