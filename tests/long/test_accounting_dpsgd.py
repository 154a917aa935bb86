"""DP-SGD's noise: published figures, closed forms in 40 digits, integrals, other libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_ldp.accounting.dpsgd import SampledGaussian, noise_multiplier
from flower_ldp.accounting.loss_sums import LossLaw, LossSum
from tests.extras import extra

mpmath = extra("mpmath")
dp_accounting = extra("dp_accounting")
pld = extra("dp_accounting.pld")
rdp = extra("dp_accounting.rdp")
integrate = extra("scipy.integrate")
special = extra("scipy.special")
stats = extra("scipy.stats")

RATE, STEPS, DELTA = 250 / 60_000, 720, 1e-5


def by_rdp(orders: list[float] | None) -> float:
    return float(
        dp_accounting.calibrate_dp_mechanism(
            lambda: rdp.RdpAccountant(orders),
            lambda noise: dp_accounting.SelfComposedDpEvent(
                dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(noise)),
                STEPS,
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


def crossing(epsilon: float, noise: float, rate: float) -> mpmath.mpf:
    """Where the two densities' ratio is e^epsilon: the larger root of a quadratic in e^(x/s^2)."""
    k = rate * mpmath.exp(-1 / (2 * mpmath.mpf(noise) ** 2))
    middle = (1 - mpmath.mpf(rate)) * mpmath.expm1(epsilon)
    root = mpmath.sqrt(middle**2 + 4 * k**2 * mpmath.exp(epsilon))
    return mpmath.mpf(noise) ** 2 * mpmath.log((middle + root) / (2 * k))


def one_step(epsilon: float, noise: float, rate: float) -> float:
    """Delta of one step for one example replaced, for any epsilon: outputs above the crossing."""
    with mpmath.workdps(50):
        at = crossing(epsilon, noise, rate)
        p, q = (
            (1 - mpmath.mpf(rate)) * mpmath.ncdf(-at / noise)
            + rate * mpmath.ncdf((c - at) / mpmath.mpf(noise))
            for c in (1, -1)
        )
        return float(p - mpmath.exp(epsilon) * q)


def one_step_of_each(epsilons: np.ndarray, noise: float, rate: float) -> np.ndarray:
    """The same in doubles, for many epsilons at once."""
    k, middle = rate * math.exp(-1 / (2 * noise**2)), (1 - rate) * np.expm1(epsilons)
    root = np.sqrt(middle**2 + 4 * k**2 * np.exp(epsilons))
    at = noise**2 * np.log((middle + root) / (2 * k))
    p, q = (
        (1 - rate) * stats.norm.sf(at / noise) + rate * stats.norm.sf((at - c) / noise)
        for c in (1, -1)
    )
    return np.asarray(p - np.exp(epsilons) * q)


