r"""How much noise DP-SGD needs, and what it guarantees, for one example **replaced**.

**What is accounted for.** T steps; in each, every one of n examples takes part with probability
q, independently (Poisson sampling); gradients are clipped to length C each, added up, and
normal noise of standard deviation :math:`\sigma C` is added to the sum. n, q and T are public.

**From add-or-remove to replace-one.** Accountants state (epsilon, delta) for a data set with
one example *removed*: the sum moves by C. This package's unit is one example *replaced*, where it
may move by 2C. Replacing is removing and then adding, so for any event S

.. math:: P(S) \le e^{\epsilon} Q(S) + \delta \le e^{\epsilon}(e^{\epsilon} R(S) + \delta) + \delta,

and (epsilon, delta) for one removed or added is :math:`(2\epsilon, (1 + e^\epsilon)\delta)`
for one replaced. That is what is computed here: half the epsilon, a bit less than half the
delta, by privacy loss distributions (dp-accounting, pessimistic rounding). The same noise is
often sold at half the epsilon; docs/dpsgd.md has the figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dp_accounting import PrivacyAccountant

# Relative precision of the noise multiplier that is searched.
_PRECISION = 1e-3
# Beyond these no one trains.
_MOST_NOISE, _LEAST_NOISE = 1e4, 0.05


@dataclass(frozen=True)
class SampledGaussian:
    """Steps of DP-SGD with Poisson sampling.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise over the clipping length; positive.
    sample_rate : float
        Probability that an example takes part in a step; in (0, 1].
    steps : int
        At least 1.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int

    def __post_init__(self) -> None:
        if not 0 < self.noise_multiplier < math.inf:
            raise ValueError(f"noise_multiplier must be in (0, inf), got {self.noise_multiplier}")
        _check_plan(self.sample_rate, self.steps)

    def delta(self, epsilon: float, *, replace: bool = True, interval: float = 1e-4) -> float:
        """Return the delta at ``epsilon``.

        Parameters
        ----------
        epsilon : float
            At least 0.
        replace : bool
            For one example replaced, this package's unit; False for one added or removed.
        interval : float
            Grid of the privacy losses. A coarser one is faster and gives a larger delta.
        """
        return _delta(self._accountant(interval), epsilon, replace=replace)

    def epsilon(self, delta: float, *, replace: bool = True, interval: float = 1e-4) -> float:
        """Return the smallest epsilon with at most ``delta``, to six digits.

        Parameters
        ----------
        delta : float
            In (0, 1).
        replace, interval
            As in :meth:`delta`.

        Raises
        ------
        ValueError
            If delta is outside its interval.
        """
        _check_delta(delta)
        accountant = self._accountant(interval)
        low, high = 0.0, 1.0
        while _delta(accountant, high, replace=replace) > delta:
            low, high = high, 2.0 * high
            if high > 1e4:
                return math.inf
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            if _delta(accountant, middle, replace=replace) > delta:
                low = middle
            else:
                high = middle
        return high

    def _accountant(self, interval: float) -> PrivacyAccountant:
        accounting = _dp_accounting()
        from dp_accounting.pld import PLDAccountant

        accountant = PLDAccountant(
            accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=interval
        )
        step = accounting.PoissonSampledDpEvent(
            self.sample_rate, accounting.GaussianDpEvent(self.noise_multiplier)
        )
        return accountant.compose(step, self.steps)


def noise_multiplier(epsilon: float, delta: float, *, sample_rate: float, steps: int) -> float:
    """Return noise that makes DP-SGD (epsilon, delta)-private for one example replaced.

    Parameters
    ----------
    epsilon : float
        Of the whole training, per example; in [0.01, 30].
    delta : float
        Of the whole training, per example; in [1e-10, 0.5].
    sample_rate : float
        Probability that an example takes part in a step; in (0, 1].
    steps : int
        At least 1.

    Returns
    -------
    float
        At most one part in a thousand more than what the accounting here needs.

    Raises
    ------
    ValueError
        If a parameter is outside its interval, or no noise up to 10,000 is enough.
    ModuleNotFoundError
        If dp-accounting (extra ``accounting`` or ``dpsgd``) is not installed.
    """
    if not 0.01 <= epsilon <= 30:
        raise ValueError(f"epsilon must be in [0.01, 30], got {epsilon}")
    if not 1e-10 <= delta <= 0.5:
        raise ValueError(f"delta must be in [1e-10, 0.5], got {delta}")
    _check_plan(sample_rate, steps)
    # Losses add up over steps: the grid must be fine against epsilon.
    interval = min(1e-3, epsilon / 4000)

    def enough(noise: float) -> bool:
        plan = SampledGaussian(noise, sample_rate, steps)
        return plan.delta(epsilon, interval=interval) <= delta

    # What many small steps without sampling noise beyond q would need: a first guess only.
    high = min(max(2.0 * sample_rate * math.sqrt(steps) / epsilon, 0.5), _MOST_NOISE)
    while not enough(high):
        high *= 1.5
        if high > _MOST_NOISE:
            raise ValueError(f"no noise multiplier up to {_MOST_NOISE:g} gives epsilon {epsilon:g}")
    low = high / 1.5
    while low > _LEAST_NOISE and enough(low):
        high, low = low, low / 1.5
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def _delta(accountant: PrivacyAccountant, epsilon: float, *, replace: bool) -> float:
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be at least 0, got {epsilon}")
    if not replace:
        return float(accountant.get_delta(epsilon))
    half = epsilon / 2
    return min(1.0, (1.0 + math.exp(half)) * float(accountant.get_delta(half)))


def _check_plan(sample_rate: float, steps: int) -> None:
    if not 0 < sample_rate <= 1:
        raise ValueError(f"sample_rate must be in (0, 1], got {sample_rate}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be an integer of at least 1, got {steps!r}")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")


def _dp_accounting() -> Any:
    # Imported late: it brings scipy and takes a second.
    try:
        import dp_accounting
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "DP-SGD needs dp-accounting: pip install 'flower-ldp[dpsgd]'"
        ) from error
    return dp_accounting
