"""zCDP: each cost against Rényi divergences, and the filter against all adaptive servers."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_ldp.accounting.amounts import DELTA_UNITS, EPSILON_UNITS, Amount
from flower_ldp.accounting.zcdp import (
    largest_rho,
    life_by_zcdp,
    pure_rho,
    sum_cost,
    zcdp_cost,
    zcdp_epsilon,
    zcdp_totals,
)
from flower_ldp.mechanisms import Gaussian
from flower_ldp.privacy import PrivacyEvent, Unit, as_fraction

ORDERS = 1.0 + np.geomspace(1e-5, 1e4, 400)


def renyi(epsilon: float, order: float) -> float:
    """Return the divergence of binary randomized response, by its definition."""
    true = np.array([epsilon, 0.0]) - math.log1p(math.exp(epsilon))
    terms = order * true + (1.0 - order) * true[::-1]
    return float(np.logaddexp(*terms)) / (order - 1.0)


def oracle_epsilon(rho: float, delta: float) -> float:
    """Return the conversion's epsilon on a fine grid of orders."""
    s = np.geomspace(1e-9, 1e9, 400_001)
    order = 1.0 + s
    found = order * rho - np.log(order * delta) / s + np.log(s / order)
    return float(found.min())


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0, 40.0])
def test_the_rho_of_a_pure_release_bounds_each_divergence_and_is_tight(epsilon: float) -> None:
    rho = float(pure_rho(epsilon))
    assert all(renyi(epsilon, order) <= rho * order * (1 + 1e-6) for order in ORDERS)
    assert rho == pytest.approx(epsilon * math.tanh(epsilon / 2), rel=1e-12)
    assert rho <= epsilon**2 / 2 * (1 + 1e-12)


def test_tiny_epsilons_have_half_their_square() -> None:
    assert pure_rho(1e-7) == Fraction(1, 2 * 10**14)
    assert float(pure_rho(1e-5)) == pytest.approx(5e-11 * (1 - 1e-10 / 12), rel=1e-14)


@pytest.mark.parametrize("epsilon", [0.001, 1.31, 4.73, 50.0])
@pytest.mark.parametrize("delta", ["1e-12", "1e-5", "0.3"])
def test_conversions_agree_with_a_grid_and_with_each_other(epsilon: float, delta: str) -> None:
    exact, allowed = Fraction(str(epsilon)), Fraction(delta)
    rho = largest_rho(exact, allowed)
    assert oracle_epsilon(float(rho), float(allowed)) == pytest.approx(epsilon, rel=1e-5)
    assert zcdp_epsilon(rho, allowed) == pytest.approx(epsilon, rel=1e-9)
    above = rho + Fraction(1, EPSILON_UNITS)
    assert zcdp_epsilon(above, allowed) > epsilon


def test_nothing_left_of_delta_allows_no_rho() -> None:
    assert largest_rho(Fraction(4), Fraction(0)) == 0
    assert zcdp_epsilon(Fraction(0), Fraction(1, 10**5)) == 0.0


@pytest.mark.parametrize(
    ("event", "delta", "life"),
    [
        (PrivacyEvent("pure", 0.01, count=1_000), 1e-5, 1.31),
        (PrivacyEvent("pure", 0.1, count=100), 1e-5, 4.73),
        (PrivacyEvent("pure", 1.0, count=80), 1e-5, 76.41),
        (PrivacyEvent("pure", 8.0, count=60), 1e-5, 480.0),
        (PrivacyEvent("pure", 0.01, count=1_000), 1e-6, 1.472),
        (PrivacyEvent("pure", 0.1, count=100), 1e-6, 5.22),
        (PrivacyEvent("gaussian", 1.0, 1e-6, count=20, rho=0.02801447917), 2e-5, 4.89),
    ],
)
def test_lives_that_many_releases_fit(event: PrivacyEvent, delta: float, life: float) -> None:
    assert {life - 0.011 < life_by_zcdp([event], unit, delta) <= life for unit in Unit} == {True}


def test_a_life_is_never_above_the_sums() -> None:
    assert life_by_zcdp([PrivacyEvent("pure", 8.0)], Unit.CLIENT, 1e-5) == 8.0


def test_deltas_of_releases_beyond_a_thousandth_fit_no_life_by_default() -> None:
    events = [PrivacyEvent("a", 0.1, 1e-9)]
    assert life_by_zcdp(events, Unit.CLIENT, 1e-6) == 0.1
    assert life_by_zcdp(events, Unit.CLIENT, 0.99e-6) == math.inf


@given(st.floats(1e-4, 9.0), st.integers(1, 5_000), st.sampled_from([1e-3, 1e-5, 1e-9, 2e-18]))
def test_the_life_that_is_told_is_allowed(epsilon: float, count: int, delta: float) -> None:
    """By the ledger's own rule, of the policy's default."""
    events = [PrivacyEvent("pure", epsilon, count=count)]
    life = life_by_zcdp(events, Unit.CLIENT, delta)
    fixed = as_fraction(delta)
    deltas, cost = fixed / 1000, zcdp_totals(events)[Unit.CLIENT]
    rho = largest_rho(as_fraction(life), fixed - 2 * deltas)
    by_sums = as_fraction(life) >= Fraction(sum_cost(events[0]).epsilon * count, EPSILON_UNITS)
    assert by_sums or Fraction(cost.epsilon, EPSILON_UNITS) <= rho


