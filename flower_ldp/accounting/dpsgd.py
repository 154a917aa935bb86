r"""How much noise DP-SGD needs, and what it guarantees, for one example **replaced**.

**What is accounted for.** T steps; in each, every one of n examples takes part with probability
q, independently (Poisson sampling); gradients are clipped to length C each, added up, and
normal noise of standard deviation :math:`\sigma C` is added to the sum. n, q and T are public.

**The guarantee.** With lengths in units of C, each step tells two data sets that differ in one
example's content apart no better than the laws :math:`(1 - q) N(0, \sigma^2) + q N(\pm 1,
\sigma^2)` are, whatever was seen before, and no less (docs/dpsgd_release.md has the proof: joint
convexity and Kahane's inequality). So T steps tell no more than T independent draws from these do.
The sum of their losses is computed here, with every error of rounding and of the transform on
the safe side (:mod:`~flower_ldp.accounting.sampled_losses`,
:mod:`~flower_ldp.accounting.loss_sums`).

Accountants usually state the epsilon for an example *removed* or *added*. It is smaller for the
same noise, and means less; docs/dpsgd_release.md has the figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial

from flower_ldp.accounting.composition import least
from flower_ldp.accounting.loss_sums import LossLaw, LossSum, chernoff_epsilon, loss_sum
from flower_ldp.accounting.sampled_losses import removed_or_added, replaced
from flower_ldp.errors import quoted
from flower_ldp.mechanisms.training_plan import TrainingPlan

# Relative precision of the noise multiplier that is searched, and of an epsilon.
_PRECISION, _EPSILON_PRECISION = 1e-3, 1e-6
# Beyond these no one trains.
_MOST_NOISE, _LEAST_NOISE = 1e4, 0.05
_SMALLEST_DELTA = 1e-15


@dataclass(frozen=True)
class SampledGaussian:
    """Steps of DP-SGD with Poisson sampling.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise over the clipping length; in [0.05, 10,000].
    sample_rate : float
        Probability that an example takes part in a step; in [1e-9, 1].
    steps : int
        From 1 to 10^8.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int

    def __post_init__(self) -> None:
        if not _LEAST_NOISE <= self.noise_multiplier <= _MOST_NOISE:
            raise ValueError(
                f"noise_multiplier must be in [{_LEAST_NOISE:g}, {_MOST_NOISE:g}], "
                f"got {self.noise_multiplier}"
            )
        _check_plan(self.sample_rate, self.steps)

    def delta(self, epsilon: float, *, replace: bool = True) -> float:
        """Return a delta at ``epsilon``: never below the true one, and mostly close to it.

        Parameters
        ----------
        epsilon : float
            At least 0, and finite.
        replace : bool
            For one example replaced, this package's unit; False for one added or removed.

        Raises
        ------
        ValueError
            If epsilon is outside its interval.
        ModuleNotFoundError
            If scipy (extra ``accounting`` or ``dpsgd``) is not installed.
        """
        if not 0 <= epsilon < math.inf:
            raise ValueError(f"epsilon must be at least 0, got {epsilon}")
        return max(
            loss_sum(law, self.steps, around=epsilon).delta(epsilon)
            for law in _laws(self.noise_multiplier, self.sample_rate, replace)
        )

    def epsilon(self, delta: float, *, replace: bool = True) -> float:
        """Return an epsilon with at most ``delta``: never below the smallest.

        Parameters
        ----------
        delta : float
            In [1e-15, 1).
        replace
            As in :meth:`delta`.

        Raises
        ------
        ValueError
            If delta is outside its interval.
        ModuleNotFoundError
            If scipy (extra ``accounting`` or ``dpsgd``) is not installed.
        """
        if not _SMALLEST_DELTA <= delta < 1:
            raise ValueError(f"delta must be in [{_SMALLEST_DELTA:g}, 1), got {delta}")
        laws = _laws(self.noise_multiplier, self.sample_rate, replace)
        return max(_epsilon(law, self.steps, delta) for law in laws)