def gaussian(epsilon: float, shift: float) -> mpmath.mpf:
    """Delta of a normal shift, in 60 digits."""
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(shift)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def outcomes(noise: float, rate: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, their weights under one law of a step, and their losses, by the densities."""
    x = np.linspace(-1 - 12 * noise, 1 + 12 * noise, 100_001)
    kernel = {c: np.exp(-((x - c) ** 2) / (2 * noise**2)) for c in (0, 1, -1)}
    p, q = ((1 - rate) * kernel[0] + rate * kernel[c] for c in (1, -1))
    return x, p / p.sum(), np.log(p / q)


def test_what_the_published_noise_guarantees() -> None:
    published = SampledGaussian(1.01884, RATE, STEPS)
    assert published.epsilon(DELTA, replace=False) == pytest.approx(0.585, abs=2e-3)
    assert published.epsilon(DELTA) == pytest.approx(0.885, abs=2e-3)


@pytest.mark.parametrize(("epsilon", "wanted"), [(0.5, 1.594), (2.0, 0.721), (8.0, 0.476)])
def test_noise_for_one_replaced_example(epsilon: float, wanted: float) -> None:
    noise = noise_multiplier(epsilon, DELTA, sample_rate=RATE, steps=STEPS)
    assert noise == pytest.approx(wanted, rel=2e-3)
    assert SampledGaussian(noise, RATE, STEPS).epsilon(DELTA) <= epsilon
    assert SampledGaussian(noise * 0.998, RATE, STEPS).delta(epsilon) > DELTA


@pytest.mark.parametrize(("noise", "rate"), [(0.8, 0.3), (2.0, 0.3), (0.3, 0.004), (1.0, 1.0)])
@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.2, 3.0])
def test_one_step_against_closed_forms(noise: float, rate: float, epsilon: float) -> None:
    """Replaced: from where the densities cross. Removed: the weight of what differs."""
    stated = SampledGaussian(noise, rate, 1)
    true = one_step(epsilon, noise, rate)
    assert true <= stated.delta(epsilon) <= true * 1.003
    with mpmath.workdps(40):
        e, m = mpmath.log1p(mpmath.expm1(epsilon) / rate), 1 / mpmath.mpf(noise)
        removed = float(rate * gaussian(e, m))
    found = stated.delta(epsilon, replace=False)
    assert removed <= found
    if epsilon >= 0.2:  # near 0 an example added tells as much, or more
        assert found <= removed * 1.003


@pytest.mark.parametrize(("noise", "rate"), [(0.7, 0.02), (1.5, 0.2)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_two_steps_against_an_integral(noise: float, rate: float, epsilon: float) -> None:
    """Over the first output: the delta of the second where the rest of epsilon is left."""

    x, _, losses = outcomes(noise, rate)
    x, losses = x[::50], losses[::50]
    rests = one_step_of_each(epsilon - losses, noise, rate)
    exact = [one_step(epsilon - value, noise, rate) for value in losses[::100].tolist()]
    np.testing.assert_allclose(rests[::100], exact, rtol=1e-7, atol=1e-15)
    density = (1 - rate) * stats.norm.pdf(x, 0, noise) + rate * stats.norm.pdf(x, 1, noise)
    true = float(integrate.trapezoid(density * rests, x=x))  # to 1e-5: smooth, and 0 at both ends
    assert true * (1 - 1e-5) <= SampledGaussian(noise, rate, 2).delta(epsilon) <= true * 1.003


@pytest.mark.parametrize(
    ("steps", "delta"), [(1, 1e-14), (1, 1e-3), (9, 1e-10), (100, 1e-3), (100, 1e-14)]
)
def test_without_sampling_it_is_the_gaussian_curve(steps: int, delta: float) -> None:
    """Twice the length of one gradient, as an example is replaced."""
    plan = SampledGaussian(4.0, 1.0, steps)
    epsilon = plan.epsilon(delta)
    assert delta * 0.98 <= gaussian(epsilon, 0.5 * math.sqrt(steps)) <= delta
    epsilon = plan.epsilon(delta, replace=False)
    assert delta * 0.98 <= gaussian(epsilon, 0.25 * math.sqrt(steps)) <= delta


@pytest.mark.parametrize("epsilon", [14.0, 30.0])
def test_the_noise_of_a_large_epsilon_at_a_small_delta(epsilon: float) -> None:
    noise = noise_multiplier(epsilon, 1e-10, sample_rate=0.002, steps=2_048)
    assert noise == pytest.approx({14.0: 0.470, 30.0: 0.371}[epsilon], abs=2e-3)


def test_little_noise_has_a_large_epsilon_and_no_error() -> None:
    assert 500 < SampledGaussian(0.05, 1.0, 1).epsilon(1e-10) < 1_500
    assert SampledGaussian(1e4, 1e-9, 1).epsilon(DELTA) == 0.0


@pytest.mark.parametrize(
    ("noise", "rate", "steps"), [(0.9, 0.01, 100), (3.0, 0.1, 200), (1.6924, 4_096 / 60_000, 105)]
)
@pytest.mark.parametrize("replace", [True, False])
def test_compositions_against_another_library(
    noise: float, rate: float, steps: int, replace: bool
) -> None:
    """dp-accounting's own curves, at deltas far above its error of about 1e-13."""
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    if replace:
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = pld.PLDAccountant(relation, value_discretization_interval=1e-3)
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)), steps
    )
    plan = SampledGaussian(noise, rate, steps)
    for epsilon in (0.25, 1.0, 2.0):
        known = accountant.get_delta(epsilon)
        assert plan.delta(epsilon, replace=replace) == pytest.approx(known, rel=3e-3)


@pytest.mark.parametrize("steps", [1, 40, 5_000])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.8])
def test_sums_of_signs_against_binomials(steps: int, share: float) -> None:
    """In 60 digits: deltas from 1 to far below what doubles can add up to."""
    p = math.e / (1 + math.e)
    law = LossLaw(unit=1.0, first=-1, masses=np.array([1 - p, 0.0, p]), infinite=0.0)
    epsilon = share * steps + 0.25
    with mpmath.workdps(60):
        high, true = 1 - mpmath.mpf(1 - p), mpmath.mpf(0)
        first = math.floor((epsilon + steps) / 2) + 1
        weight = mpmath.binomial(steps, first) * high**first * (1 - high) ** (steps - first)
        rest, fall = mpmath.exp(epsilon - (2 * first - steps)), mpmath.exp(-2)
        for ones in range(first, steps + 1):
            true += weight * (1 - rest)
            weight *= high / (1 - high) * (steps - ones) / (ones + 1)
            rest *= fall
    found = LossSum([(law, steps)], around=epsilon).delta(epsilon)
    true *= 1 - mpmath.mpf("1e-50")  # the sum's own rounding
    assert true <= found <= true * (1 + 1e-4) + 1e-299
    # and it remains a bound where it was not asked to be exact
    assert LossSum([(law, steps)], around=0.0).delta(epsilon) >= true * (1 - 1e-12)
    assert LossSum([(law, steps)], around=2 * epsilon).delta(epsilon) >= true * (1 - 1e-12)


