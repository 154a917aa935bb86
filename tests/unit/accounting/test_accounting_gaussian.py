"""Composed Gaussian releases: against dp-accounting, and against the bounds that know less."""

from __future__ import annotations

import math

import pytest

from flower_ldp.accounting.composition import composed_epsilon, totals
from flower_ldp.mechanisms import Gaussian
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.extras import extra

dp_accounting = extra("dp_accounting")
pld = extra("dp_accounting.pld")


def test_agrees_with_dp_accounting() -> None:
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    for shift, count in ((0.3, 40), (1.0, 3)):
        accountant.compose(dp_accounting.GaussianDpEvent(1 / shift), count)
    found = composed_epsilon([0.3] * 40 + [1.0] * 3, delta=1e-5)
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (8.0, 1e-5), (100.0, 0.01)])
def test_one_release_costs_what_it_states(epsilon: float, delta: float) -> None:
    shift = Gaussian(epsilon, delta).shift
    assert composed_epsilon([shift], delta=delta) == pytest.approx(epsilon, rel=1e-5)


def test_rounds_cost_less_than_their_sum() -> None:
    shift = Gaussian(1.0, 1e-6).shift
    assert composed_epsilon([shift] * 50, delta=50e-6) < 10
    assert composed_epsilon([shift] * 50, delta=1e-5) == pytest.approx(8.04, abs=0.01)


@pytest.mark.parametrize("rounds", [1, 10, 60])
def test_the_bound_that_knows_only_epsilon_and_delta_is_never_below(rounds: int) -> None:
    """totals() treats a release with delta as one that tells all with probability delta."""
    mechanism = Gaussian(0.2, 1e-8)
    (event,) = mechanism.events()
    known = totals([event] * rounds, delta=1e-5)[Unit.CLIENT]
    true = composed_epsilon([mechanism.shift] * rounds, delta=1e-5)
    assert known.approximate is not None
    assert known.approximate.epsilon >= true
    assert known.pure.epsilon >= known.approximate.epsilon
    assert known.pure.delta == pytest.approx(rounds * 1e-8)


def test_deltas_that_use_up_the_one_asked_for_leave_the_sum() -> None:
    events = [PrivacyEvent("gaussian", 1.0, 1e-6, count=10)]
    found = totals(events, delta=1e-5)[Unit.CLIENT]
    assert found.approximate is None
    assert (found.pure.epsilon, found.pure.delta) == (10.0, pytest.approx(1e-5))


def test_ends() -> None:
    assert composed_epsilon([1e-6], delta=1e-3) == 1e-3
    assert composed_epsilon([100.0], delta=1e-5) == math.inf


@pytest.mark.parametrize("shifts", [[], [0.0], [math.nan], [math.inf]])
def test_shifts_that_are_refused(shifts: list[float]) -> None:
    with pytest.raises(ValueError, match="shifts must be positive"):
        composed_epsilon(shifts, delta=1e-5)


@pytest.mark.parametrize("delta", [0.0, 1e-13, 1.0, math.nan])
def test_deltas_that_are_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta must be in"):
        composed_epsilon([1.0], delta=delta)
