"""Releases of no run count in each run's limits; what they rest on is paid for once, with one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flower_ldp.accounting.ledger import Charge, Ledger, Limit
from flower_ldp.accounting.ledger.charges import NO_RUN
from flower_ldp.clients import OwnerAuthorizer, ReleaseRequest, private_labels
from flower_ldp.clients.permit import PriorCharge
from flower_ldp.errors import BudgetExhausted, RefusalError
from flower_ldp.mechanisms import KaryResponse
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.fixtures import context, policy_text

RELEASES = """
  train: &all
    signds: {epsilon: 8.0}
    kary_response: {epsilon: 8.0, unit: label}
    codes: {epsilon: 8.0, unit: example}
    bottom_training: {epsilon: 2.0, delta: 1.0e-5, unit: example}
  evaluate: *all
"""
LABEL = "label: {life: {epsilon: 100.0, delta: 1.0e-5}, run: {epsilon: 8.0, delta: 1.0e-5}}"


def policy(life: float = 100.0) -> str:
    example = f"example: {{life: {{epsilon: {life}, delta: 1.0e-5}}}}"
    return policy_text(
        RELEASES, budgets=f"client: {{life: {{epsilon: 100.0}}}}, {example}, {LABEL}"
    )


POLICY = policy()
CODES = PrivacyEvent("codes", 4.0, unit=Unit.EXAMPLE)
TRAINING = PriorCharge(
    (PrivacyEvent("bottom_training", 2.0, 1e-5, Unit.EXAMPLE),), '{"bottom":"b"}'
)


@pytest.fixture
def ledger(folder: Path) -> Iterator[Ledger]:
    with Ledger.open(folder / "ledger.sqlite") as found:
        yield found


def authorize(
    *events: PrivacyEvent,
    run: int = 7,
    part: str = "",
    memo: str = "",
    basis: PriorCharge | None = None,
    kind: str = "train",
    message: str = "m",
) -> bytes | None:
    request = ReleaseRequest(run, message, kind, events, "{}", part, memo, basis)
    permit = OwnerAuthorizer().authorize(request, dataclasses.replace(context(), run_id=run))
    if permit.stored is None:
        permit.keep(b"report", False)
    return permit.stored


def test_a_run_cannot_get_more_by_reports_that_belong_to_none(ledger: Ledger) -> None:
    """An update, labels and kept embeddings of one run tell about one label together."""
    authorize(PrivacyEvent("signds", 3.0))
    response = KaryResponse(4.0, 10, unit=Unit.LABEL)
    private_labels(dataclasses.replace(context(), run_id=7), np.arange(10), mechanism=response)
    with pytest.raises(BudgetExhausted, match=r"epsilon 7 was spent and epsilon 4"):
        authorize(CODES, part="layout/train/0", memo="q")
    with pytest.raises(BudgetExhausted, match="per label and run"):
        private_labels(
            dataclasses.replace(context(), run_id=7), np.arange(9), mechanism=response, name="other"
        )
    with pytest.raises(BudgetExhausted, match="per label and run"):
        authorize(PrivacyEvent("signds", 2.0), message="n")
    # Another run has not asked for the update, and answers with the same labels.
    assert authorize(CODES, run=8, part="layout/train/0", memo="q") is None
    with pytest.raises(BudgetExhausted, match="epsilon 8 was spent"):
        authorize(PrivacyEvent("signds", 1.0), run=8)
    limit = Limit(Unit.LABEL, "run", 8.0, 1e-5)
    spent = [ledger.spent("ward-7", run, limit).epsilon_text for run in (NO_RUN, 7, 8)]
    assert spent == ["8", "11", "8"]  # run 7 had what run 8 drew only after its own


def test_a_run_is_told_of_releases_in_no_run_only() -> None:
    with pytest.raises(ValueError, match="during is for releases in run 0, got run 3"):
        Charge("d", 3, "m", "train", b"x", (CODES,), during=4)
    with pytest.raises(ValueError, match=r"(run_id|during) must be"):
        Charge("d", NO_RUN, "m", "train", b"x", (CODES,), during=-1)


def test_training_and_prediction_pay_for_a_bottom_once(ledger: Ledger) -> None:
    for kind, part in (("train", "l/train/0"), ("evaluate", "l/test/0"), ("train", "l/train/1")):
        assert authorize(CODES, part=part, memo=part, basis=TRAINING, kind=kind) is None
    # The kept report of a block answers both types of message too.
    assert authorize(CODES, part="l/train/0", memo="l/train/0", basis=TRAINING, kind="evaluate")
    assert ledger.totals("ward-7")[Unit.EXAMPLE].epsilon_text == "6"
    assert ledger.totals("ward-7")[Unit.EXAMPLE].delta_text == "0.00001"
    ledger.verify()


def test_a_bottom_is_no_release_and_pays_for_no_answer(folder: Path, ledger: Ledger) -> None:
    path = folder / "policy.yaml"
    path.write_text(path.read_text() + "releases: {life: 2}\nrepeats: 1\n")
    cheap = PrivacyEvent("codes", 1e-9, unit=Unit.EXAMPLE)
    with pytest.raises(RefusalError, match=r"at least 0\.001 per example"):
        authorize(cheap, part="l/train/0", memo="cheap", basis=TRAINING)
    for block in ("l/train/0", "l/train/1"):
        assert authorize(CODES, part=block, memo=block, basis=TRAINING) is None
    with pytest.raises(BudgetExhausted, match="2 releases per life"):
        authorize(CODES, part="l/train/2", memo="l/train/2", basis=TRAINING)
    assert authorize(CODES, part="l/train/0", memo="l/train/0", basis=TRAINING)
    with pytest.raises(BudgetExhausted, match="again"):
        authorize(CODES, part="l/train/1", memo="l/train/1", basis=TRAINING)
    assert ledger.counts("ward-7")["again"] == 1


def test_a_block_that_does_not_fit_leaves_its_bottom_unpaid(folder: Path, ledger: Ledger) -> None:
    """Both are decided by public facts: a refusal of the one must not cost the other."""
    (folder / "policy.yaml").write_text(policy(5.0))
    with pytest.raises(BudgetExhausted, match=r"epsilon 2, delta 0.00001 was spent and epsilon 4"):
        authorize(CODES, part="l/train/0", memo="q", basis=TRAINING)
    assert ledger.totals("ward-7") == {}
    assert ledger.mark().entries == 0
    (folder / "policy.yaml").write_text(policy(6.0))
    assert authorize(CODES, part="l/train/0", memo="q", basis=TRAINING) is None


def test_a_draw_that_was_lost_does_not_pay_for_the_bottom_again(ledger: Ledger) -> None:
    one = PrivacyEvent("codes", 1.0, unit=Unit.EXAMPLE)
    request = ReleaseRequest(7, "m", "train", (one,), "{}", "l/train/0", "q", TRAINING)
    for _ in range(3):  # charged, and killed before the report was sealed
        OwnerAuthorizer().authorize(request, context()).close()
    assert ledger.totals("ward-7")[Unit.EXAMPLE].epsilon_text == "5"  # not 9
    found = [entry.events[0].mechanism for entry in ledger.entries()]
    assert found.count("bottom_training") == 1


def test_another_cost_under_the_terms_of_a_bottom_is_refused(ledger: Ledger) -> None:
    authorize(CODES, part="l/train/0", memo="q", basis=TRAINING)
    dearer = PriorCharge(
        (PrivacyEvent("bottom_training", 1.5, 1e-5, Unit.EXAMPLE),), TRAINING.parameters
    )
    with pytest.raises(RefusalError, match="no report was sealed"):
        authorize(CODES, part="l/train/1", memo="r", basis=dearer)
    assert ledger.totals("ward-7")[Unit.EXAMPLE].epsilon_text == "6"
