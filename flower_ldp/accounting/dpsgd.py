r"""The noise that DP-SGD needs, and its guarantee, for one example **replaced**.

**What is accounted for.** T steps. In each, every one of n examples takes part with probability q,
independently (Poisson sampling); gradients are clipped to length C each and added up; normal noise
of standard deviation :math:`\sigma C` is added to the sum. n, q and T are public.

**One step.** With lengths in units of C, write :math:`\nu_c = (1 - q) N(0, \sigma^2) + q N(c,
\sigma^2)`. Whatever was seen before, a step is dominated

- for one example **replaced**, by :math:`(\nu_1, \nu_{-1})`, its own mirror image. This is tight
  (proof in docs/dpsgd_release.md);
- for one **removed**, by :math:`(\nu_1, N(0, \sigma^2))`, and for one **added**, by the same pair
  the other way round (Zhu, Dong and Wang, "Optimal Accounting of Differential Privacy via
  Characteristic Function", 2022, Theorem 11). Accountants usually state this epsilon, which is
  smaller for the same noise, and means less.

Domination means :math:`\int (p - \gamma q)_+` for every :math:`\gamma > 0`, so steps compose, also
if each is chosen with the earlier ones in view (the same, Theorem 10): T steps tell no more than T
independent draws.

**Rounding.** The loss :math:`l` rises with the output. Between two points of the grid, the law's
mass moves to both ends so that its mass under the other law is kept too. The ratio :math:`r =
e^{-l}` keeps its mean and is spread further, so the mean of the convex :math:`(1 - \gamma r)_+`
rises, for every :math:`\gamma` ("connecting the dots": Doroshenko et al. 2022). Above the last
point the same is done with r = 0; below the first, r is lowered to it.

**Many steps**, and pure releases fixed beforehand, are sums of independent losses
(:mod:`.loss_sums`): a pure release tells no more than a binary response (Kairouz, Oh and Viswanath
2015).

A parameter outside its interval raises ValueError, and a missing scipy (extra ``accounting`` or
``dpsgd``) ModuleNotFoundError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flower_ldp.accounting.loss_sums import Array, Losses, LossLaw, LossSum, least_epsilon, response
from flower_ldp.errors import needed
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.parameter_bounds import Bounded, Checked, check_in, least

# Normal tails beyond it weigh 2e-33.
_DEVIATIONS = 12.0
# Spacing: over the loss's standard deviation at most, and no finer than the other two need it.
# This sets accuracy, never soundness.
_FINENESS, _FINE, _FINE_ENOUGH = 0.1, 1e-3, 1e-3
_MOST_POINTS = 1 << 21
# Share of an interval's mass that goes to its upper end beyond what is computed: it covers the
# roundings of that share.
_UPWARD = 1e-6
# Masses from here on have all digits.
_FULL = 1e-290
# Relative precision of the noise multiplier that is searched.
_PRECISION = 1e-3
# Beyond these no one trains.
_MOST_NOISE, _LEAST_NOISE = 1e4, 0.05


@dataclass(frozen=True)
class SampledGaussian(Checked):
    """Steps of DP-SGD with Poisson sampling.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise over the clipping length; in [0.05, 10,000].
    sample_rate : float
        Probability that an example takes part in a step; in [1e-9, 1].
    steps : int
        From 1 to 10^8.
    """

    noise_multiplier: Annotated[float, Bounded(f"[{_LEAST_NOISE:g}, {_MOST_NOISE:g}]")]
    sample_rate: Annotated[float, Bounded("[1e-9, 1]")]
    steps: Annotated[int, Bounded("[1, 100000000]")]

    def delta(self, epsilon: float, *, replace: bool = True) -> float:
        """Return a delta at ``epsilon``: never below the true one, and mostly close to it.

        Parameters
        ----------
        epsilon : float
            Of all steps, per example; finite and at least 0.
        replace : bool
            For one example replaced, this package's unit; False for one added or removed.
        """
        if replace:
            return joint_delta((self,), epsilon)
        check_in("[0, inf)", "epsilon", epsilon)
        return max(LossSum(one, around=epsilon).delta(epsilon) for one in self._removed())

    def epsilon(self, delta: float, *, replace: bool = True) -> float:
        """Return an epsilon with at most ``delta``, in [1e-15, 1): never below the smallest.

        ``replace`` is that of :meth:`delta`.
        """
        if replace:
            return joint_epsilon((self,), delta)
        check_in("[1e-15, 1)", "delta", delta)
        return max(least_epsilon(one, delta) for one in self._removed())

    def _removed(self) -> list[Losses]:
        laws = removed_or_added(self.noise_multiplier, self.sample_rate)
        return [[(law, self.steps)] for law in laws]


@dataclass(frozen=True)
class PureReleases(Checked):
    """Releases about the examples that a training uses.

    Parameters
    ----------
    epsilon : float
        Of each, per example, pure; in [1e-4, 30].
    number : int
        From 1 to 10^6.
    """

    epsilon: Annotated[float, Bounded("[1e-4, 30]")]
    number: Annotated[int, Bounded("[1, 1000000]")]


Fixed = SampledGaussian | PureReleases
"""What is fixed beforehand."""


def joint_delta(parts: Sequence[Fixed], epsilon: float) -> float:
    """Return a delta of trainings and releases together, at ``epsilon``, for one example replaced.

    They are fixed beforehand. Never below the true one; ``epsilon`` is finite and at least 0.
    """
    check_in("[0, inf)", "epsilon", epsilon)
    return _joint_delta(tuple(parts), epsilon)


def joint_epsilon(parts: Sequence[Fixed], delta: float) -> float:
    """Return an epsilon of trainings and releases together, with at most ``delta``.

    As :func:`joint_delta`, which see; ``delta`` is in [1e-15, 1).

    Examples
    --------
    >>> from flower_ldp.privacy import rounded_up
    >>> plan = SampledGaussian(3.74, 0.05, 100)
    >>> rounded_up(joint_epsilon([plan, plan], 2e-5), 4)
    1.396
    """
    check_in("[1e-15, 1)", "delta", delta)
    check_in("[1, inf)", "the number of parts", len(parts))
    return least_epsilon(_losses(tuple(parts)), delta)


@lru_cache(maxsize=16)
def _joint_delta(parts: tuple[Fixed, ...], epsilon: float) -> float:
    return LossSum(_losses(parts), around=epsilon).delta(epsilon)


@lru_cache(maxsize=4)
def _losses(parts: tuple[Fixed, ...]) -> Losses:
    """Return the losses of all parts, on one grid."""
    spans = [_span(part) for part in parts]
    unit = max(min(one.unit for one in spans), *(one.least for one in spans))
    found: list[tuple[LossLaw, int]] = []
    for part in parts:
        if isinstance(part, PureReleases):
            found.append((response(part.epsilon, unit), part.number))
        else:
            found.append((replaced(part.noise_multiplier, part.sample_rate, unit), part.steps))
    return found


def noise_multiplier(
    epsilon: float,
    delta: float,
    *,
    sample_rate: float,
    steps: int,
    evaluations: PureReleases | None = None,
) -> float:
    """Return noise that makes DP-SGD (epsilon, delta)-private for one example replaced.

    Parameters
    ----------
    epsilon, delta : float
        Of the whole training, per example; in [0.01, 30] and [1e-10, 0.5].
    sample_rate, steps
        Of :class:`SampledGaussian`.
    evaluations : PureReleases, optional
        Covered by epsilon and delta too.

    Returns
    -------
    float
        At most one part in a thousand more than the accounting here needs, and never less.

    Raises
    ------
    ValueError
        If a parameter is outside its interval, or no noise up to 10,000 is enough.
    ModuleNotFoundError
        If scipy (extra ``accounting`` or ``dpsgd``) is not installed.
    """
    check_in("[0.01, 30]", "epsilon", epsilon)
    check_in("[1e-10, 0.5]", "delta", delta)
    SampledGaussian(_MOST_NOISE, sample_rate, steps)  # checks the other two
    return _least_noise(epsilon, delta, sample_rate, steps, evaluations)


@lru_cache(maxsize=16)
def _least_noise(
    epsilon: float, delta: float, sample_rate: float, steps: int, evaluations: PureReleases | None
) -> float:
    """Search for the noise; a client asks for the same each round."""
    more: tuple[PureReleases, ...] = () if evaluations is None else (evaluations,)

    def enough(noise: float) -> bool:
        return joint_delta((SampledGaussian(noise, sample_rate, steps), *more), epsilon) <= delta

    # What many small steps without sampling noise beyond q would need: a first guess only.
    high = min(max(2.0 * sample_rate * math.sqrt(steps) / epsilon, 0.5), _MOST_NOISE)
    while not enough(high):
        if high == _MOST_NOISE:
            most = f"no noise multiplier up to {_MOST_NOISE:g} is enough"
            most += ". Take fewer steps or evaluations, or a larger epsilon"
            raise ValueError(f"epsilon {epsilon:g} cannot be kept: {most}")
        high = min(1.5 * high, _MOST_NOISE)
    low = max(high / 1.5, _LEAST_NOISE)
    while low > _LEAST_NOISE and enough(low):
        high, low = low, max(low / 1.5, _LEAST_NOISE)
    return least(enough, low, high, _PRECISION)


def check_noise(plan: TrainingPlan) -> None:
    """Check that a plan's noise is enough, or raise ValueError if all steps cost more."""
    steps = plan.rounds * plan.steps
    training = SampledGaussian(float(plan.noise), float(plan.rate), steps)
    parts: tuple[Fixed, ...] = (training, *evaluations_of(plan))
    found = joint_delta(parts, float(plan.epsilon))
    if found > plan.delta:
        with_them = f" and {plan.evaluations:,} evaluations" if plan.evaluations else ""
        raise ValueError(
            f"noise {plan.noise} is not enough for {steps:,} steps at rate {plan.rate:g}"
            f"{with_them}: at epsilon {plan.epsilon:g} their delta is {found:.3g}, not "
            f"{plan.delta:g}"
        )


