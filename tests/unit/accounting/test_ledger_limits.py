"""No sequence of charges exceeds a limit, and no clock frees a budget."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_ldp.accounting.ledger import Ledger, Limit
from flower_ldp.accounting.ledger.charges import Scope
from flower_ldp.errors import BudgetExhausted, LedgerError, RefusalError
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.fixtures import LIFE, Clock, charge


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


def test_clock_set_back_frees_nothing(ledger: Ledger, clock: Clock, path: Path) -> None:
    window = Limit(Unit.CLIENT, "window", 0.1, window_seconds=60)
    latest = clock.seconds
    ledger.charge(charge(0), [window])
    for seconds in (latest - 1, latest - 61, latest - 1e9, 0.0):
        clock.seconds = seconds
        with Ledger.open(path, clock=clock) as again, pytest.raises(BudgetExhausted):
            again.charge(charge(1), [window])
    ledger.charge(charge(1), [LIFE])
    assert [entry.at for entry in ledger.entries()] == [int(latest * 1_000_000)] * 2
    for seconds in (-1.0, 1e18):
        clock.seconds = seconds
        with pytest.raises(LedgerError, match="clock"):
            ledger.charge(charge(2), [LIFE])


ORDER = ["client", "example", "label"]
DELTAS = st.sampled_from([0.0, 1e-7, 0.3])
AMOUNTS = (st.floats(1e-13, 2.0), DELTAS, st.sampled_from(Unit), st.integers(1, 3))
EVENTS = st.builds(PrivacyEvent, st.just("m"), *AMOUNTS)
REQUESTS = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2), st.integers(0, 6))


@settings(max_examples=40)
@given(st.lists(st.tuples(REQUESTS, EVENTS, st.floats(-40, 80)), max_size=25), st.floats(0.5, 5))
def test_no_sequence_exceeds_a_limit_and_sums_equal_entries(
    actions: list[tuple[tuple[str, int, int], PrivacyEvent, float]], most: float
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
        Ledger.open(Path(folder) / "l.sqlite", create=True, clock=clock, durable=False) as ledger,
    ):
        for (data, run, message), event, step in actions:
            clock.seconds += step
            events = (event, PrivacyEvent("bit", 0.01))
            with suppress(RefusalError):
                ledger.charge(charge(message, data_id=data, run_id=run, events=events), limits)
        entries = list(ledger.entries())
        ledger.verify()
        for limit in limits:
            for last in entries:
                own = [
                    (paid.cost.epsilon * paid.count, paid.cost.delta * paid.count)
                    for e in entries
                    if e.number <= last.number and e.data_id == last.data_id
                    if limit.scope != "run" or e.run_id == last.run_id
                    if limit.scope != "window" or last.at - e.at <= limit.microseconds
                    for paid in e.events
                    if ORDER.index(paid.unit) <= ORDER.index(limit.unit.value)
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
    path: Path, clock: Clock, damage: str, error: type[Exception]
) -> None:
    window = Limit(Unit.CLIENT, "window", 0.1, window_seconds=60)
    with Ledger.open(path, create=True, clock=clock) as ledger:
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
    for message, run_id in enumerate((1, 2, 2)):
        ledger.charge(charge(message, run_id=run_id), [LIFE])
        clock.seconds += 40
    found = [ledger.spent("ward-7", 2, limit).epsilon_text for limit in (LIFE, window, run, other)]
    assert found == ["0.3", "0.1", "0.2", "0.3"]
    assert ledger.spent("ward-8", 2, LIFE).epsilon_text == "0"
    clock.seconds = 0.0  # a clock that was set back changes nothing
    assert ledger.spent("ward-7", 1, window).epsilon_text == "0.2"
