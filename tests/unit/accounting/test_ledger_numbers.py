"""Numbers beside amounts: releases of an account, and what was answered or failed without one."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_ldp.accounting.ledger import Ledger, Limit, NumberLimit
from flower_ldp.accounting.ledger.charges import Kind
from flower_ldp.errors import BudgetExhausted, LedgerError, RefusalError
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.fixtures import LIFE, Clock, charge, edit

AMPLE = [Limit(unit, "life", 1e6) for unit in Unit]
PARTS = ["", "#a/0", "#a/1", "#b/0"]
TINY = (PrivacyEvent("signds", 1e-12),)


def test_releases_that_cost_nothing_have_a_largest_number(ledger: Ledger) -> None:
    most = NumberLimit(3)
    for message in range(3):
        ledger.charge(charge(message, events=TINY), [LIFE], numbers=[most])
    with pytest.raises(BudgetExhausted, match=r"ward-7: 3 releases .* 1 asked .* 3 releases per l"):
        ledger.charge(charge(3, events=TINY), [LIFE], numbers=[most])
    assert ledger.mark().entries == ledger.number("ward-7", most) == 3
    ledger.charge(charge(3, events=TINY, data_id="ward-8"), [LIFE], numbers=[most])


def test_a_plan_counts_its_rounds_and_nothing_counts_none(ledger: Ledger, path: Path) -> None:
    most = NumberLimit(10)
    ledger.charge(charge("plan", releases=9), AMPLE, numbers=[most])
    with pytest.raises(BudgetExhausted):
        ledger.charge(charge("more", releases=2), AMPLE, numbers=[most])
    ledger.charge(charge("rest", releases=0), AMPLE, numbers=[most], basis=charge("base"))
    assert ledger.number("ward-7", most) == 10
    with Ledger.open(path) as other:
        assert [entry.releases for entry in other.entries()] == [9, 1, 0]
        assert [row["releases"] for row in other.export()] == [9, 1, 0]
    for wrong in (-1, 2**32 + 1):
        with pytest.raises(ValueError, match="releases must be an integer in"):
            charge(releases=wrong)


def test_basis_is_refused_with_its_release(ledger: Ledger) -> None:
    with pytest.raises(BudgetExhausted):
        ledger.charge(charge(1), [LIFE], basis=charge("base"), numbers=[NumberLimit(1)])
    assert ledger.mark().entries == 0


def test_parts_of_the_data_count_towards_its_account(ledger: Ledger) -> None:
    most = NumberLimit(4)
    for message, part in enumerate(("", "#cut/0", "#cut/1", "#other/0")):
        ledger.charge(charge(message, data_id=f"ward-7{part}"), AMPLE, numbers=[most])
    for part in ("", "#cut/0", "#new/1"):
        with pytest.raises(BudgetExhausted, match="ward-7: 4 releases"):
            ledger.charge(charge("more", data_id=f"ward-7{part}"), AMPLE, numbers=[most])


def test_a_window_frees_numbers(ledger: Ledger, clock: Clock) -> None:
    window = NumberLimit(2, 60.0)
    ledger.charge(charge(0), AMPLE, numbers=[window])
    clock.seconds += 30
    ledger.charge(charge(1, data_id="ward-7#cut/0"), AMPLE, numbers=[window])
    clock.seconds += 30
    with pytest.raises(BudgetExhausted, match="2 releases per 60 s"):
        ledger.charge(charge(2), AMPLE, numbers=[window])
    clock.seconds += 0.001
    ledger.charge(charge(2), AMPLE, numbers=[window])
    assert ledger.number("ward-7", window) == 2
    assert ledger.number("ward-7", NumberLimit(2)) == 3


WISHES = st.tuples(st.sampled_from(PARTS), st.integers(0, 3), st.floats(0, 40))


@settings(max_examples=30)
@given(st.lists(WISHES, max_size=12))
def test_numbers_are_those_of_the_definition(wishes: list[tuple[str, int, float]]) -> None:
    clock, made = Clock(), list[tuple[float, int]]()
    with (
        TemporaryDirectory() as folder,
        Ledger.open(Path(folder) / "l.sqlite", create=True, clock=clock, durable=False) as ledger,
    ):
        for number, (part, releases, step) in enumerate(wishes):
            clock.seconds = round(clock.seconds + step, 6)
            now = int(clock() // 1_000) / 1e6
            life = sum(one for _, one in made)
            lately = sum(one for at, one in made if now - at <= 60.0)
            fits = not releases or (life + releases <= 9 and lately + releases <= 5)
            asked = charge(number, data_id=f"ward-7{part}", releases=releases)
            numbers = [NumberLimit(9), NumberLimit(5, 60.0)]
            with nullcontext() if fits else pytest.raises(BudgetExhausted):
                ledger.charge(asked, AMPLE, numbers=numbers)
            if fits:
                made.append((now, releases))
        ledger.verify()


def test_counts_are_per_account_and_bounded(ledger: Ledger, path: Path) -> None:
    assert ledger.counts("ward-7") == dict.fromkeys(get_args(Kind), 0)
    assert [ledger.count("ward-7", "failed") for _ in range(2)] == [1, 2]
    assert ledger.count("ward-7#cut/0", "acknowledged", 2) == 1
    assert ledger.count("ward-7", "again", 2) == 1
    for kind in ("again", "acknowledged"):
        with pytest.raises(BudgetExhausted, match="again and acknowledged together") as full:
            ledger.count("ward-7", kind, 2)  # type: ignore[arg-type]
        assert full.value.code == "ldp:refused:budget"
    assert ledger.count("ward-8", "again", 1) == 1
    with Ledger.open(path) as other:
        expected = {"again": 1, "acknowledged": 1, "failed": 2, "unprotected": 0}
        assert other.counts("ward-7") == expected
        other.charge(charge(0), AMPLE)
        other.charge(charge(0, run_id=1, data_id="ward-7#cut/1"), AMPLE)
        assert other.data_ids() == ["ward-7", "ward-7#cut/1"]
        other.verify()
    with pytest.raises(ValueError, match="kind must be one of"):
        ledger.count("ward-7", "other")  # type: ignore[arg-type]


def test_a_report_given_again_is_counted_and_bounded(ledger: Ledger) -> None:
    ledger.seal(ledger.charge(charge(epsilon=1.0), [LIFE], repeats=2), b"report")
    assert ledger.counts("ward-7")["again"] == 0
    for number in (1, 2):
        again = ledger.charge(charge(epsilon=1.0), [LIFE], numbers=[NumberLimit(1)], repeats=2)
        assert again.report == b"report"
        assert ledger.counts("ward-7")["again"] == number
    with pytest.raises(BudgetExhausted, match="limit is 2"):
        ledger.charge(charge(epsilon=1.0), [LIFE], repeats=2)
    assert ledger.charge(charge(epsilon=1.0), [LIFE]).report == b"report"
    assert ledger.counts("ward-7")["again"] == 2
    ledger.charge(charge("unsealed", run_id=1), AMPLE)
    with pytest.raises(RefusalError, match="no report was sealed"):
        ledger.charge(charge("unsealed", run_id=1), AMPLE, repeats=9)
    assert ledger.counts("ward-7")["again"] == 2


@pytest.mark.parametrize("damage", ["UPDATE total SET book = '{}'", "DELETE FROM total"])
def test_a_count_that_is_lost_or_changed_is_damage(path: Path, damage: str) -> None:
    with Ledger.open(path, create=True, durable=False) as ledger:
        ledger.charge(charge(), AMPLE)
        ledger.count("ward-7", "again")
        edit(path, f"{damage} WHERE run_id = 'counts'")
        for question in (
            lambda: ledger.counts("ward-7"),
            lambda: ledger.count("ward-7", "again", 1),
            ledger.verify,
        ):
            with pytest.raises(LedgerError, match="damaged"):
                question()


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM releases",
        "UPDATE releases SET number = 1",
        "INSERT INTO releases VALUES (2, 1)",
    ],
)
def test_a_number_of_releases_that_is_lost_or_changed_is_damage(path: Path, damage: str) -> None:
    with Ledger.open(path, create=True, durable=False) as ledger:
        ledger.charge(charge(0, releases=5), AMPLE)
        ledger.charge(charge(1), AMPLE)
        edit(path, damage)
        with pytest.raises(LedgerError, match="damaged"):
            ledger.verify()
