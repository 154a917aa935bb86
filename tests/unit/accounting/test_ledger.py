"""The ledger in one process: what it charges, refuses, gives again and adds up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flower_ldp.accounting.amounts import EPSILON_UNITS, Amount
from flower_ldp.accounting.ledger import REFUSED_REPEAT, Charge, Ledger, Limit, Receipt
from flower_ldp.errors import BudgetExhausted, LedgerError, RefusalError
from flower_ldp.privacy import PrivacyEvent, Unit

LIFE = Limit(Unit.CLIENT, "life", 1.0)
SECOND = 10**9


def charge(message: object = 0, epsilon: float = 0.1, **fields: object) -> Charge:
    given = {
        "data_id": "ward-7",
        "run_id": 2**64 - 1,
        "message_id": str(message),
        "message_type": "train",
        "fingerprint": b"request",
        "events": (PrivacyEvent("signds", epsilon),),
        **fields,
    }
    return Charge(**given)  # type: ignore[arg-type]


def everywhere(amount: Amount) -> dict[Unit, Amount]:
    """What is about the client is about its examples and labels."""
    return dict.fromkeys(Unit, amount)


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0

    def __call__(self) -> int:
        return int(self.seconds * SECOND)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.sqlite", create=True, clock=clock) as opened:
        yield opened
        opened.verify()


def test_charge_seal_and_read_back(ledger: Ledger, tmp_path: Path) -> None:
    asked = charge("first", parameters='{"h": 3}')
    receipt = ledger.charge(asked, [LIFE])
    assert receipt.report is None
    ledger.seal(receipt, b"\0report")
    with Ledger.open(tmp_path / "ledger.sqlite") as other:
        assert other.charge(asked, [LIFE]) == replace(receipt, report=b"\0report")
        (entry,) = other.entries()
        assert (entry.run_id, entry.sealed, entry.parameters) == (2**64 - 1, True, '{"h": 3}')
        assert other.totals("ward-7") == everywhere(Amount(10**11))
        assert other.totals("ward-7", 2**64 - 1) == everywhere(Amount(10**11))
        assert other.totals("ward-7", 0) == other.totals("ward-8") == {}
        assert other.data_ids() == ["ward-7"]
        found = other.verify()
        assert (found.entries, found.sealed, found.totals) == (1, 1, 2)
        assert list(other.export()) == [
            {
                "entry": 1,
                "at": "2023-11-14T22:13:20+00:00",
                "data_id": "ward-7",
                "run_id": str(2**64 - 1),
                "message_id": "first",
                "message_type": "train",
                "fingerprint": b"request".hex(),
                "parameters": '{"h": 3}',
                "sealed": True,
                "releases": 1,
                "mechanism": "signds",
                "unit": "client",
                "epsilon": "0.1",
                "delta": "0",
                "count": 1,
                "waived": "",
            }
        ]


def test_empty_report_is_a_report(ledger: Ledger) -> None:
    ledger.seal(ledger.charge(charge(), [LIFE]), b"")
    assert ledger.charge(charge(), [LIFE]).report == b""


def test_message_that_was_never_sealed_is_refused(ledger: Ledger) -> None:
    ledger.charge(charge(), [LIFE])
    with pytest.raises(RefusalError, match="no report was sealed") as refusal:
        ledger.charge(charge(), [LIFE])
    assert refusal.value.code == REFUSED_REPEAT
    assert ledger.totals("ward-7") == everywhere(Amount(10**11))


@pytest.mark.parametrize(
    "other",
    [
        {"fingerprint": b"another"},
        {"message_type": "evaluate"},
        {"parameters": '{"h": 4}'},
        {"epsilon": 0.2},
        {"events": (PrivacyEvent("signds", 0.1, unit=Unit.LABEL),)},
    ],
)
def test_same_message_for_another_request_is_refused(
    ledger: Ledger, other: dict[str, object]
) -> None:
    ledger.seal(ledger.charge(charge(), [LIFE]), b"report")
    with pytest.raises(RefusalError, match="another request") as refusal:
        ledger.charge(charge(**other), [LIFE])  # type: ignore[arg-type]
    assert refusal.value.code == REFUSED_REPEAT


def test_stored_report_is_given_again_when_the_budget_is_gone(ledger: Ledger) -> None:
    ledger.seal(ledger.charge(charge(epsilon=1.0), [LIFE]), b"report")
    assert ledger.charge(charge(epsilon=1.0), [LIFE]).report == b"report"


def test_sealing_twice_or_without_a_charge_fails(ledger: Ledger, tmp_path: Path) -> None:
    receipt = ledger.charge(charge(), [LIFE])
    with Ledger.open(tmp_path / "other.sqlite", create=True) as other:
        foreign = other.charge(charge(), [LIFE])
    for wrong in (Receipt(2, receipt.chain), Receipt(0, receipt.chain), Receipt(-1, b""), foreign):
        with pytest.raises(ValueError, match="not from this ledger"):
            ledger.seal(wrong, b"report")
    with pytest.raises(TypeError, match="report must be bytes"):
        ledger.seal(receipt, "report")  # type: ignore[arg-type]
    ledger.seal(receipt, b"report")
    for again in (b"report", b"other"):
        with pytest.raises(ValueError, match="sealed before"):
            ledger.seal(receipt, again)
    assert ledger.charge(charge(), [LIFE]).report == b"report"


def test_limit_is_used_up_and_not_exceeded(ledger: Ledger) -> None:
    limit = Limit(Unit.CLIENT, "life", 8.0)
    for message in range(80):
        ledger.charge(charge(message), [limit])
    with pytest.raises(BudgetExhausted, match=r"epsilon 8 was spent .* limit is epsilon 8") as full:
        ledger.charge(charge("last", 1e-12), [limit])
    assert full.value.code == "ldp:refused:budget"
    assert ledger.totals("ward-7") == everywhere(Amount(8 * EPSILON_UNITS))
    assert ledger.mark().entries == 80


def test_runs_and_data_have_their_own_budgets(ledger: Ledger) -> None:
    limits = [Limit(Unit.CLIENT, "run", 0.2), Limit(Unit.CLIENT, "life", 0.5)]
    for run in (1, 2):
        for message in range(2):
            ledger.charge(charge(message, run_id=run), limits)
        with pytest.raises(BudgetExhausted, match="and run"):
            ledger.charge(charge("more", run_id=run), limits)
    ledger.charge(charge(run_id=3), limits)
    with pytest.raises(BudgetExhausted, match="and life"):
        ledger.charge(charge("more", run_id=3), limits)
    ledger.charge(charge(run_id=3, data_id="ward-8"), limits)
    assert ledger.totals("ward-7", 1) == everywhere(Amount(2 * 10**11))
    assert ledger.data_ids() == ["ward-7", "ward-8"]


def test_a_coarser_unit_counts_towards_finer_ones_and_never_back(ledger: Ledger) -> None:
    events = (PrivacyEvent("a", 0.5), PrivacyEvent("b", 0.7, 1e-6, Unit.EXAMPLE, count=2))
    limits = [LIFE, Limit(Unit.EXAMPLE, "life", 1.9, 3e-6)]
    ledger.charge(charge(1, events=events), limits)
    assert ledger.totals("ward-7") == {
        Unit.CLIENT: Amount.cost(0.5),
        Unit.EXAMPLE: Amount.cost(1.9, 2e-6),
        Unit.LABEL: Amount.cost(1.9, 2e-6),
    }
    for refused in (events[1:], events[:1]):
        with pytest.raises(BudgetExhausted, match="per example"):
            ledger.charge(charge(2, events=refused), limits)
    ledger.charge(charge(2, events=events[:1]), [LIFE])
    with pytest.raises(BudgetExhausted, match="no limit is set per label"):
        ledger.charge(charge(3, events=(PrivacyEvent("c", 1e-9, unit=Unit.LABEL),)), limits)


def test_delta_has_its_own_limit(ledger: Ledger) -> None:
    event = PrivacyEvent("gauss", 0.1, 1e-6)
    with pytest.raises(BudgetExhausted, match="delta"):
        ledger.charge(charge(0, events=(event,)), [LIFE])
    limit = Limit(Unit.CLIENT, "life", 1.0, 2e-6)
    for message in range(2):
        ledger.charge(charge(message, events=(event,)), [limit])
    with pytest.raises(BudgetExhausted):
        ledger.charge(charge(2, events=(event,)), [limit])


def test_total_that_cannot_be_counted_is_refused(ledger: Ledger) -> None:
    run = Limit(Unit.CLIENT, "run", 9e6)
    ledger.charge(charge(0, 9e6, run_id=1), [run])
    with pytest.raises(BudgetExhausted, match="cannot count"):
        ledger.charge(charge(0, 9e6, run_id=2), [run])


def test_threads_share_a_ledger(ledger: Ledger) -> None:
    def work(name: int) -> None:
        for message in range(10):
            ledger.seal(ledger.charge(charge(f"{name}-{message}", 0.01), [LIFE]), b"r")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.totals("ward-7") == everywhere(Amount.cost(0.4))


def test_entries_are_read_in_pages(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    for message in range(7):
        ledger.charge(charge(message), [LIFE])
    monkeypatch.setattr("flower_ldp.accounting.ledger.entries.PAGE", 3)
    assert [entry.message_id for entry in ledger.entries()] == list("0123456")
    assert [entry.number for entry in ledger.entries(4)] == [4, 5, 6, 7]
    assert list(ledger.entries(8)) == []
    with pytest.raises(ValueError, match="first must be"):
        next(ledger.entries(0))
    ledger.verify()


def test_closed_ledger_says_so(ledger: Ledger, tmp_path: Path) -> None:
    other = Ledger.open(tmp_path / "ledger.sqlite")
    other.close()
    other.close()
    with pytest.raises(LedgerError, match="was closed"):
        other.charge(charge(), [LIFE])
