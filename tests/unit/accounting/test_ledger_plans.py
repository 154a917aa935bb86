"""Plans that are charged as a whole, and their rounds, in the ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flower_ldp.accounting.ledger import Charge, Ledger, Limit, NumberLimit
from flower_ldp.accounting.ledger.limits import rounds_part
from flower_ldp.errors import BudgetExhausted, RefusalError
from flower_ldp.privacy import PrivacyEvent, Unit

LIMITS = [Limit(Unit.EXAMPLE, "life", 2.0, 1e-4)]
EVENT = PrivacyEvent("dpsgd", 1.0, 1e-5, Unit.EXAMPLE)
PLAN = Charge("ward", 7, "plan p", "train", b"p", (EVENT,), releases=0)
ROUND = Charge("ward#" + rounds_part("row", "p"), 7, "m-1", "train", b"r", (), rounds=3)


def take(ledger: Ledger, message: str, one: Charge = ROUND, plan: Charge = PLAN) -> None:
    ledger.charge(replace(one, message_id=message), LIMITS, basis=plan)


def test_a_plan_is_paid_for_once_and_has_so_many_rounds(ledger: Ledger) -> None:
    for message in ("m-1", "m-2", "m-3"):
        take(ledger, message)
    with pytest.raises(BudgetExhausted, match="all 3 rounds"):
        take(ledger, "m-4")
    assert str(ledger.totals("ward")[Unit.EXAMPLE]) == "epsilon 1, delta 0.00001"
    assert ledger.number("ward", NumberLimit(9)) == 3


def test_rounds_and_plan_are_charged_together_or_not_at_all(ledger: Ledger) -> None:
    dear = replace(PLAN, events=(replace(EVENT, epsilon=9.0),))
    with pytest.raises(BudgetExhausted):
        take(ledger, "m-1", plan=dear)
    assert list(ledger.entries()) == []


def test_another_plan_under_the_name_is_refused(ledger: Ledger) -> None:
    take(ledger, "m-1")
    with pytest.raises(RefusalError, match="another request"):
        take(ledger, "m-2", plan=replace(PLAN, fingerprint=b"q"))


def test_rounds_count_towards_the_largest_number(ledger: Ledger) -> None:
    take(ledger, "m-1")
    second = replace(ROUND, message_id="m-2")
    with pytest.raises(BudgetExhausted, match="1 releases were made"):
        ledger.charge(second, LIMITS, basis=PLAN, numbers=[NumberLimit(1)])


def test_a_round_without_its_plan_is_no_charge(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="with the charge of its plan"):
        ledger.charge(ROUND, LIMITS)


@pytest.mark.parametrize("changes", [{"events": ()}, {"rounds": 3}, {"rounds": -1, "events": ()}])
def test_only_a_round_has_no_events(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        replace(PLAN, **changes)  # type: ignore[arg-type]


def test_a_plan_that_ends_uses_its_other_rounds_up_once(ledger: Ledger) -> None:
    take(ledger, "m-1")
    for _ in range(2):
        ledger.end_plan(replace(ROUND, message_id="ended m-1"))
    with pytest.raises(BudgetExhausted):
        take(ledger, "m-2")
    assert [entry.releases for entry in ledger.entries()] == [0, 1, 2]


def test_a_report_is_found_by_how_it_begins_among_those_of_its_plan(ledger: Ledger) -> None:
    receipt = ledger.charge(ROUND, LIMITS, basis=PLAN)
    assert not ledger.has_report(ROUND.data_id, b"")
    ledger.seal(receipt, b"last: a model")
    assert ledger.has_report(ROUND.data_id, b"last:")
    assert not ledger.has_report(ROUND.data_id, b"model")
    assert not ledger.has_report("ward", b"last:")


def test_the_first_charge_per_patient_leaves_a_mark(ledger: Ledger) -> None:
    own = {"example": "patient"}
    patients = replace(ROUND, data_id="ward#" + rounds_part("patient", "p"))
    take(ledger, "m-1", patients, replace(PLAN, **own))
    take(ledger, "m-2", patients, replace(PLAN, **own))
    marks = [entry for entry in ledger.entries() if entry.data_id.endswith("/mark")]
    assert [(mark.releases, mark.events) for mark in marks] == [(0, ())]
    event = PrivacyEvent("example_mean", 0.1, unit=Unit.EXAMPLE)
    count = Charge("ward", 7, "e-1", "evaluate", b"e", (event,))
    with pytest.raises(RefusalError) as caught:
        ledger.charge(count, LIMITS)
    assert caught.value.code == "ldp:refused:policy"
    ledger.charge(replace(count, **own), LIMITS)
    # What promises nothing per example may share the account, and so may what is about all.
    label = replace(count, message_id="l", events=(PrivacyEvent("rr", 0.1, unit=Unit.LABEL),))
    ledger.charge(label, [*LIMITS, Limit(Unit.LABEL, "life", 9.0, 0.1)])
    client = replace(count, message_id="c", events=(PrivacyEvent("signds", 0.1),))
    ledger.charge(client, [*LIMITS, Limit(Unit.CLIENT, "life", 9.0)])


def test_an_account_of_rows_takes_no_charge_per_patient(ledger: Ledger) -> None:
    take(ledger, "m-1")
    patients = replace(ROUND, data_id="ward#" + rounds_part("patient", "q"), message_id="m-2")
    other = replace(PLAN, message_id="plan q", example="patient")
    with pytest.raises(RefusalError) as caught:
        ledger.charge(patients, LIMITS, basis=other)
    assert caught.value.code == "ldp:refused:policy"


@pytest.mark.parametrize("example", ["row", "patient"])
def test_rounds_and_marks_are_no_accounts_to_look_at(ledger: Ledger, example: str) -> None:
    """What the ledger keeps for itself was charged nothing, and is nobody's data."""
    one = replace(ROUND, data_id="ward#" + rounds_part(example, "p"))
    take(ledger, "m-1", one, replace(PLAN, example=example))
    part = replace(PLAN, data_id="ward#cut/1", message_id="part", releases=1, example=example)
    ledger.charge(part, LIMITS)
    assert ledger.data_ids() == ["ward", "ward#cut/1"]
    assert ledger.accounts() == {"ward": 1}