def evaluations_of(plan: TrainingPlan) -> tuple[PureReleases, ...]:
    """Return a plan's evaluations, if it has any."""
    if not plan.evaluations:
        return ()
    return (PureReleases(float(plan.evaluation_epsilon), plan.evaluations),)


@dataclass(frozen=True)
class _Span:
    """The spacing that suits a loss, and the least that fits into memory."""

    unit: float
    least: float


def replaced(noise: float, rate: float, spacing: float | None = None) -> LossLaw:
    """Return the law of a step's loss for one example replaced, on a grid of its own by default."""
    unit, grid = _grid(noise, rate, spacing, both=True)
    with np.errstate(over="ignore"):
        # where nu_1 / nu_-1 is e^l: sinh(x / noise^2 - l / 2) = (1 - q) sinh(l / 2) / (q k)
        argument = np.log1p(-rate) if rate < 1 else -math.inf
        argument = argument - math.log(rate) + 0.5 / noise**2
        x = noise**2 * (grid * unit / 2 + _arcsinh_of(argument, grid * unit / 2))
    return _rounded(_masses(x, noise, rate, 1.0), _masses(x, noise, rate, -1.0), grid, unit)


def removed_or_added(noise: float, rate: float) -> tuple[LossLaw, ...]:
    """Return the laws of a step's loss for one example removed, and for one added."""
    unit, grid = _grid(noise, rate, None, both=False)
    with np.errstate(divide="ignore", invalid="ignore"):
        # nu_1 / N(0) is at least 1 - q
        above = np.expm1(grid * unit) + rate
        x = np.where(above > 0, 0.5 + noise**2 * np.log(np.maximum(above, 0) / rate), -np.inf)
    with_it, without = _masses(x, noise, rate, 1.0), _masses(x, noise, 0.0, 1.0)
    return (
        _rounded(with_it, without, grid, unit),
        _rounded(without[::-1], with_it[::-1], -grid[::-1], unit),
    )


