"""No sequence of charges exceeds a limit, and no clock frees a budget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_ldp.accounting.ledger import Ledger, Limit
from flower_ldp.accounting.ledger.charges import Scope
from flower_ldp.errors import BudgetExhausted, LedgerError, RefusalError
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.unit.accounting.test_ledger import LIFE, Clock, charge


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.sqlite", create=True, clock=clock) as opened:
        yield opened
        opened.verify()


def test_window_frees_what_is_older_and_no_more(ledger: Ledger, clock: Clock) -> None:
    window = Limit(Unit.CLIENT, "window", 0.2, window_seconds=60)
    start = clock.seconds
    ledger.charge(charge(0), [window])
    clock.seconds = start + 30
    ledger.charge(charge(1), [window])
    clock.seconds = start + 60
    with pytest.raises(BudgetExhausted, match="60 s"):
        ledger.charge(charge(2), [window])
    clock.seconds = start + 60.001
    ledger.charge(charge(2), [window])
    with pytest.raises(BudgetExhausted):
        ledger.charge(charge(3), [window])


def test_clock_set_back_frees_nothing(ledger: Ledger, clock: Clock, tmp_path: Path) -> None:
    window = Limit(Unit.CLIENT, "window", 0.1, window_seconds=60)
    latest = clock.seconds
    ledger.charge(charge(0), [window])
    for seconds in (latest - 1, latest - 61, latest - 1e9, 0.0):
        clock.seconds = seconds
        again = Ledger.open(tmp_path / "ledger.sqlite", clock=clock)
        with again, pytest.raises(BudgetExhausted):
            again.charge(charge(1), [window])
    ledger.charge(charge(1), [Limit(Unit.CLIENT, "life", 9.0)])
    assert [entry.at for entry in ledger.entries()] == [int(latest * 1_000_000)] * 2
    for seconds in (-1.0, 1e18):
        clock.seconds = seconds
        with pytest.raises(LedgerError, match="clock"):
            ledger.charge(charge(2), [LIFE])


ORDER = ["client", "example", "label"]
ACTIONS = st.tuples(
    st.sampled_from(["a", "b"]),
    st.integers(0, 2),
    st.integers(0, 6),
    st.sampled_from(Unit),
    st.floats(1e-13, 2.0),
    st.sampled_from([0.0, 1e-7, 0.3]),
    st.integers(1, 3),
    st.floats(-40, 80),
)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.lists(ACTIONS, max_size=25), st.floats(0.5, 5))
def test_no_sequence_exceeds_a_limit_and_sums_equal_entries(
    actions: list[tuple[str, int, int, Unit, float, float, int, float]], most: float
) -> None:
    scopes: list[tuple[Scope, float | None]] = [("life", None), ("run", None), ("window", 60)]
    limits = [
        Limit(unit, scope, most / divisor, 0.5 / divisor, seconds)
        for unit in Unit
        for divisor, (scope, seconds) in enumerate(scopes, start=1)
    ]
    clock = Clock()
    with (
        TemporaryDirectory() as folder,
        Ledger.open(
            Path(folder) / "ledger.sqlite", create=True, clock=clock, durable=False
        ) as ledger,
    ):
        for data, run, message, unit, epsilon, delta, count, step in actions:
            clock.seconds += step
            events = (PrivacyEvent("m", epsilon, delta, unit, count), PrivacyEvent("bit", 0.01))
            try:
                ledger.charge(charge(message, data_id=data, run_id=run, events=events), limits)
            except RefusalError:
                continue
        entries = list(ledger.entries())
        ledger.verify()
        for limit in limits:
            for last in entries:
                own = [
                    (event.cost.epsilon * event.count, event.cost.delta * event.count)
                    for e in entries
                    if e.number <= last.number and e.data_id == last.data_id
                    if limit.scope != "run" or e.run_id == last.run_id
                    if limit.scope != "window" or last.at - e.at <= limit.microseconds
                    for event in e.events
                    if ORDER.index(event.unit) <= ORDER.index(limit.unit.value)
                ]
                assert sum(epsilon for epsilon, _ in own) <= limit.allowed.epsilon
                assert sum(delta for _, delta in own) <= limit.allowed.delta


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ("UPDATE course SET book = replace(book, '0', '1') WHERE entry = 1", LedgerError),
        ("UPDATE course SET at = at + 50000000 WHERE entry = 2", LedgerError),
        ("DELETE FROM course WHERE entry = 1", BudgetExhausted),
    ],
)
def test_damage_to_the_past_frees_no_window(
    tmp_path: Path, clock: Clock, damage: str, error: type[Exception]
) -> None:
    window = Limit(Unit.CLIENT, "window", 0.1, window_seconds=60)
    with Ledger.open(tmp_path / "ledger.sqlite", create=True, clock=clock) as ledger:
        for message in range(2):
            ledger.charge(charge(message), [window])
            clock.seconds += 100
        clock.seconds -= 70
        ledger._db.execute(damage)
        with pytest.raises(error):
            ledger.charge(charge("more"), [window])


def test_spent_is_what_a_limit_would_count(ledger: Ledger, clock: Clock) -> None:
    window = Limit(Unit.CLIENT, "window", 9.0, window_seconds=60)
    run = Limit(Unit.CLIENT, "run", 9.0)
    other = Limit(Unit.LABEL, "life", 9.0)
    for run_id in (1, 2, 2):
        message = str(clock.seconds)
        ledger.charge(charge(message, run_id=run_id), [Limit(Unit.CLIENT, "life", 9.0)])
        clock.seconds += 40
    found = [ledger.spent("ward-7", 2, limit).epsilon_text for limit in (LIFE, window, run, other)]
    assert found == ["0.3", "0.1", "0.2", "0.3"]
    assert ledger.spent("ward-8", 2, LIFE).epsilon_text == "0"
    clock.seconds = 0.0  # a clock that was set back changes nothing
    assert ledger.spent("ward-7", 1, window).epsilon_text == "0.2"
