r"""How much noise DP-SGD needs, and what it guarantees, for one example **replaced**.

**What is accounted for.** T steps; in each, every one of n examples takes part with probability
q, independently (Poisson sampling); gradients are clipped to length C each, added up, and
normal noise of standard deviation :math:`\sigma C` is added to the sum. n, q and T are public.

**The guarantee.** With lengths in units of C, each step tells two data sets that differ in one
example's content apart no better than the laws :math:`(1 - q) N(0, \sigma^2) + q N(\pm 1,
\sigma^2)` are, whatever was seen before, and no less (docs/dpsgd_release.md has the proof: joint
convexity and Kahane's inequality). So T steps tell no more than T independent draws from these do.
The sum of their losses is computed here, with every error of rounding and of the transform on
the safe side (:mod:`~flower_ldp.accounting.loss_distribution`).

Accountants usually state the epsilon for an example *removed* or *added*. It is smaller for the
same noise, and means less; docs/dpsgd_release.md has the figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from flower_ldp.accounting.loss_distribution import (
    LossLaw,
    chernoff_epsilon,
    loss_sum,
    removed_or_added,
    replaced,
)
from flower_ldp.bounds import Bounded, check_fields, check_in, least
from flower_ldp.mechanisms.training_plan import TrainingPlan

# Relative precision of the noise multiplier that is searched, and of an epsilon.
_PRECISION, _EPSILON_PRECISION = 1e-3, 1e-6
# Beyond these no one trains.
_MOST_NOISE, _LEAST_NOISE = 1e4, 0.05


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

    noise_multiplier: Annotated[float, Bounded(f"[{_LEAST_NOISE:g}, {_MOST_NOISE:g}]")]
    sample_rate: Annotated[float, Bounded("[1e-9, 1]")]
    steps: Annotated[int, Bounded("[1, 100000000]")]

    def __post_init__(self) -> None:
        check_fields(self)

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
        check_in("[0, inf)", "epsilon", epsilon)
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
        check_in("[1e-15, 1)", "delta", delta)
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
    check_in("[0.01, 30]", "epsilon", epsilon)
    check_in("[1e-10, 0.5]", "delta", delta)
    SampledGaussian(_MOST_NOISE, sample_rate, steps)  # checks the other two
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
            most = f"no noise multiplier up to {_MOST_NOISE:g} is enough"
            raise ValueError(f"epsilon {epsilon:g} cannot be kept: {most}")
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

    def enough(epsilon: float) -> bool:
        return total.delta(epsilon) <= delta

    total = loss_sum(law, steps, around=0.0)
    if enough(0.0):
        return 0.0
    found = chernoff_epsilon(law, steps, delta)
    while True:
        total = loss_sum(law, steps, around=found)
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