def _loss(x: Array, noise: float, rate: float, *, both: bool) -> Array:
    """Return the loss at outputs ``x``: of (nu_1, nu_-1), or of (nu_1, N(0))."""
    with np.errstate(divide="ignore"):
        rest, part = np.log1p(-np.float64(rate)), np.log(np.float64(rate))
    found: Array = np.logaddexp(rest, part + (x - 0.5) / noise**2)
    if both:
        found = found - np.logaddexp(rest, part - (x + 0.5) / noise**2)
    return found


def _arcsinh_of(log_factor: float, angles: Array) -> Array:
    """Return arcsinh(e^log_factor sinh(angles)), without overflow."""
    size = np.abs(angles)
    with np.errstate(divide="ignore"):
        log_sinh = np.where(size > 20, size - math.log(2), np.log(np.sinh(np.minimum(size, 20.0))))
    log_value = log_factor + log_sinh
    small = np.arcsinh(np.exp(np.minimum(log_value, 300.0)))
    found: Array = np.sign(angles) * np.where(log_value > 300, log_value + math.log(2), small)
    return found


def _span(part: Fixed) -> _Span:
    if isinstance(part, PureReleases):
        return _Span(_FINENESS * part.epsilon, 2 * part.epsilon / _MOST_POINTS)
    low, high, unit = _span_of_step(part.noise_multiplier, part.sample_rate, both=True)
    return _Span(unit, (high - low) / _MOST_POINTS)


