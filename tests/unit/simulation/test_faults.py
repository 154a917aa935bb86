"""Faults follow from the seed, the node and a running number, and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from flower_ldp.simulation import Fate, Faults

FAULTS = ("away", "slow", "lost", "leaving")


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [
        *((Faults, name, (-0.1, 1.1, math.nan, True)) for name in FAULTS),
        (Faults, "slow_seconds", (math.inf,)),
        (Fate, "late", (-1.0,)),
    ],
)
def test_numbers_outside_their_intervals_are_refused(
    make: Callable[..., object], name: str, values: tuple[object, ...]
) -> None:
    for value in values:
        with pytest.raises(ValueError, match=name):
            make(**{name: value})


def test_a_seed_is_an_integer() -> None:
    with pytest.raises(TypeError, match="seed"):
        Faults(seed=True)


def test_without_arguments_nothing_goes_wrong() -> None:
    assert Faults().away_in(0, 100) == frozenset()
    assert {Faults(seed=9).fate(part, 0) for part in range(100)} == {Fate()}


def test_the_same_seed_gives_the_same_faults_and_another_others() -> None:
    def drawn(seed: int) -> tuple[object, ...]:
        faults = Faults(seed=seed, away=0.2, slow=0.2, lost=0.2, leaving=0.2)
        fates = [faults.fate(part, number) for part in range(30) for number in range(3)]
        return (*fates, *(faults.away_in(turn, 30) for turn in range(3)))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_shares_are_those_that_were_asked_for_and_differ_by_turn_message_and_fault() -> None:
    faults = Faults(seed=5, away=0.1, slow=0.3, lost=0.2, leaving=0.05)
    turns = [faults.away_in(turn, 3_000) for turn in (0, 1)]
    fates = [[faults.fate(part, number) for part in range(3_000)] for number in (0, 1)]
    # Four standard deviations of a binomial share in 3,000 draws are 0.034 at most.
    assert [len(one) / 3_000 for one in turns] == pytest.approx([0.1, 0.1], abs=0.034)
    assert len(turns[0] & turns[1]) / 3_000 == pytest.approx(0.01, abs=0.015)
    for one in fates:
        assert sum(fate.lost for fate in one) / 3_000 == pytest.approx(0.2, abs=0.034)
        assert sum(fate.leaves for fate in one) / 3_000 == pytest.approx(0.05, abs=0.034)
    both = sum(first.lost and second.lost for first, second in zip(*fates, strict=True))
    assert both / 3_000 == pytest.approx(0.04, abs=0.015)
    # Whoever is slow is slow for the whole run.
    slow = [{part for part, fate in enumerate(one) if fate.late} for one in fates]
    assert slow[0] == slow[1]
    assert len(slow[0]) / 3_000 == pytest.approx(0.3, abs=0.034)
    assert {fate.late for fate in fates[0]} == {0.0, 60.0}
    lost = {part for part, fate in enumerate(fates[0]) if fate.lost}
    assert len(lost & slow[0]) / 3_000 == pytest.approx(0.06, abs=0.015)


def test_a_schedule_says_who_is_there_and_the_probability_takes_from_them() -> None:
    schedule = {1: {0, 1}, 2: []}.get
    turns = [sorted(Faults(schedule=schedule).away_in(turn, 4)) for turn in range(4)]
    assert turns == [[], [2, 3], [0, 1, 2, 3], []]
    assert Faults(schedule=schedule, away=1.0).away_in(1, 4) == {0, 1, 2, 3}


def test_a_plan_goes_before_the_drawing() -> None:
    def plan(partition: int, number: int) -> Fate | None:
        return Fate(late=7.0) if (partition, number) == (2, 1) else None

    faults = Faults(plan=plan, lost=1.0)
    assert faults.fate(2, 1) == Fate(late=7.0)
    assert faults.fate(2, 0) == Fate(lost=True)
