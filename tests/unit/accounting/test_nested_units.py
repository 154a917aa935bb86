"""A release about the client is a release about each of its examples and labels."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from flower_ldp.accounting.ledger import Ledger, Limit
from flower_ldp.accounting.ledger import rows as ledger_rows
from flower_ldp.clients import OwnerAuthorizer, Permit, ReleaseRequest
from flower_ldp.errors import BudgetExhausted, ConfigError
from flower_ldp.mechanisms import BoundedMean, CodebookEmbedding
from flower_ldp.privacy import PrivacyEvent, Unit, compose
from tests.fixtures import charge, context, new_ledger, parse_policy

MEAN, CODE = BoundedMean(8.0, 0.0, 1.0), CodebookEmbedding(1.0, 4)
LIMITS = [Limit(Unit.CLIENT, "life", 8.0), Limit(Unit.EXAMPLE, "life", 1.0)]


def test_two_replies_about_one_example_cost_it_both(ledger: Ledger) -> None:
    """The two laws multiply: the log-ratio between two values of one example is 9, not 1."""
    # The client's mean loss is moved from one end to the other by one example of two.
    mean = MEAN.log_prob(0, 0.0) - MEAN.log_prob(0, 1.0)
    code = CODE.log_prob([0], np.eye(4)[:1]) - CODE.log_prob([0], np.eye(4)[1:2])
    assert math.isclose(mean + code, 9.0)
    with pytest.raises(BudgetExhausted, match="per example"):
        ledger.charge(charge("mean", events=MEAN.events()), LIMITS)
    ledger.charge(charge("code", events=CODE.events()), LIMITS)
    assert ledger.totals("ward-7")[Unit.EXAMPLE].epsilon_text == "1"
    events = (*MEAN.events(), *CODE.events())
    spent = compose(events)
    assert [spent[unit].epsilon for unit in Unit] == [8.0, 9.0, 9.0]


def test_deltas_go_with_their_epsilons() -> None:
    events = (
        PrivacyEvent("gauss", 1.0, 1e-6),
        PrivacyEvent("dpsgd", 2.0, 1e-5, Unit.EXAMPLE),
        PrivacyEvent("labels", 4.0, 1e-4, Unit.LABEL),
    )
    spent = compose(events)
    assert (spent[Unit.LABEL].epsilon, spent[Unit.EXAMPLE].epsilon) == (7.0, 3.0)
    assert math.isclose(spent[Unit.LABEL].delta, 1.11e-4)
    assert math.isclose(spent[Unit.EXAMPLE].delta, 1.1e-5)


# What the owner declares to be made of what was paid for.

DECLARED = """
data_id: ward-7
ledger: spent.sqlite
mode: deployment
messages:
  train:
    bounded_mean: {epsilon: 8.0, post_processing: [example]}
    codebook_embedding: {epsilon: 1.0, unit: example, post_processing: [label]}
budgets:
  client: {life: {epsilon: 20.0}}
  example: {life: {epsilon: 1.0}}
  label: {life: {epsilon: 0.5}}
"""


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "policy.yaml").write_text(DECLARED)
    monkeypatch.setenv("FLOWER_LDP_POLICY", str(tmp_path / "policy.yaml"))
    new_ledger(tmp_path / "spent.sqlite")
    return tmp_path


def authorize(number: int, events: tuple[PrivacyEvent, ...]) -> Permit:
    request = ReleaseRequest(1, str(number), "train", events, "{}")
    return OwnerAuthorizer().authorize(request, context())


def test_what_is_declared_is_not_charged_to_finer_units_and_can_be_audited(owner: Path) -> None:
    authorize(1, CODE.events())
    authorize(2, MEAN.events())
    with Ledger.open(owner / "spent.sqlite") as ledger:
        ledger.verify()
        spent = {unit: amount.epsilon_text for unit, amount in ledger.totals("ward-7").items()}
        assert spent == {Unit.CLIENT: "8", Unit.EXAMPLE: "1"}
        assert [row["waived"] for row in ledger.export()] == ["label", "example label"]
        (label,) = (s for s in ledger.spending("ward-7") if s.unit is Unit.LABEL)
        assert (label.promised, label.waived) == (False, 2)


def test_a_message_gets_its_report_again_whatever_is_declared_since(owner: Path) -> None:
    authorize(1, MEAN.events()).keep(b"report", False)
    (owner / "policy.yaml").write_text(DECLARED.replace(", post_processing: [example]", ""))
    assert authorize(1, MEAN.events()).stored == b"report"
    with pytest.raises(BudgetExhausted, match="per example"):
        authorize(2, MEAN.events())


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("[example]}", "[client]}", "post_processing"),
        ("8.0, post", "8.0, unit: example, post", "post_processing"),
        ("8.0, post", "8.0, unit: label, post", "post_processing"),
        ("[example]}", "example}", "post_processing"),
        ("ward-7", "ward#7", "must have no '#'"),
    ],
)
def test_only_finer_units_can_be_declared_and_data_has_no_mark_of_parts(
    old: str, new: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_policy(DECLARED.replace(old, new))


def test_a_charge_waives_no_unit_of_its_own_or_coarser() -> None:
    code = CODE.events()
    for unit in (Unit.CLIENT, Unit.EXAMPLE):
        with pytest.raises(ValueError, match="must be units finer than example"):
            charge(events=code, waived={code[0].mechanism: (unit,)})


def test_ten_thousand_parts_are_not_looked_at_to_charge_one(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that a charge reads do not grow with the number of parts."""
    limits = [Limit(u, s, 9.0) for u in Unit for s in ("life", "run")]
    limits += [Limit(u, "window", 9.0, window_seconds=60.0) for u in Unit]
    code = CODE.events()
    reads: list[int] = []
    plain = ledger_rows.digest

    def counting(*fields: object, tail: bytes = b"") -> bytes:
        reads[-1] += 1
        return plain(*fields, tail=tail)

    monkeypatch.setattr(ledger_rows, "digest", counting)
    for part in range(60):
        reads.append(0)
        ledger.charge(charge(part, data_id=f"ward-7#one/{part}", events=code), limits)
    assert reads[40:] == [reads[40]] * 20
