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

**Many steps.** One fast Fourier transform gives the sum of T independent losses. Its error of about
1e-13 at every point exceeds a small delta, so the law is first **tilted**, :math:`\tilde p(l) =
p(l) e^{\theta l} / M(\theta)`, with theta such that the sum's mean is the epsilon of interest, and
tilted back afterwards:

.. math:: \delta(\epsilon) = \sum_{s > \epsilon} (1 - e^{\epsilon - s})\, M(\theta)^T
          e^{-\theta s}\, \tilde p_T(s).

The first factors are Chernoff's bound and the rest is of order one, so an error of 1e-9 in it is
relative, at any delta. Everything that is rounded or cut off is added:

- the transform, its power and its inverse, by the error bound for each :math:`\|\hat y - y\|_2 \le
  8 u \log_2 N\, \|y\|_2` (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, Theorem
  24.2), times the norm of the weights (Cauchy and Schwarz);
- sums above the window: those that fold into it only add, and those that fold out are at most
  Chernoff's bound. An epsilon below the window has delta 1;
- roundings of masses and losses: 1e-12 of each step's, on both.

A parameter outside its interval raises ValueError, and a missing scipy (extra ``accounting`` or
``dpsgd``) ModuleNotFoundError.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import needed
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.parameter_bounds import Bounded, Checked, check_in, halved, least

Array = NDArray[np.float64]

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
_UNIT = 2.0**-53
_ROUNDING = 1e-12
# Added to each delta: below it, doubles lose digits.
_TINY = 1e-300
# Points of a law by which a tilt is chosen: any tilt gives a bound, a good one a tight one.
_COARSE = 2_048
# Standard deviations of the tilted sum that the window spans, and the most points it may have:
# beyond a narrower window Chernoff's bound stands, which is no less a bound.
_SPAN, _MOST_SUMS = 24.0, 1 << 23
# Relative precision of the noise multiplier that is searched, and of an epsilon.
_PRECISION, _EPSILON_PRECISION = 1e-3, 1e-6
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
        check_in("[0, inf)", "epsilon", epsilon)
        return _delta(self.noise_multiplier, self.sample_rate, self.steps, epsilon, replace)

    def epsilon(self, delta: float, *, replace: bool = True) -> float:
        """Return an epsilon with at most ``delta``, in [1e-15, 1): never below the smallest.

        ``replace`` is that of :meth:`delta`.
        """
        check_in("[1e-15, 1)", "delta", delta)
        laws = _laws(self.noise_multiplier, self.sample_rate, replace)
        return max(_epsilon(law, self.steps, delta) for law in laws)


def noise_multiplier(epsilon: float, delta: float, *, sample_rate: float, steps: int) -> float:
    """Return noise that makes DP-SGD (epsilon, delta)-private for one example replaced.

    Parameters
    ----------
    epsilon, delta : float
        Of the whole training, per example; in [0.01, 30] and [1e-10, 0.5].
    sample_rate, steps
        Of :class:`SampledGaussian`.

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
    return _least_noise(epsilon, delta, sample_rate, steps)


@lru_cache(maxsize=16)
def _least_noise(epsilon: float, delta: float, sample_rate: float, steps: int) -> float:
    """Search for the noise; a client asks for the same each round."""

    def enough(noise: float) -> bool:
        return SampledGaussian(noise, sample_rate, steps).delta(epsilon) <= delta

    # What many small steps without sampling noise beyond q would need: a first guess only.
    high = min(max(2.0 * sample_rate * math.sqrt(steps) / epsilon, 0.5), _MOST_NOISE)
    while not enough(high):
        if high == _MOST_NOISE:
            most = f"no noise multiplier up to {_MOST_NOISE:g} is enough"
            raise ValueError(f"epsilon {epsilon:g} cannot be kept: {most}")
        high = min(1.5 * high, _MOST_NOISE)
    low = max(high / 1.5, _LEAST_NOISE)
    while low > _LEAST_NOISE and enough(low):
        high, low = low, max(low / 1.5, _LEAST_NOISE)
    return least(enough, low, high, _PRECISION)


def check_noise(plan: TrainingPlan) -> None:
    """Check that a plan's noise is enough, or raise ValueError if all steps cost more."""
    steps = plan.rounds * plan.steps
    found = SampledGaussian(float(plan.noise), float(plan.rate), steps).delta(float(plan.epsilon))
    if found > plan.delta:
        raise ValueError(
            f"noise {plan.noise} is not enough for {steps:,} steps at rate {plan.rate:g}: at "
            f"epsilon {plan.epsilon:g} their delta is {found:.3g}, not {plan.delta:g}"
        )


