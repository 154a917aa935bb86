r"""Bounds on the total cost of releases, per unit (docs/accounting.md).

**Pure**: epsilons add up, and so do deltas (Dwork and Roth 2014, Theorems 3.14 and 3.16).

**Privacy loss distributions.** Binary randomized response with parameter :math:`\epsilon` dominates
every :math:`\epsilon`-DP mechanism (Kairouz, Oh, Viswanath 2015). The loss of n responses is a sum
of independent :math:`\pm\epsilon_i`, each :math:`+\epsilon_i` with probability
:math:`e^{\epsilon_i}/(1+e^{\epsilon_i})`, so n releases have

.. math:: \delta(\epsilon) = E[(1 - e^{\epsilon - L})_+], \quad L = \textstyle\sum_i \pm\epsilon_i.

A release with a delta is at most as revealing as one that tells everything with probability delta
and else is pure, so the deltas are first taken off the one asked for.

**When each holds.** Both hold for mechanisms chosen with all earlier reports in view. The second
also needs the *epsilons* and the number of releases to be fixed beforehand, or chosen without
regard to reports (Rogers et al. 2016). Limits are therefore enforced on sums, or for life by zCDP
(:mod:`.zcdp`); the second bound is for plans.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from flower_ldp.parameter_bounds import check_in, least
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, as_fraction, compose

# Points across the bulk of the sum's law, and of the laws of all different epsilons together.
# Fewer cost accuracy and never soundness.
_POINTS, _POINTS_OF_ALL = 1 << 18, 1 << 22
# Keeps steps and their exponentials within doubles.
_FINEST = 1e-12
# Standard deviations that the bulk spans: the rest weighs less than 1e-13.
_SPAN = 16.0
# Above this a response lies with a probability below 1e-13: composing it gains nothing.
_LARGE_EPSILON = 30.0
_WORTH_A_DELTA = 0.99


@dataclass(frozen=True)
class Totals:
    """Two bounds on the cost of the same releases about one unit.

    ``pure`` sums epsilons and deltas. ``approximate`` is from privacy loss distributions, at the
    delta asked for; None if that leaves no room for a bound.
    """

    pure: PrivacySpent
    approximate: PrivacySpent | None

    @property
    def smaller(self) -> PrivacySpent:
        """The bound with the smaller epsilon, with its delta.

        The pure one if the difference is less than a hundredth.
        """
        if self.approximate is None:
            return self.pure
        worth_it = self.approximate.epsilon < _WORTH_A_DELTA * self.pure.epsilon
        return self.approximate if worth_it else self.pure


def totals(events: Iterable[PrivacyEvent], *, delta: float) -> dict[Unit, Totals]:
    """Bound the cost of releases for each unit, releases about coarser units included.

    Each unit has the delta to itself. Conditional claims are in no bound.

    Parameters
    ----------
    events : iterable of PrivacyEvent
    delta : float
        Probability, in (0, 1), with which the approximate bound may fail. Choose it far below one
        over the number of protected units.

    Returns
    -------
    dict of Unit to Totals
        Only units for which something was promised.

    Raises
    ------
    ValueError
        If delta is outside its interval.
    """
    check_in("(0, 1)", "delta", delta)
    events = [event for event in events if not event.is_conditional]
    found: dict[tuple[PrivacyEvent, ...], PrivacySpent | None] = {}
    bounds = {}
    for unit, pure in compose(events).items():
        # Finer units often have the very same releases: these are convolved once.
        group = tuple(event for event in events if unit in event.unit.within)
        if group not in found:
            found[group] = _approximate(group, pure, delta)
        second = found[group]
        bounds[unit] = Totals(pure, None if second is None else replace(second, unit=unit))
    return bounds


def _approximate(
    events: tuple[PrivacyEvent, ...], pure: PrivacySpent, delta: float
) -> PrivacySpent | None:
    # Imported here: it brings numpy, and pure sums do without it.
    from flower_ldp.accounting.loss_sums import least_epsilon, response

    counts: Counter[float] = Counter()
    for event in events:
        counts[float(event.epsilon)] += event.count
    large = [epsilon * n for epsilon, n in counts.items() if epsilon > _LARGE_EPSILON]
    small = {epsilon: n for epsilon, n in counts.items() if epsilon <= _LARGE_EPSILON}
    left = delta - pure.delta
    if left <= 0:
        return None
    step = _grid(small) if small else 0.0
    laws = [(response(epsilon, step), n) for epsilon, n in small.items()]
    composed = least_epsilon(laws, left) if laws else 0.0
    # The last factor covers the rounding of the sum.
    epsilon = min(math.fsum([composed, *large]) * (1 + 1e-12), pure.epsilon)
    return PrivacySpent(pure.unit, epsilon, delta)


def _grid(counts: dict[float, int]) -> float:
    """Return the distance of grid points: exact for the epsilons as printed, if it can be."""
    deviation = math.sqrt(sum(n * epsilon**2 for epsilon, n in counts.items()))
    widest = 2 * math.fsum(n * epsilon for epsilon, n in counts.items())
    coarsest = min(widest, _SPAN * deviation) / min(_POINTS, _POINTS_OF_ALL // len(counts))
    printed = [as_fraction(epsilon) for epsilon in counts]
    denominator = math.lcm(*(value.denominator for value in printed))
    common = math.gcd(*(int(value * denominator) for value in printed))
    return max(common / denominator, coarsest, _FINEST)


# What the sampler of one Gaussian release adds to delta at most, at epsilon 100.
_SAMPLER = 2.0**-63


def composed_epsilon(shifts: Iterable[float], *, delta: float) -> float:
    r"""Return the epsilon of all Gaussian releases together, at ``delta``: less than the sum.

    Releases with normal noise and shifts :math:`\mu_1, \ldots, \mu_n` (the inputs' distance over
    the noise's standard deviation) tell two inputs apart no better than one shift of
    :math:`\sqrt{\mu_1^2 + \cdots + \mu_n^2}`, also if each is chosen with the earlier ones in view
    (Dong, Roth and Su, "Gaussian Differential Privacy", 2022, Corollary 3.3).

    **When it holds.** The inputs' neighbouring relation is that of the shifts. The shifts are fixed
    beforehand, or else a **cap** on :math:`\mu_1^2 + \cdots + \mu_n^2` that is never exceeded (a
    privacy filter: Smith and Thakurta, "Fully Adaptive Composition for Gaussian Differential
    Privacy", 2022). A cap guarantees the epsilon of the whole cap, however little of it was used.
    It does not hold for the sum reached when somebody who sees the releases decides when to stop or
    how much to spend. A ledger keeps such a cap for a life by zCDP (:mod:`.zcdp`).

    Parameters
    ----------
    shifts : iterable of float
        Of each release, positive: ``[mechanism.shift] * rounds``; for a cap, any n whose squares
        add up to it, for at most n releases.
    delta : float
        In [1e-12, 1).

    Returns
    -------
    float
        At least 0.001; infinity above 100, where no epsilon has a meaning.

    Raises
    ------
    ValueError
        If there is no shift or a parameter is outside its interval.

    Examples
    --------
    >>> from flower_ldp.mechanisms import Gaussian
    >>> epsilon = composed_epsilon([Gaussian(1.0, 1e-6).shift] * 50, delta=1e-5)
    >>> round(epsilon, 2)
    8.04
    """
    from flower_ldp.mechanisms.gaussian import LARGEST_EPSILON, SMALLEST_EPSILON, gaussian_delta

    check_in("[1e-12, 1)", "delta", delta)
    shifts = list(shifts)
    shift = math.hypot(*shifts)
    if not 0 < shift < math.inf:
        raise ValueError(f"shifts must be positive numbers, got a root of squares of {shift}")
    # A millionth covers the roundings of the curve in doubles.
    allowed = delta * (1.0 - 1e-6) - len(shifts) * _SAMPLER

    def enough(epsilon: float) -> bool:
        return gaussian_delta(epsilon, shift) <= allowed

    if not enough(LARGEST_EPSILON):
        return math.inf
    if enough(SMALLEST_EPSILON):
        return SMALLEST_EPSILON
    return least(enough, SMALLEST_EPSILON, LARGEST_EPSILON, 1e-9)
