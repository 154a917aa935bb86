"""Events and their sum: units apart, sums correctly rounded, impossible costs refused."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from flower_ldp.privacy import (
    PrivacyEvent,
    PrivacySpent,
    Unbounded,
    Unit,
    compose,
    compose_directly,
    meaning,
    unbounded,
)


def test_epsilons_of_one_unit_add_up() -> None:
    spent = compose([PrivacyEvent("signds", 7.0, count=3), PrivacyEvent("magrr", 0.5, 1e-6)])
    assert spent == {unit: PrivacySpent(unit, 21.5, 1e-6) for unit in Unit}


def test_coarser_units_count_towards_finer_ones() -> None:
    events = [PrivacyEvent("m", 2.0, unit=unit, count=2) for unit in Unit]
    assert compose_directly(events) == {unit: PrivacySpent(unit, 4.0) for unit in Unit}
    expected = {Unit.CLIENT: 4.0, Unit.EXAMPLE: 8.0, Unit.LABEL: 12.0}
    assert compose(events) == {u: PrivacySpent(u, epsilon) for u, epsilon in expected.items()}


def test_finer_units_bound_nothing_about_coarser_ones() -> None:
    events = [PrivacyEvent("m", 2.0, unit=Unit.EXAMPLE, count=3), PrivacyEvent("l", 1.0, 0.5)]
    labels = PrivacyEvent("l", 1.0, unit=Unit.LABEL)
    assert compose([labels]) == {Unit.LABEL: PrivacySpent(Unit.LABEL, 1.0)}
    assert unbounded(events, Unit.CLIENT) == Unbounded(silent=3)
    assert unbounded([*events, labels], Unit.EXAMPLE) == Unbounded(silent=1)
    assert not unbounded(events, Unit.LABEL)
    assert str(unbounded(events, Unit.CLIENT)) == "3 releases promise nothing for it"


def test_what_holds_under_a_condition_is_in_no_total() -> None:
    claim = PrivacyEvent("embedding_dp:conditional", 2.0, unit=Unit.EXAMPLE, count=2)
    assert compose([claim]) == compose_directly([claim]) == {}
    both = [claim, PrivacyEvent("m", 1.0)]
    assert compose(both) == compose(both[1:])
    assert unbounded(both, Unit.LABEL) == Unbounded(conditional=2)
    assert unbounded(both, Unit.CLIENT) == Unbounded(silent=2)


def test_nothing_spent_is_no_line_at_all() -> None:
    assert compose([]) == {}


def test_many_small_releases_are_summed_without_drift() -> None:
    one_by_one = compose([PrivacyEvent("m", 0.1, 1e-7)] * 1000)[Unit.CLIENT]
    assert one_by_one.epsilon == 100.0
    assert one_by_one.delta == float(1000 * Fraction(1e-7))
    plain = 0.0
    for _ in range(1000):  # not sum(), which compensates from Python 3.12 on
        plain += 0.1
    assert plain != 100.0
    assert compose([PrivacyEvent("m", 0.1, 1e-7, count=1000)])[Unit.CLIENT] == one_by_one


def test_sum_is_correctly_rounded() -> None:
    epsilons = [1e-20, 0.3, 1e16, 7.1, 1e-9]
    total = compose(PrivacyEvent("m", epsilon) for epsilon in epsilons)[Unit.CLIENT].epsilon
    assert total == float(sum(Fraction(epsilon) for epsilon in epsilons))


def test_order_does_not_matter() -> None:
    events = [PrivacyEvent("m", 0.1 * n, 1e-9 * n) for n in range(1, 50)]
    assert compose(events) == compose(reversed(events))


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, -math.inf, math.nan])
def test_epsilon_must_be_finite_and_positive(epsilon: float) -> None:
    with pytest.raises(ValueError, match=rf"epsilon must be in \(0, inf\), got {epsilon}"):
        PrivacyEvent("m", epsilon)


@pytest.mark.parametrize("delta", [-1e-300, 1.0, 2.0, math.nan])
def test_delta_must_be_a_probability_below_one(delta: float) -> None:
    with pytest.raises(ValueError, match=rf"delta must be in \[0, 1\), got {delta}"):
        PrivacyEvent("m", 1.0, delta)


@pytest.mark.parametrize("count", [0, -1, 1.5, math.nan])
def test_count_must_be_a_positive_integer(count: int) -> None:
    with pytest.raises(ValueError, match=rf"count must be an integer in \[1, inf\), got {count}"):
        PrivacyEvent("m", 1.0, count=count)


def test_ends_of_intervals_are_accepted() -> None:
    assert PrivacyEvent("m", 5e-324, math.nextafter(1, 0), count=1).unit is Unit.CLIENT


def test_events_are_values() -> None:
    event = PrivacyEvent("m", 1.0)
    assert event == PrivacyEvent("m", 1.0)
    assert hash(event) == hash(PrivacyEvent("m", 1.0))
    with pytest.raises(AttributeError):
        event.epsilon = 0.5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("spent", "text"),
    [
        (PrivacySpent(Unit.CLIENT, 8.0), "epsilon 8 per client"),
        (PrivacySpent(Unit.LABEL, 0.5, 1e-5), "epsilon 0.5, delta 1e-05 per label"),
        (PrivacySpent(Unit.EXAMPLE, 2.25), "epsilon 2.25 per example"),
        # A bound in six digits is one still.
        (PrivacySpent(Unit.CLIENT, 1.2345612, 1.0000001e-5), "epsilon 1.23457, delta 1.00001e-05"),
        (PrivacySpent(Unit.CLIENT, 2_000_000.4), "epsilon 2.00001e+06 per client"),
        (PrivacySpent(Unit.CLIENT, 0.1 + 0.2), "epsilon 0.3 per client"),
    ],
)
def test_totals_read_as_text(spent: PrivacySpent, text: str) -> None:
    assert str(spent).startswith(text)


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (0.5, "at most 1.65 times."),
        (1.0, "at most 2.72 times."),
        (math.nextafter(1, 2), "at most 3 times: a weak but real limit."),
        (0.05, "at most 1.06 times."),  # e^0.05 is 1.0513
        (10.0, "at most 22,027 times: a weak but real limit."),
        (math.nextafter(10, 11), "10^4 times"),
        (400.0, "10^174 times"),
        (1e6, "10^434294 times"),
    ],
)
def test_meaning_states_the_factor_of_the_odds(epsilon: float, words: str) -> None:
    text = meaning(PrivacySpent(Unit.LABEL, epsilon))
    assert words in text
    assert "a label's data" in text
    assert ("means nothing" in text) == (epsilon > 10)


def test_with_a_delta_no_odds_are_bounded() -> None:
    """What is seen with probability delta may tell all: the odds then have no bound."""
    for epsilon in (0.5, 5.0):
        text = meaning(PrivacySpent(Unit.LABEL, epsilon, 1e-5))
        assert text.startswith("Probabilities of what a label's data may show change by at most")
        assert "times plus 1e-05" in text
    assert "this delta means nothing" in meaning(PrivacySpent(Unit.LABEL, 0.5, 1.0))
