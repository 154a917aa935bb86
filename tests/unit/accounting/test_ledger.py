"""The ledger in one process: what it charges, refuses, gives again and adds up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from flower_ldp.accounting.amounts import EPSILON_UNITS, Amount
from flower_ldp.accounting.ledger import REFUSED_REPEAT, Ledger, Limit, Receipt
from flower_ldp.errors import BudgetExhausted, LedgerError, RefusalError
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.fixtures import LIFE, charge


def everywhere(amount: Amount) -> dict[Unit, Amount]:
    """What is about the client is about its examples and labels."""
    return dict.fromkeys(Unit, amount)


def test_charge_seal_and_read_back(ledger: Ledger, path: Path) -> None:
    asked = charge("first", parameters='{"h": 3}')
    receipt = ledger.charge(asked, [LIFE])
    ledger.seal(receipt, b"\0report")
    with Ledger.open(path) as other:
        assert other.charge(asked, [LIFE]) == replace(receipt, report=b"\0report")
        (entry,) = other.entries()
        assert (entry.run_id, entry.sealed, entry.parameters) == (2**64 - 1, True, '{"h": 3}')
        assert other.totals("ward-7") == everywhere(Amount(10**11))
        assert other.totals("ward-7", 2**64 - 1) == everywhere(Amount(10**11))
        assert other.totals("ward-7", 0) == other.totals("ward-8") == {}
        assert other.data_ids() == ["ward-7"]
        found = other.verify()
        assert (found.entries, found.sealed, found.totals) == (1, 1, 2)
        (row,) = other.export()
    request = ("ward-7", str(2**64 - 1), "first", "train", b"request".hex(), '{"h": 3}')
    release = (True, 1, "signds", "client", "0.1", "0", 1, "", "")
    assert tuple(row.values()) == (1, "2023-11-14T22:13:20+00:00", *request, *release)
    names = "entry at data_id run_id message_id message_type fingerprint parameters"
    assert [
        *row
    ] == f"{names} sealed releases mechanism unit epsilon delta count waived rho".split()


def test_a_report_is_given_again_though_it_is_empty_and_the_budget_gone(ledger: Ledger) -> None:
    ledger.seal(ledger.charge(charge(epsilon=1.0), [LIFE]), b"")
    assert ledger.charge(charge(epsilon=1.0), [LIFE]).report == b""


def test_message_that_was_never_sealed_is_refused(ledger: Ledger) -> None:
    ledger.charge(charge(), [LIFE])
    with pytest.raises(RefusalError, match="no report was sealed") as refusal:
        ledger.charge(charge(), [LIFE])
    assert refusal.value.code == REFUSED_REPEAT
    assert ledger.totals("ward-7") == everywhere(Amount(10**11))


def test_same_message_for_another_request_is_refused(ledger: Ledger) -> None:
    ledger.seal(ledger.charge(charge(), [LIFE]), b"report")
    for other in (
        charge(fingerprint=b"another"),
        charge(message_type="evaluate"),
        charge(parameters='{"h": 4}'),
        charge(epsilon=0.2),
        charge(events=(PrivacyEvent("signds", 0.1, unit=Unit.LABEL),)),
    ):
        with pytest.raises(RefusalError, match="another request") as refusal:
            ledger.charge(other, [LIFE])
        assert refusal.value.code == REFUSED_REPEAT


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

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
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


def test_closed_ledger_says_so(ledger: Ledger, path: Path) -> None:
    other = Ledger.open(path)
    other.close()
    other.close()
    with pytest.raises(LedgerError, match="was closed"):
        other.charge(charge(), [LIFE])
