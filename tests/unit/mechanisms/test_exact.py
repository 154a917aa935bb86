"""Bounds and comparisons with e^epsilon, against mpmath at many digits."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_ldp.mechanisms.random import EXP_BITS, exp_lower
from flower_ldp.mechanisms.signds_size import exp_scaled_at_least
from flower_ldp.privacy import as_fraction
from tests.extras import extra

mpmath = extra("mpmath")

EPSILONS = [1e-6, 1e-3, 0.1, 0.15, 0.5, math.log(2), 1.0, 2.0, 7.3, 10.0, 33.3, 64.0, 99.9, 100.0]
DIGITS = 800


def power(epsilon: float) -> mpmath.mpf:
    """Return e^epsilon for the decimal that ``epsilon`` prints as; call under workdps."""
    return mpmath.exp(mpmath.mpf(repr(float(epsilon))))


def convergents(epsilon: float, largest: int) -> list[tuple[int, int]]:
    """Return the continued-fraction convergents b/a of e^epsilon up to ``largest``, as (a, b)."""
    x = power(epsilon)
    before, last = (0, 1), (1, 0)
    pairs = []
    while last[0] < largest:
        digit = int(mpmath.floor(x))
        before, last = last, (digit * last[0] + before[0], digit * last[1] + before[1])
        pairs.append((last[1], last[0]))
        x = 1 / (x - digit)
    return pairs


def test_parameters_are_the_decimals_that_they_print_as() -> None:
    values = [0.15, 0.1, 1e-30, 7]
    exact = [Fraction(3, 20), Fraction(1, 10), Fraction(1, 10**30), 7]
    assert [as_fraction(value) for value in values] == exact
    assert as_fraction(0.15) != Fraction(0.15)


@pytest.mark.parametrize("epsilon", [0.0, 5e-324, 1e-300, 1e-40, *EPSILONS])
def test_lower_bound_is_below_by_less_than_two_units(epsilon: float) -> None:
    for bits in (0, 1, 10, 64, EXP_BITS, 1000, 1200):
        with mpmath.workdps(DIGITS):
            true = power(epsilon) * mpmath.mpf(2) ** bits
            assert exp_lower(epsilon, bits) <= true < exp_lower(epsilon, bits) + 2


@settings(deadline=None, derandomize=True, max_examples=120)
@given(st.floats(1e-6, 100), st.integers(0, 300))
def test_lower_bound_holds_for_any_epsilon(epsilon: float, bits: int) -> None:
    with mpmath.workdps(DIGITS):
        true = power(epsilon) * mpmath.mpf(2) ** bits
        assert exp_lower(epsilon, bits) <= true < exp_lower(epsilon, bits) + 2


@settings(deadline=None, derandomize=True, max_examples=120)
@given(
    st.sampled_from(EPSILONS),
    st.integers(-(10**40), 10**40),
    st.integers(-(10**40), 10**40),
)
def test_comparison_of_any_integers(epsilon: float, a: int, b: int) -> None:
    with mpmath.workdps(DIGITS):
        assert exp_scaled_at_least(epsilon, a, b) == bool(a * power(epsilon) >= b)


@settings(deadline=None, derandomize=True, max_examples=120)
@given(st.sampled_from(EPSILONS), st.integers(1, 10**60), st.integers(-2, 2))
def test_comparison_of_neighbouring_integers(epsilon: float, a: int, offset: int) -> None:
    with mpmath.workdps(DIGITS):
        b = int(mpmath.floor(a * power(epsilon))) + offset
        assert exp_scaled_at_least(epsilon, a, b) == (offset <= 0)
        assert exp_scaled_at_least(epsilon, -a, -b) == (offset > 0)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_near_ties_are_decided_by_more_digits(epsilon: float) -> None:
    with mpmath.workdps(DIGITS):
        near = 0
        for a, b in convergents(epsilon, 10**200):
            gap = a * power(epsilon) - b
            near += abs(gap) < mpmath.mpf(10) ** -60
            assert exp_scaled_at_least(epsilon, a, b) == bool(gap > 0)
            assert exp_scaled_at_least(epsilon, -a, -b) == bool(gap < 0)
        assert near >= 10


@pytest.mark.parametrize("epsilon", [0.0, 1e-300, 1e-6, 1.0, 100.0])
def test_signs_and_zeros(epsilon: float) -> None:
    sizes = (0, 1, 2, 3, 10**50, 10**50 + 1)
    for a, b in itertools.product([*sizes, *(-size for size in sizes)], repeat=2):
        with mpmath.workdps(DIGITS):
            assert exp_scaled_at_least(epsilon, a, b) == bool(a * power(epsilon) >= b)