def test_the_window_is_narrower_than_the_sum_in_what_is_tested() -> None:
    """Otherwise nothing folds back, and the tests above say nothing about folding."""
    p = math.e / (1 + math.e)
    law = LossLaw(unit=1.0, first=-1, masses=np.array([1 - p, 0.0, p]), infinite=0.0)
    assert len(LossSum([(law, 5_000)], around=250.0).losses) < 5_000


def test_no_pair_of_gradients_is_told_apart_better_than_opposite_ones() -> None:
    """The theorem, in two dimensions by brute force, for ratios on both sides of 1."""
    rng = np.random.default_rng(0)
    noise, rate = 0.8, 0.3
    axis = np.linspace(-7, 7, 281)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    cell = (axis[1] - axis[0]) ** 2 / (2 * math.pi * noise**2)

    def density(centre: np.ndarray) -> np.ndarray:
        squares = [(x - c[0]) ** 2 + (y - c[1]) ** 2 for c in (np.zeros(2), centre)]
        near, far = (np.exp(-s / (2 * noise**2)) for s in squares)
        return ((1 - rate) * near + rate * far) * cell

    worst = density(np.array([1.0, 0.0])), density(np.array([-1.0, 0.0]))
    for _ in range(40):
        angles, lengths = rng.uniform(0, 2 * math.pi, 2), rng.uniform(0, 1, 2) ** 0.3
        p, q = (
            density(length * np.array([math.cos(angle), math.sin(angle)]))
            for angle, length in zip(angles, lengths, strict=True)
        )
        for ratio in (0.2, 0.7, 1.0, 1.3, 3.0, 10.0):
            true, bound = (np.maximum(0, a - ratio * b).sum() for a, b in ((p, q), worst))
            assert true <= bound + 1e-9
    for ratio in (1.0, 1.3, 3.0):
        bound = np.maximum(0, worst[0] - ratio * worst[1]).sum()
        assert SampledGaussian(noise, rate, 1).delta(math.log(ratio)) == pytest.approx(
            bound, rel=3e-3
        )


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
    with pytest.raises(ValueError, match="epsilon must be in"):
        SampledGaussian(1.0, 0.1, 1).delta(-1.0)
    with pytest.raises(ValueError, match="delta must be in"):
        SampledGaussian(1.0, 0.1, 1).epsilon(1.0)


def test_a_sum_is_a_bound_also_below_its_window() -> None:
    p = math.e / (1 + math.e)
    law = LossLaw(unit=1.0, first=-1, masses=np.array([1 - p, 0.0, p]), infinite=0.0)
    steps = 5_000
    ones = np.arange(steps + 1)
    weights = stats.binom.pmf(ones, steps, p)
    for around in (0.0, 2_310.0, 4_000.0, 4_200.0, 4_400.0):
        total = LossSum([(law, steps)], around=around)
        for epsilon in np.arange(-4_000.0, 4_900.0, 150.0):
            over = np.maximum(2 * ones - steps - epsilon, 0)
            assert total.delta(epsilon) >= (weights @ -np.expm1(-over)) * (1 - 1e-9)


def test_any_finite_epsilon_has_a_delta() -> None:
    for epsilon in (1e5, 1e20, 1e300):
        assert 0 <= SampledGaussian(1.0, 0.01, 100).delta(epsilon) < 1e-30


def test_many_steps_of_wide_losses_fit_into_memory() -> None:
    """Windows of 2^28 points and more would be asked for; Chernoff's bound stands in for them."""
    law = LossLaw(unit=1e-4, first=-10_000, masses=np.full(20_001, 1 / 20_001), infinite=0.0)
    steps, deviation = 10**8, 1e4 / math.sqrt(3)
    total = LossSum([(law, steps)], around=3.0 * deviation)
    assert len(total.losses) <= 1 << 23
    true = stats.norm.sf(3.0 + 1e-3)  # of a loss of more than 6 beyond epsilon
    assert true * 0.99 <= total.delta(3.0 * deviation)