def test_costs_by_kind() -> None:
    mechanism = Gaussian(1.0, 1e-6)
    (event,) = mechanism.events()
    exact = Fraction(mechanism.shift) ** 2 / 2
    assert zcdp_cost(event).delta == 1
    # The sampler ends at 18.4 deviations: no zCDP where the other input still has mass there.
    (far,) = Gaussian(100.0, 0.5).events()
    assert far.rho is None
    assert zcdp_cost(far) == Amount(pure_units(100.0), DELTA_UNITS // 2)
    assert 0 <= Fraction(zcdp_cost(event).epsilon, EPSILON_UNITS) - exact < Fraction(2, 10**12)
    assert zcdp_cost(PrivacyEvent("dpsgd", 1.0, 1e-6)).delta == DELTA_UNITS // 10**6
    conditional = PrivacyEvent("embedding_dp:conditional", 1.0)
    assert zcdp_totals([conditional]) == {}
    finer = zcdp_totals([PrivacyEvent("a", 1.0), PrivacyEvent("b", 1.0, unit=Unit.LABEL)])
    assert finer[Unit.LABEL].epsilon == 2 * finer[Unit.CLIENT].epsilon


def pure_units(epsilon: float) -> int:
    return math.ceil(pure_rho(epsilon) * EPSILON_UNITS)


Menu = tuple[tuple[float, float], ...]


def worst_delta(epsilon: float, menu: Menu, allowed: object, most: int) -> float:
    """Return the exact delta at ``epsilon`` of the best server, over all its adaptive choices.

    It may ask for each (epsilon, leak) of the menu again and again, as the gate allows by the
    numbers asked for. Each release tells all with probability ``leak``, and else is a randomized
    response.
    """

    @cache
    def best(asked: tuple[int, ...], loss: float) -> float:
        found = max(0.0, 1.0 - math.exp(epsilon - loss))
        for place, (each, leak) in enumerate(menu):
            after = (*asked[:place], asked[place] + 1, *asked[place + 1 :])
            if sum(after) > most or not allowed(after):  # type: ignore[operator]
                continue
            true = 1.0 / (1.0 + math.exp(-each))
            up, down = best(after, round(loss + each, 9)), best(after, round(loss - each, 9))
            found = max(found, leak + (1.0 - leak) * (true * up + (1.0 - true) * down))
        return found

    return best((0,) * len(menu), 0.0)


def totals_of(menu: Menu, asked: tuple[int, ...]) -> tuple[float, float, float]:
    pairs = list(zip(menu, asked, strict=True))
    epsilon = sum(times * each for (each, _), times in pairs)
    leak = sum(times * one for (_, one), times in pairs)
    return epsilon, leak, sum(times * float(pure_rho(each)) for (each, _), times in pairs)


@pytest.mark.parametrize(
    ("menu", "delta", "deltas", "most"),
    [
        (((0.3, 0.0),), 0.2, 0.0002, 40),
        (((0.3, 0.0), (0.2, 0.0), (0.05, 0.0)), 0.05, 0.001, 9),
        (((0.2, 0.0), (0.1, 0.005)), 0.1, 0.01, 14),
        (((0.25, 0.0), (0.001, 0.02)), 0.1, 0.02, 14),
        (((0.15, 0.0), (0.2, 0.001), (0.001, 0.0125)), 0.1, 0.0125, 18),
    ],
)
def test_no_adaptive_server_exceeds_the_delta_of_the_filter(
    menu: Menu, delta: float, deltas: float, most: int
) -> None:
    rho = float(largest_rho(Fraction(1), Fraction(str(delta)) - 2 * Fraction(str(deltas))))

    def allowed(asked: tuple[int, ...]) -> bool:
        epsilon, leak, cost = totals_of(menu, asked)
        return leak <= deltas and (epsilon <= 1.0 + 1e-9 or cost <= rho)

    by_sums = max(n for n in range(most + 1) if n * menu[0][0] <= 1.0 + 1e-9)
    assert allowed((by_sums + 1, *(0,) * (len(menu) - 1)))  # zCDP allows what sums do not
    assert 0.0 < worst_delta(1.0, menu, allowed, most) <= delta


def test_a_delta_that_both_rules_could_spend_would_not_hold() -> None:
    menu, delta = ((0.3, 0.0), (0.001, 0.05)), 0.05

    def allowed(asked: tuple[int, ...]) -> bool:
        epsilon, leak, cost = totals_of(menu, asked)
        by_zcdp = leak < delta and cost <= float(largest_rho(Fraction(1), Fraction(delta - leak)))
        return (epsilon <= 1.0 + 1e-9 and leak <= delta) or by_zcdp

    assert worst_delta(1.0, menu, allowed, 14) > 1.2 * delta
