"""The ledger's time: no jump of the clock empties a window, and a repair empties none either."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_ldp.accounting.ledger import Ledger, Limit, NumberLimit
from flower_ldp.accounting.ledger import charges as ledger_time
from flower_ldp.errors import BudgetExhausted, LedgerError
from flower_ldp.privacy import Unit
from tests.fixtures import LIFE, Clock, charge, edit

DAYS = 86_400.0
YEAR_9987 = 253_000_000_000.0
WINDOW = Limit(Unit.CLIENT, "window", 0.1, window_seconds=30 * DAYS)


@pytest.fixture
def ledger(ledger: Ledger) -> Ledger:
    """Return a ledger whose window is full."""
    ledger.charge(charge(0), [WINDOW])
    return ledger


def refused(ledger: Ledger, message: int) -> None:
    with pytest.raises(BudgetExhausted):
        ledger.charge(charge(message), [WINDOW])


def wrong_clock(ledger: Ledger, message: int, text: str) -> None:
    with pytest.raises(LedgerError, match=text):
        ledger.charge(charge(message), [WINDOW])


@pytest.mark.parametrize("seconds", [401 * DAYS, 4_000 * DAYS])
def test_a_jump_is_refused_and_writes_nothing(ledger: Ledger, clock: Clock, seconds: float) -> None:
    start = clock.seconds
    clock.seconds = start + seconds
    for _ in range(2):
        wrong_clock(ledger, 1, "more than 400 days .* --accept")
    assert ledger.mark().entries == 1
    assert ledger.spent("ward-7", 1, WINDOW).epsilon_text == "0.1"
    assert ledger.number("ward-7", NumberLimit(9, 60.0)) == 1
    clock.seconds = start + 1
    refused(ledger, 1)
    clock.seconds = start + 31 * DAYS
    ledger.charge(charge(1), [WINDOW])


def test_a_phone_that_was_off_for_a_year_goes_on(ledger: Ledger, clock: Clock) -> None:
    clock.seconds += 400 * DAYS
    ledger.charge(charge(1), [WINDOW])


@pytest.mark.parametrize("seconds", [YEAR_9987, 7_258_118_400.0])
def test_a_clock_that_cannot_be_right_is_refused(path: Path, clock: Clock, seconds: float) -> None:
    clock.seconds = seconds
    with Ledger.open(path, create=True, clock=clock, durable=False) as ledger:
        wrong_clock(ledger, 0, "set it right")
        with pytest.raises(LedgerError, match="set it right"):
            ledger.accept_clock()
        clock.seconds = seconds - DAYS if seconds < YEAR_9987 else 0.0
        ledger.charge(charge(0), [WINDOW])


def test_a_report_that_is_paid_for_is_sealed_whatever_the_clock(
    ledger: Ledger, clock: Clock
) -> None:
    clock.seconds += 31 * DAYS
    receipt = ledger.charge(charge(1), [WINDOW])
    clock.seconds += 500 * DAYS
    ledger.seal(receipt, b"report")


def test_a_pause_that_was_real_takes_the_owners_word(
    ledger: Ledger, clock: Clock, path: Path
) -> None:
    clock.seconds += 2_000 * DAYS
    assert ledger.clock().jumped
    before = ledger.accept_clock()
    assert (before.jumped, ledger.clock().jumped, ledger.clock().ahead) == (True, False, 0)
    ledger.charge(charge(1), [WINDOW])
    refused(ledger, 2)
    clock.seconds += 401 * DAYS
    with Ledger.open(path, clock=clock) as other, pytest.raises(LedgerError, match="400 days"):
        other.charge(charge(2), [WINDOW])


def test_a_word_given_for_one_time_allows_no_later_jump(ledger: Ledger, clock: Clock) -> None:
    clock.seconds += 2_000 * DAYS
    ledger.accept_clock()
    clock.seconds += 401 * DAYS
    wrong_clock(ledger, 1, "400 days")


def test_a_ledger_of_the_year_9987_goes_on_and_frees_nothing_early(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an older package wrote it: all later charges have the same time, for good."""
    now = clock.seconds
    with monkeypatch.context() as patch:
        patch.setattr(ledger_time, "MOST_CLOCK", 10**18)
        patch.setattr(ledger_time, "MOST_JUMP", 10**18)
        clock.seconds = YEAR_9987
        ledger.charge(charge(1), [WINDOW])
    clock.seconds = now + 50 * DAYS
    refused(ledger, 2)
    ledger.accept_clock()
    assert ledger.clock().ahead > 0
    for days in (0, 29.9):
        clock.seconds = now + (50 + days) * DAYS
        refused(ledger, 2)
    clock.seconds = now + 81 * DAYS
    ledger.charge(charge(2), [WINDOW])
    refused(ledger, 3)
    clock.seconds = now + 500 * DAYS
    wrong_clock(ledger, 3, "400 days")
    clock.seconds = now - 9_000 * DAYS  # back once more: nothing leaves until it has caught up
    refused(ledger, 3)


def test_accepting_twice_or_a_clock_that_is_right_frees_nothing(
    ledger: Ledger, clock: Clock
) -> None:
    for step in (0.0, 10 * DAYS, -5 * DAYS, 1.0):
        clock.seconds += step
        ledger.accept_clock()
        refused(ledger, 1)
    clock.seconds += 31 * DAYS
    ledger.charge(charge(1), [WINDOW])


@pytest.mark.parametrize("damage", ["UPDATE clock SET set_to = 9", "DELETE FROM clock"])
def test_a_setting_that_is_lost_or_changed_is_damage(path: Path, clock: Clock, damage: str) -> None:
    with Ledger.open(path, create=True, clock=clock, durable=False) as ledger:
        ledger.charge(charge(0), [LIFE])
    edit(path, damage)
    with Ledger.open(path, clock=clock) as ledger:
        for question in (lambda: ledger.charge(charge(1), [LIFE]), ledger.verify):
            with pytest.raises(LedgerError, match="is damaged"):
                question()