@lru_cache(maxsize=16)
def _delta(noise: float, rate: float, steps: int, epsilon: float, replace: bool) -> float:
    laws = _laws(noise, rate, replace)
    return max(LossSum(law, steps, around=epsilon).delta(epsilon) for law in laws)


def _epsilon(law: LossLaw, steps: int, delta: float) -> float:
    """Return an epsilon with at most ``delta``, by laws that are exact ever nearer to it."""

    def enough(epsilon: float) -> bool:
        return total.delta(epsilon) <= delta

    total = LossSum(law, steps, around=0.0)
    if enough(0.0):
        return 0.0
    found = chernoff_epsilon(law, steps, delta)
    while True:
        total = LossSum(law, steps, around=found)
        low, high = 0.0, 2.0 * found + 1.0
        while not enough(high):
            low, high = high, 2.0 * high
            if high > 1e9:
                return math.inf  # a loss that is infinite too often
        high = least(enough, low, high, _EPSILON_PRECISION / 4)
        if high > found * (1.0 - 1e-3):
            return min(high, found) if enough(found) else high
        found = high


@lru_cache(maxsize=4)
def _laws(noise: float, rate: float, replace: bool) -> tuple[LossLaw, ...]:
    return replaced(noise, rate) if replace else removed_or_added(noise, rate)


@dataclass(frozen=True)
class LossLaw:
    """Law of one step's loss, on whole multiples of ``unit`` from ``first`` on.

    ``masses`` are right to 1e-12 of each; ``infinite`` is the probability of an infinite loss.
    """

    unit: float
    first: int
    masses: Array
    infinite: float

    @property
    def losses(self) -> Array:
        """The points, as losses."""
        return np.arange(self.first, self.first + len(self.masses)) * np.float64(self.unit)


def replaced(noise: float, rate: float) -> tuple[LossLaw, ...]:
    """Return the law of a step's loss for one example replaced: one, as it is symmetric."""
    unit, grid = _grid(noise, rate, both=True)
    with np.errstate(over="ignore"):
        # where nu_1 / nu_-1 is e^l: sinh(x / noise^2 - l / 2) = (1 - q) sinh(l / 2) / (q k)
        argument = np.log1p(-rate) if rate < 1 else -math.inf
        argument = argument - math.log(rate) + 0.5 / noise**2
        x = noise**2 * (grid * unit / 2 + _arcsinh_of(argument, grid * unit / 2))
    return (_rounded(_masses(x, noise, rate, 1.0), _masses(x, noise, rate, -1.0), grid, unit),)


def removed_or_added(noise: float, rate: float) -> tuple[LossLaw, ...]:
    """Return the laws of a step's loss for one example removed, and for one added."""
    unit, grid = _grid(noise, rate, both=False)
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


def _grid(noise: float, rate: float, *, both: bool) -> tuple[float, NDArray[np.int64]]:
    """Return the spacing and the points of a loss, as whole multiples of it."""
    x = np.linspace(-1.0, 1.0, 4_001) * (1.0 + _DEVIATIONS * noise)
    losses = _loss(x, noise, rate, both=both)
    weights = (1 - rate) * np.exp(-((x / noise) ** 2) / 2)
    weights += rate * np.exp(-(((x - 1) / noise) ** 2) / 2)
    weights /= weights.sum()
    mean = weights @ losses
    deviation = math.sqrt(float(weights @ (losses - mean) ** 2))
    low, high = losses[0], losses[-1]
    unit = min(_FINENESS * deviation, max(_FINE, _FINE_ENOUGH * deviation))
    unit = max(unit, (high - low) / _MOST_POINTS)
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