def noise_multiplier(epsilon: float, delta: float, *, sample_rate: float, steps: int) -> float:
    """Return noise that makes DP-SGD (epsilon, delta)-private for one example replaced.

    Parameters
    ----------
    epsilon : float
        Of the whole training, per example; in [0.01, 30].
    delta : float
        Of the whole training, per example; in [1e-10, 0.5].
    sample_rate : float
        Probability that an example takes part in a step; in [1e-9, 1].
    steps : int
        From 1 to 10^8.

    Returns
    -------
    float
        At most one part in a thousand more than what the accounting here needs, and never less.

    Raises
    ------
    ValueError
        If a parameter is outside its interval, or no noise up to 10,000 is enough.
    ModuleNotFoundError
        If scipy (extra ``accounting`` or ``dpsgd``) is not installed.
    """
    if not 0.01 <= epsilon <= 30:
        raise ValueError(f"epsilon must be in [0.01, 30], got {epsilon}")
    if not 1e-10 <= delta <= 0.5:
        raise ValueError(f"delta must be in [1e-10, 0.5], got {delta}")
    _check_plan(sample_rate, steps)
    return _least_noise(epsilon, delta, sample_rate, steps)


@lru_cache(maxsize=16)
def _least_noise(epsilon: float, delta: float, sample_rate: float, steps: int) -> float:
    """Search for the noise; kept, since a client asks for the same each round."""

    def enough(noise: float) -> bool:
        return SampledGaussian(noise, sample_rate, steps).delta(epsilon) <= delta

    # What many small steps without sampling noise beyond q would need: a first guess only.
    high = min(max(2.0 * sample_rate * math.sqrt(steps) / epsilon, 0.5), _MOST_NOISE)
    while not enough(high):
        if high == _MOST_NOISE:
            raise ValueError(f"no noise multiplier up to {_MOST_NOISE:g} gives epsilon {epsilon:g}")
        high = min(1.5 * high, _MOST_NOISE)
    low = max(high / 1.5, _LEAST_NOISE)
    while low > _LEAST_NOISE and enough(low):
        high, low = low, max(low / 1.5, _LEAST_NOISE)
    return least(enough, low, high, _PRECISION)


def check_noise(plan: TrainingPlan) -> None:
    """Return if a plan's noise is enough for what it claims, by the accounting of this module.

    Raises
    ------
    ValueError
        If all steps together cost more.
    ModuleNotFoundError
        If scipy (extra ``accounting`` or ``dpsgd``) is not installed.
    """
    steps = plan.rounds * plan.steps
    found = _delta(float(plan.noise), float(plan.rate), steps, float(plan.epsilon))
    if found > plan.delta:
        raise ValueError(
            f"noise {plan.noise} is not enough for {steps:,} steps at rate {plan.rate:g}: at "
            f"epsilon {plan.epsilon:g} their delta is {found:.3g}, not {plan.delta:g}"
        )


@lru_cache(maxsize=16)
def _delta(noise: float, rate: float, steps: int, epsilon: float) -> float:
    return SampledGaussian(noise, rate, steps).delta(epsilon)


def _epsilon(law: LossLaw, steps: int, delta: float) -> float:
    """Return an epsilon with at most ``delta``, by laws that are exact ever nearer to it."""
    if loss_sum(law, steps, around=0.0).delta(0.0) <= delta:
        return 0.0
    found = chernoff_epsilon(law, steps, delta)
    while True:
        total = loss_sum(law, steps, around=found)
        low, high = 0.0, 2.0 * found + 1.0
        while total.delta(high) > delta:
            low, high = high, 2.0 * high
            if high > 1e9:
                return math.inf  # a loss that is infinite too often
        high = least(partial(_suffices, total, delta), low, high, _EPSILON_PRECISION / 4)
        if high > found * (1.0 - 1e-3):
            return min(high, found) if total.delta(found) <= delta else high
        found = high


def _suffices(total: LossSum, delta: float, epsilon: float) -> bool:
    return total.delta(epsilon) <= delta


@lru_cache(maxsize=4)
def _laws(noise: float, rate: float, replace: bool) -> tuple[LossLaw, ...]:
    return replaced(noise, rate) if replace else removed_or_added(noise, rate)


def _check_plan(sample_rate: float, steps: int) -> None:
    if not 1e-9 <= sample_rate <= 1:
        raise ValueError(f"sample_rate must be in [1e-9, 1], got {sample_rate}")
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= 10**8:
        raise ValueError(f"steps must be an integer from 1 to 100,000,000, got {quoted(steps)}")
