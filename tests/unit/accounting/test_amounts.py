"""Exact amounts: rounded up for a cost, down for a limit, and never mixed or lost."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_ldp.accounting.amounts import DELTA_UNITS, EPSILON_UNITS, MOST, Amount
from flower_ldp.privacy import Unit

EPSILONS = st.floats(0, 1e6, exclude_min=True)
DELTAS = st.floats(0, 1, exclude_max=True)


@given(EPSILONS, DELTAS, st.integers(1, 3))
def test_costs_are_rounded_up_and_allowances_down(epsilon: float, delta: float, count: int) -> None:
    cost, allowed = Amount.cost(epsilon, delta, count), Amount.allowance(epsilon, delta)
    for units, floor, per_one, value in (
        (cost.epsilon, allowed.epsilon, EPSILON_UNITS, epsilon),
        (cost.delta, allowed.delta, DELTA_UNITS, delta),
    ):
        meant = Fraction(repr(value)) * per_one
        assert meant * count <= units < (meant + 1) * count
        assert meant - 1 < floor <= meant
        # What a decimal name differs by from the binary number is below its rounding.
        assert abs(Fraction(value) - Fraction(repr(value))) <= Fraction(math.ulp(value)) / 2


@given(st.lists(st.tuples(EPSILONS, DELTAS), max_size=9))
def test_sums_are_exact_and_floats_never_below_them(terms: list[tuple[float, float]]) -> None:
    own = [Amount.cost(epsilon, delta) for epsilon, delta in terms]
    amount = sum(own, start=Amount())
    assert amount == Amount(sum(a.epsilon for a in own), sum(a.delta for a in own))
    spent = amount.spent(Unit.LABEL)
    assert Fraction(repr(spent.epsilon)) * EPSILON_UNITS >= amount.epsilon
    assert Fraction(repr(spent.delta)) * DELTA_UNITS >= amount.delta
    assert spent.epsilon == pytest.approx(amount.epsilon / EPSILON_UNITS, rel=1e-15)


@pytest.mark.parametrize(("total", "rounds"), [(8.0, 80), (1.0, 10), (0.3, 3), (100.0, 1000)])
def test_tenths_fill_their_sum_exactly(total: float, rounds: int) -> None:
    assert Amount.cost(0.1, count=rounds) == Amount.allowance(total)


def test_smallest_numbers_cost_one_unit() -> None:
    assert Amount.cost(5e-324, 5e-324) == Amount(1, 1)
    assert Amount.allowance(5e-324, 5e-324) == Amount(0, 0)


def test_numbers_of_numpy_and_integers_are_understood() -> None:
    assert Amount.cost(float(np.float64(0.1))) == Amount.cost(np.float64(0.1)) == Amount(10**11)
    assert Amount.cost(2, 0) == Amount(2 * EPSILON_UNITS)
    assert Amount.cost(np.float32(0.5)) == Amount(EPSILON_UNITS // 2)  # type: ignore[arg-type]


NO_EPSILONS = [math.inf, -math.inf, math.nan, -1e-300, -1, 9_223_373.0, 10**30, 1e300, True, "1"]


@pytest.mark.parametrize(
    ("name", "amount"),
    [("epsilon", (value,)) for value in [*NO_EPSILONS, None]]
    + [("delta", (1.0, value)) for value in (math.inf, math.nan, -0.1, 9.3)],
)
def test_what_is_no_amount_is_refused(name: str, amount: tuple[float, ...]) -> None:
    for make in (Amount.cost, Amount.allowance):
        with pytest.raises(ValueError, match=f"{name} must be"):
            make(*amount)


def test_sums_that_do_not_fit_are_refused() -> None:
    assert (Amount(MOST - 1) + Amount(1)).bounded() == Amount(MOST)
    with pytest.raises(ValueError, match="epsilon must be in"):
        (Amount(MOST) + Amount(1)).bounded()
    with pytest.raises(ValueError, match="at least 0"):
        Amount(1) - Amount(2)
    with pytest.raises(ValueError, match="epsilon must be in"):
        Amount.cost(1e6, count=10)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (Amount(), "epsilon 0"),
        (Amount(8 * EPSILON_UNITS), "epsilon 8"),
        (Amount(1, 1), "epsilon 0.000000000001, delta 0.000000000000000001"),
        (Amount(MOST, MOST), "epsilon 9223372.036854775807, delta 9.223372036854775807"),
        (Amount(10**11, 10**13), "epsilon 0.1, delta 0.00001"),
    ],
)
def test_text_is_exact(amount: Amount, text: str) -> None:
    assert str(amount) == text