class LossSum:
    """Law of the sum of ``steps`` independent losses, exact to many digits near ``around``."""

    def __init__(self, law: LossLaw, steps: int, *, around: float) -> None:
        losses, coarse = law.losses, _coarsened(law)
        around = min(around, steps * (law.first + len(law.masses)) * law.unit)  # no sum is larger
        tilt = _tilt(*coarse, around / steps)
        log_moment = _log_moment(losses, law.masses, tilt)
        while tilt > 0 and steps * log_moment > tilt * around:
            # Too far, as few points show where the largest losses lie only roughly.
            tilt = tilt / 2 if tilt > 1e-9 else 0.0
            log_moment = _log_moment(losses, law.masses, tilt)
        with np.errstate(divide="ignore"):
            tilted = np.exp(np.log(law.masses) + tilt * losses - log_moment)
        mean = float(tilted @ losses)
        deviation = math.sqrt(max(0.0, float(tilted @ (losses - mean) ** 2)) * steps)
        points = len(tilted)
        widest = steps * (points - 1) + 1
        spanned = min(int(_SPAN * deviation / law.unit), _MOST_SUMS)
        size = 1 << (min(widest, max(points, spanned)) - 1).bit_length()
        transformed = np.fft.rfft(tilted, size) ** steps
        folded = np.maximum(np.fft.irfft(transformed, size), 0.0)
        if widest <= size:
            start, beyond, self._lowest = steps * law.first, 0.0, -math.inf
        else:
            start = math.floor(around / law.unit) - size // 2
            self._lowest, top = start * law.unit, (start + size) * law.unit
            further = _tilt(*coarse, top / steps)
            log_beyond = steps * _log_moment(losses, law.masses, further) - further * top
            beyond = math.exp(min(0.0, log_beyond))
        order = (start - steps * law.first + np.arange(size)) % size
        self.losses = np.arange(start, start + size) * np.float64(law.unit)
        self._steps, self._tilt, self._log_scale = steps, tilt, steps * log_moment
        self._tilted = folded[order]
        self._error = 32.0 * _UNIT * (steps + 1) * math.log2(max(size, 2))
        self._beyond = beyond * (1.0 + 1e-6) - math.expm1(steps * math.log1p(-law.infinite))

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on the delta at ``epsilon``, tight near ``around``."""
        below = epsilon - self._steps * _ROUNDING * (1.0 + abs(epsilon))
        exponent = self._log_scale - self._tilt * below
        if exponent > 600.0 or below < self._lowest:
            return 1.0  # far below where this law is exact, or sums between are not in it
        start = int(np.searchsorted(self.losses, below, side="right"))
        over = self.losses[start:] - below
        weights = -np.expm1(-over) * np.exp(-self._tilt * over)
        inner = float(weights @ self._tilted[start:])
        inner += self._error * float(np.linalg.norm(weights))
        found = math.exp(exponent) * inner * math.exp(1e-6 + self._steps * _ROUNDING)
        return min(1.0, found + self._beyond + _TINY)


def chernoff_epsilon(law: LossLaw, steps: int, delta: float) -> float:
    """Return an epsilon with about ``delta``, somewhat too large."""
    losses, masses = _coarsened(law)

    def bound(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        return (steps * _log_moment(losses, masses, tilt) - math.log(delta)) / tilt

    grid = np.linspace(math.log(1e-4), math.log(1e6), 200)
    return max(0.0, min(bound(value) for value in grid))


def _log_moment(losses: Array, masses: Array, tilt: float) -> float:
    """Return the logarithm of M: the mean of e^(tilt loss) where the loss is finite."""
    with np.errstate(divide="ignore"):
        exponents = np.log(masses) + tilt * losses
    highest = float(exponents.max())
    return highest + math.log(float(np.exp(exponents - highest).sum()))


def _coarsened(law: LossLaw) -> tuple[Array, Array]:
    """Return few points with about the law's masses."""
    each = -(-len(law.masses) // _COARSE)
    starts = np.arange(0, len(law.masses), each)
    masses = np.add.reduceat(law.masses, starts)
    weighted = np.add.reduceat(law.masses * law.losses, starts)
    used = masses > 0
    return weighted[used] / masses[used], masses[used]


def _tilt(losses: Array, masses: Array, mean: float) -> float:
    """Return about the tilt, at least 0, at which the mean loss is ``mean``."""

    def enough(tilt: float) -> bool:
        exponents = np.log(masses) + tilt * losses
        weights = np.exp(exponents - exponents.max())
        return float(weights @ losses / weights.sum()) >= mean

    if enough(0.0):
        return 0.0
    high = 1.0
    while not enough(high) and high < 1e9:
        high *= 4.0
    return halved(enough, 0.0, high, 2.0**-30)[0]
