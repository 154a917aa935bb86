r"""What a series of releases costs in all: the smaller of two bounds, one line per unit.

**Pure**: epsilons add up, and so do deltas (Dwork and Roth 2014, Theorems 3.14 and 3.16).

**Privacy loss distributions.** Binary randomized response with parameter :math:`\epsilon`
dominates every :math:`\epsilon`-DP mechanism: for any two neighbours, its two output laws
are those of one bit's responses, post-processed (Kairouz, Oh, Viswanath 2015). So n
releases reveal at most what n responses do, whose loss is a sum of independent
:math:`\pm\epsilon_i`, each :math:`+\epsilon_i` with probability
:math:`e^{\epsilon_i}/(1+e^{\epsilon_i})`, and

.. math:: \delta(\epsilon) = E[(1 - e^{\epsilon - L})_+], \quad L = \textstyle\sum_i \pm\epsilon_i.

The sum's law is found by convolution (dp-accounting), and the smallest epsilon whose
delta is at most the one asked for is reported. A release with a delta of its own is at
most as revealing as one that with probability delta tells everything and else is pure, so
the deltas are taken off the one asked for first.

**When each holds.** Both hold for mechanisms that are chosen with all earlier reports in
view. The second also needs the *epsilons* and the number of releases to be fixed
beforehand, or chosen without regard to reports (Rogers et al. 2016). Limits are therefore
enforced on pure sums, and the second bound is a statement about a plan.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, as_fraction, compose

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

# Points across the bulk of the sum's law. Epsilons are rounded up to the grid, so fewer
# points cost accuracy and never soundness.
_POINTS = 1 << 18
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

    Parameters
    ----------
    pure : PrivacySpent
        Sums of epsilons and of deltas.
    approximate : PrivacySpent or None
        From privacy loss distributions, at the delta that was asked for; None if that
        delta leaves no room for a bound.
    """

    pure: PrivacySpent
    approximate: PrivacySpent | None

    @property
    def smaller(self) -> PrivacySpent:
        """The bound with the smaller epsilon; its delta belongs to it.

        The pure one if the difference is less than a hundredth: a chance of failure should
        buy something.
        """
        if self.approximate is None:
            return self.pure
        worth_it = self.approximate.epsilon < _WORTH_A_DELTA * self.pure.epsilon
        return self.approximate if worth_it else self.pure


def totals(events: Iterable[PrivacyEvent], *, delta: float) -> dict[Unit, Totals]:
    """Bound what each unit's releases cost it, those about coarser units included.

    Each unit has the delta to itself. Conditional claims are in no bound.

    Parameters
    ----------
    events : iterable of PrivacyEvent
        The releases.
    delta : float
        Of the approximate bound, in (0, 1): the probability with which its epsilon may
        fail to hold. Choose it far below one over the number of units that are protected.

    Returns
    -------
    dict of Unit to Totals
        Only units for which something was promised.

    Raises
    ------
    ValueError
        If delta is outside its interval.
    ModuleNotFoundError
        If the extra ``accounting`` (dp-accounting) is not installed.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
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
    """Return the bound at ``delta``, or None if nothing of delta is left for it."""
    counts: Counter[float] = Counter()
    for event in events:
        counts[float(event.epsilon)] += event.count
    large = [epsilon * n for epsilon, n in counts.items() if epsilon > _LARGE_EPSILON]
    small = {epsilon: n for epsilon, n in counts.items() if epsilon <= _LARGE_EPSILON}
    # Convolution in doubles errs by about 1e-17 a release in delta (at most 3e-14 was seen
    # for 1,000 releases); this is taken off with room to spare.
    slack = 1e-12 + 1e-15 * sum(small.values())
    left = delta - pure.delta - slack
    if left <= 0:
        return None
    composed = _smallest_epsilon(_composed(small), left, pure.epsilon) if small else 0.0
    # The last factor covers the roundings of the grid and of the sum.
    epsilon = min(math.fsum([composed, *large]) * (1 + 1e-12), pure.epsilon)
    return PrivacySpent(pure.unit, epsilon, delta)


def _composed(counts: dict[float, int]) -> PrivacyLossDistribution:
    """Return the law of the loss of ``counts`` (epsilon to number) responses."""
    # Imported here: it brings scipy and takes a second, and pure sums do without it.
    try:
        from dp_accounting.pld import privacy_loss_distribution as pld
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "this bound needs dp-accounting: pip install 'flower-ldp[accounting]'"
        ) from error

    step = _grid(counts)
    parts = []
    for steps, n in _on_grid(counts, step).items():
        lie = 1.0 / (1.0 + math.exp(steps * step))
        # Losses are on the grid by construction. from_randomized_response would compute
        # each as a difference of logarithms and round it, often up by a whole step. And
        # PLDAccountant drops the count of such events: self_compose does not.
        response = pld.PrivacyLossDistribution.create_from_rounded_probability(
            {-steps: lie, steps: 1.0 - lie}, 0.0, step
        )
        parts.append(response.self_compose(n))
    # Neighbours first, so that large laws are convolved a few times only.
    while len(parts) > 1:
        pairs = [a.compose(b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]


def _grid(counts: dict[float, int]) -> float:
    """Return the distance of grid points: exact for the epsilons as printed, if it can be."""
    deviation = math.sqrt(sum(n * epsilon**2 for epsilon, n in counts.items()))
    widest = 2 * math.fsum(n * epsilon for epsilon, n in counts.items())
    coarsest = min(widest, _SPAN * deviation) / _POINTS
    printed = [as_fraction(epsilon) for epsilon in counts]
    denominator = math.lcm(*(value.denominator for value in printed))
    common = math.gcd(*(int(value * denominator) for value in printed))
    return max(common / denominator, coarsest, _FINEST)


def _on_grid(counts: dict[float, int], step: float) -> Counter[int]:
    """Return the numbers of responses by epsilon in steps, rounded up."""
    found: Counter[int] = Counter()
    for epsilon, n in counts.items():
        steps = epsilon / step
        # A quotient of printed decimals that misses its integer by rounding alone is it.
        near = round(steps)
        found[near if abs(steps - near) < 1e-13 * steps else math.ceil(steps)] += n
    return found


def _smallest_epsilon(losses: PrivacyLossDistribution, delta: float, largest: float) -> float:
    """Return an epsilon up to ``largest`` that has at most ``delta``, else infinity.

    It is the smallest to seven digits. By bisection on delta, because the library's own
    inverse adds up e^-loss, which is 0 or has few digits left at losses above 700.
    """
    if losses.get_delta_for_epsilon(0.0) <= delta:
        return 0.0
    if losses.get_delta_for_epsilon(largest) > delta:
        return math.inf
    return least(lambda e: losses.get_delta_for_epsilon(e) <= delta, 0.0, largest, 1e-7)


def least(enough: Callable[[float], bool], low: float, high: float, precision: float) -> float:
    """Return a number that is enough, at most the part ``precision`` above one that is not.

    Parameters
    ----------
    enough : callable
        Once a number is enough, all greater ones are.
    low, high : float
        What is not enough or need not be exceeded, and what is enough.
    precision : float
        Relative.
    """
    while high - low > precision * high:
        middle = (low + high) / 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high
