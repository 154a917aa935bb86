r"""Zero-concentrated differential privacy (zCDP): costs, and the filter of a life's budget.

**Relation and unit**: those of the releases.

**Cost.** A release is rho-zCDP if the Rényi divergence of every order alpha > 1 between neighbours
is at most rho alpha; delta-approximately so if that holds but for events of probability delta (Bun
and Steinke 2016). An epsilon-DP release has :math:`\rho = \epsilon \tanh(\epsilon / 2)`, and an
(epsilon, delta)-DP one the same, delta-approximately.

**Proof.** Binary randomized response dominates epsilon-DP (Kairouz, Oh and Viswanath 2015). With x
= epsilon / 2 and s = alpha - 1 its divergence is

.. math:: \frac{1}{s} \ln \frac{\cosh((1 + 2 s) x)}{\cosh x}
          = \frac{1}{s} \int_0^s 2 x \tanh((1 + 2 t) x)\, dt
          \le \frac{1}{s} \int_0^s 2 x (1 + 2 t) \tanh x\, dt = \alpha\, \epsilon \tanh x,

since tanh is concave on the positive axis and tanh 0 = 0. (epsilon, delta)-DP is dominated by a
response that tells everything with probability delta.

**Guarantee of a total.** rho-zCDP is (epsilon, delta)-DP if for some alpha > 1

.. math:: \frac{e^{(\alpha - 1)(\alpha \rho - \epsilon)}}{\alpha - 1}
          \left(1 - \frac{1}{\alpha}\right)^\alpha \le \delta

(Canonne, Kamath and Steinke 2020, Corollary 13). docs/accounting.md has the filter's proof.

**Exactness.** Every alpha gives a valid bound, so the search for a good one may be in doubles. The
bound at that alpha is computed in 60 digits, and rounded to the safe side by far more than its
error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

from flower_ldp.accounting.amounts import DELTA_UNITS, EPSILON_UNITS, Amount
from flower_ldp.privacy import PrivacyEvent, Unit, as_fraction, double_at_least, rounded_up

_DIGITS = 60
#: Of a release with a rho of its own: what its sampler's ends may show.
_LEAST_DELTA = Fraction(1, 10**18)
#: Above the roundings of 60 digits, far below any cost.
_MARGIN = Fraction(1, 10**24)
#: Below it epsilon^2 / 2 is as good, and exact.
_SMALL = Fraction(1, 10**6)
#: Natural logarithms of alpha - 1 between which the best is looked for.
_SEARCHED = (-25.0, 45.0)
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def zcdp_cost(event: PrivacyEvent) -> Amount:
    """Return the rho of one release, and the delta with which it may fail, rounded up."""
    if event.rho is None:
        return _rounded_up(pure_rho(event.epsilon), as_fraction(event.delta))
    return _rounded_up(as_fraction(event.rho), _LEAST_DELTA)


def _rounded_up(rho: Fraction, delta: Fraction) -> Amount:
    return Amount(math.ceil(rho * EPSILON_UNITS), math.ceil(delta * DELTA_UNITS))


@lru_cache(maxsize=256)
def pure_rho(epsilon: float) -> Fraction:
    """Return the rho of one release of a positive ``epsilon``, rounded up."""
    exact = as_fraction(epsilon)
    if exact < _SMALL:
        return exact**2 / 2
    with localcontext(Context(prec=_DIGITS)):
        growth = (-_decimal(exact)).exp()
        return exact * Fraction((1 - growth) / (1 + growth)) * (1 + _MARGIN)


@lru_cache(maxsize=256)
def largest_rho(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the largest rho that is (epsilon, delta)-DP, rounded down; at least 0."""
    if delta <= 0:
        return Fraction(0)

    def negative(alpha: float) -> float:
        return -(float(epsilon) - _excess(alpha, _log(delta))) / alpha

    alpha = _best(negative)
    found = (epsilon - _exact_excess(alpha, delta)) / Fraction(alpha) - _MARGIN
    return max(found, Fraction(0))


def zcdp_epsilon(rho: Fraction, delta: Fraction) -> float:
    """Return the smallest epsilon of a rho-zCDP total at ``delta`` in (0, 1), rounded up."""
    if not rho:
        return 0.0
    alpha = _best(lambda alpha: alpha * float(rho) + _excess(alpha, _log(delta)))
    found = Fraction(alpha) * rho + _exact_excess(alpha, delta) + _MARGIN
    return double_at_least(max(found, Fraction(0)))


def zcdp_totals(events: Iterable[PrivacyEvent]) -> dict[Unit, Amount]:
    """Return the rho and its delta of all releases for each unit, coarser units included."""
    return _totals(events, zcdp_cost)


def sum_cost(event: PrivacyEvent) -> Amount:
    """Return epsilon and delta of one release, as the ledger counts them."""
    return _rounded_up(as_fraction(event.epsilon), as_fraction(event.delta))


def _totals(
    events: Iterable[PrivacyEvent], cost: Callable[[PrivacyEvent], Amount]
) -> dict[Unit, Amount]:
    found: dict[Unit, Amount] = {}
    for event in events:
        one = cost(event)
        each = Amount(one.epsilon * event.count, one.delta * event.count)
        for unit in event.unit.within if not event.is_conditional else ():
            found[unit] = found.get(unit, Amount()) + each
    return found


def life_by_zcdp(events: Iterable[PrivacyEvent], unit: Unit, delta: float) -> float:
    """Return the smallest epsilon of a life by zCDP at ``delta`` that releases fit, rounded up.

    Of the policy's default for release deltas, a thousandth of ``delta``; infinite if deltas of
    releases are more.
    """
    events = tuple(events)
    sums, cost = _totals(events, sum_cost)[unit], _totals(events, zcdp_cost)[unit]
    deltas = Fraction(as_fraction(delta), 1000)
    left, found = as_fraction(delta) - 2 * deltas, [math.inf]
    if Fraction(cost.delta, DELTA_UNITS) <= deltas:
        rho = Fraction(cost.epsilon, EPSILON_UNITS)
        epsilon = rounded_up(zcdp_epsilon(rho, left), 12)
        while largest_rho(as_fraction(epsilon), left) < rho:  # by another alpha
            epsilon = rounded_up(epsilon * (1.0 + 1e-12), 12)
        found.append(epsilon)
    if Fraction(sums.delta, DELTA_UNITS) <= deltas:
        found.append(double_at_least(Fraction(sums.epsilon, EPSILON_UNITS)))
    return min(found)


def _excess(alpha: float, log_delta: float) -> float:
    """Return what epsilon needs beyond alpha rho, in doubles."""
    s = alpha - 1.0
    return (-log_delta - math.log(s) + alpha * (math.log(s) - math.log(alpha))) / s


def _exact_excess(alpha: float, delta: Fraction) -> Fraction:
    with localcontext(Context(prec=_DIGITS)):
        order, s = Decimal(alpha), Decimal(alpha) - 1
        return Fraction((-_decimal(delta).ln() - s.ln() + order * (s.ln() - order.ln())) / s)


def _best(cost: Callable[[float], float]) -> float:
    """Return about the alpha of least cost, by golden sections."""

    def alpha(place: float) -> float:
        return 1.0 + math.exp(place)

    low, high = _SEARCHED
    for _ in range(90):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if cost(alpha(left)) <= cost(alpha(right)):
            high = right
        else:
            low = left
    return alpha((low + high) / 2.0)


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def _log(value: Fraction) -> float:
    return math.log(value.numerator) - math.log(value.denominator)