def _span_of_step(noise: float, rate: float, *, both: bool) -> tuple[float, float, float]:
    x = np.linspace(-1.0, 1.0, 4_001) * (1.0 + _DEVIATIONS * noise)
    losses = _loss(x, noise, rate, both=both)
    weights = (1 - rate) * np.exp(-((x / noise) ** 2) / 2)
    weights += rate * np.exp(-(((x - 1) / noise) ** 2) / 2)
    weights /= weights.sum()
    mean = weights @ losses
    deviation = math.sqrt(float(weights @ (losses - mean) ** 2))
    unit = min(_FINENESS * deviation, max(_FINE, _FINE_ENOUGH * deviation))
    return float(losses[0]), float(losses[-1]), unit


def _grid(
    noise: float, rate: float, unit: float | None, *, both: bool
) -> tuple[float, NDArray[np.int64]]:
    """Return the spacing and the points of a loss, as whole multiples of it."""
    low, high, own = _span_of_step(noise, rate, both=both)
    unit = max(own, (high - low) / _MOST_POINTS) if unit is None else unit
    return unit, np.arange(math.floor(low / unit), math.ceil(high / unit) + 1)


def _masses(x: Array, noise: float, rate: float, centre: float) -> Array:
    """Return masses of nu_centre below the first x, between neighbours, and above the last."""
    edges = np.concatenate([[-np.inf], x, [np.inf]])
    found = (1.0 - rate) * _normal_masses(edges / noise)
    if rate > 0:
        found = found + rate * _normal_masses((edges - centre) / noise)
    return found


def _normal_masses(z: Array) -> Array:
    """Return the standard normal law's mass between neighbours, small ones exactly too."""
    # Imported late: it takes a while, and ledgers do without it.
    with needed("DP-SGD's accounting needs scipy", "dpsgd"):
        from scipy.special import ndtr
    right = z[:-1] > 0
    return np.asarray(np.where(right, -np.diff(ndtr(-z)), np.diff(ndtr(z))))


def _rounded(p: Array, q: Array, grid: NDArray[np.int64], unit: float) -> LossLaw:
    """Move masses of intervals to their ends: those under p, given those under q."""
    losses = grid * unit
    inner, other = p[1:-1], q[1:-1]
    # Scaled by e^loss at the lower end: w (1 - e^-unit) = q e^l - p e^-unit. A q that doubles do
    # not hold in full gives the upper end all: no delta is less for it.
    with np.errstate(divide="ignore"):
        scaled = np.exp(np.where(other < _FULL, -np.inf, np.log(other) + losses[:-1]))
    share = (scaled - inner * math.exp(-unit)) / -math.expm1(-unit) - _UPWARD * inner
    lower = np.clip(share, 0.0, inner)
    masses = np.zeros(len(grid))
    masses[:-1] += lower
    masses[1:] += inner - lower
    masses[0] += p[0]
    # The last: all of it at infinity, though the last point could take a part.
    return LossLaw(unit, int(grid[0]), masses, float(p[-1]))
