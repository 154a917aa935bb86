"""Evaluations that a plan pays for: charged with it, numbered, and nothing else is free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import AccuracyRelease, DPSGDRelease, LdpMod, OwnerAuthorizer
from flower_ldp.errors import BudgetExhausted, RefusalError
from flower_ldp.mechanisms import TrainingPlan
from flower_ldp.training import private_accuracy
from flower_ldp.wire.training_plan import plan_fields, read_plan
from tests.fixtures import message, record
from tests.unit.training.gated import MODEL, Site, raiser

PLAN = "{rounds: 2, steps: 3, rate: 1.0, noise: 4.0, clip: 1.0, evaluations: %s}"
#: Another mechanism's allowance: evaluations that the plan does not pay for.
ALLOWED = "  evaluate:\n    example_mean: {epsilon: 2.0, unit: example}\nbudgets:"
ROWS = [(torch.tensor([float(i), 1.0]), torch.tensor(0)) for i in range(8)]
fails = raiser(OSError("no such file"))


class EvaluatedSite(Site):
    """A site whose plan pays for two evaluations of at most 0.5."""

    epsilon = 0.5

    def __init__(self, folder: Path, evaluations: str = "{number: 2, epsilon: 0.5}") -> None:
        super().__init__(folder, plan=PLAN % evaluations)
        path = folder / "policy.yaml"
        path.write_text(path.read_text().replace("budgets:", ALLOWED))

    def app(self, release: DPSGDRelease | None = None, task: Any = None) -> ClientApp:
        gate = LdpMod(train=release or DPSGDRelease(), evaluate=AccuracyRelease(self.epsilon))
        app = ClientApp(mods=[gate])
        app.train()(self.train)
        app.evaluate()(task or self.count)
        return app

    def count(self, sent: Message, given: Context) -> Message:
        like = (torch.zeros(2), torch.tensor(0))
        right: Any = lambda model, row: model(row[0]) > 0  # noqa: E731
        found = private_accuracy(given, nn.Linear(2, 1), ROWS, like=like, right=right)
        return Message(found, reply_to=sent)

    def evaluated(self, name: str, task: Callable[..., Message] | None = None) -> str:
        """Evaluate; return "answered", or the refusal's code."""
        content = RecordDict({"arrays": record(MODEL), "config": ConfigRecord({})})
        sent = message(content, kind="evaluate", message_id=name)
        reply = self.app(task=task)(sent, self.context)
        return reply.error.reason if reply.has_error() else "answered"

    def spent(self) -> str:
        with Ledger.open(self.folder / "ledger.sqlite", read_only=True) as ledger:
            ledger.verify()
            return ", ".join(str(amount) for amount in ledger.totals("ward").values())


@pytest.fixture
def site(tmp_path: Path) -> EvaluatedSite:
    return EvaluatedSite(tmp_path)


WHOLE = "epsilon 8, delta 0.01, epsilon 8, delta 0.01"  # per example and label


def test_evaluations_of_a_plan_cost_nothing_more_and_are_numbered(site: EvaluatedSite) -> None:
    assert not site.ask("m-1").has_error()
    assert [site.evaluated(name) for name in "abc"] == [
        "answered",
        "answered",
        "ldp:refused:budget",
    ]
    assert site.evaluated("a") == "answered"  # the stored report, again
    assert not site.ask("m-2").has_error()
    assert site.spent() == WHOLE


def test_the_whole_is_charged_though_nothing_is_asked(site: EvaluatedSite) -> None:
    site.ask("m-1")
    assert site.spent() == WHOLE


def test_what_the_plan_does_not_cover_is_charged_by_itself(site: EvaluatedSite) -> None:
    assert site.evaluated("before") == "answered"
    assert site.spent() == "epsilon 0.5, epsilon 0.5"
    site.ask("m-1")
    assert site.evaluated("before") == "answered"  # charged before the plan, and not again
    site.epsilon = 0.75
    assert site.evaluated("larger") == "answered"
    assert site.spent() == WHOLE.replace("8", "9.25")


def test_a_plan_with_a_name_pays_for_none(site: EvaluatedSite) -> None:
    own = TrainingPlan(2, 3, 1.0, 4.0, 8.0, 1e-2, "second", 2, 0.5, clip=1.0)
    assert not site.ask("m-1", config=plan_fields(own)).has_error()
    assert site.evaluated("a") == "answered"
    assert site.spent() == WHOLE.replace("8", "8.5")


def test_too_little_noise_for_the_whole_is_refused(tmp_path: Path) -> None:
    site = EvaluatedSite(tmp_path, "{number: 900, epsilon: 0.5}")
    assert site.ask("m-1").error.reason == "ldp:refused:policy"
    assert site.entries() == []


def test_a_plan_that_is_refused_now_pays_for_no_evaluation(site: EvaluatedSite) -> None:
    site.ask("m-1")
    path = site.folder / "policy.yaml"
    path.write_text(path.read_text().replace("noise: 4.0", "noise: 0.1"))
    assert site.evaluated("a") == "answered"
    assert site.spent() == WHOLE.replace("8", "8.5")


def test_only_the_owner_sets_evaluations(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    site = EvaluatedSite(tmp_path)
    line = next(line for line in path.read_text().splitlines(keepends=True) if "plan:" in line)
    path.write_text(path.read_text().replace(line, ""))
    own = TrainingPlan(2, 3, 1.0, 4.0, 8.0, 1e-2, evaluations=2, evaluation_epsilon=0.5, clip=1.0)
    assert site.ask("m-1", config=plan_fields(own)).error.reason == "ldp:refused:policy"


def test_a_failure_of_the_whole_ends_evaluations_whatever_pays(site: EvaluatedSite) -> None:
    site.ask("m-1")
    assert site.evaluated("a", fails) == "answered"  # noise alone
    assert site.evaluated("b") == "ldp:refused:budget"
    site.epsilon = 0.75
    assert site.evaluated("larger") == "ldp:refused:budget"


@pytest.mark.parametrize(("first", "second"), [(0.5, 0.5), (0.5, 0.75), (0.75, 0.5)])
def test_of_two_underway_none_leaves_after_a_failure(
    first: float, second: float, site: EvaluatedSite
) -> None:
    site.ask("m-1")
    permits = []
    for name, epsilon in (("a", first), ("b", second)):
        release = AccuracyRelease(epsilon).open(RecordDict({"arrays": record(MODEL)}))
        sent = message(RecordDict(), kind="evaluate", message_id=name)
        permits.append(OwnerAuthorizer().authorize(release.request(sent.metadata), site.context))
    permits[0].keep(b"failed", True)
    with pytest.raises(BudgetExhausted):
        permits[1].keep(b"report", False)
    for permit in permits:
        permit.close()


def test_a_charge_without_a_report_is_completed_where_it_was_made(
    site: EvaluatedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.ask("m-1")
    release = AccuracyRelease(0.5).open(RecordDict({"arrays": record(MODEL)}))
    sent = message(RecordDict(), kind="evaluate", message_id="a")
    request, owner = release.request(sent.metadata), OwnerAuthorizer()
    owner.authorize(request, site.context).close()
    with pytest.raises(RefusalError, match="no report was sealed"):
        owner.authorize(request, site.context)
    owner.resume(request, site.context).keep(b"neutral", False)
    assert owner.authorize(request, site.context).stored == b"neutral"
    with pytest.raises(RefusalError, match="is not charged"):
        owner.resume(replace(request, message_id="b"), site.context)
    assert site.spent() == WHOLE


def test_a_plan_travels_with_its_evaluations() -> None:
    plan = TrainingPlan(2, 3, 1.0, 4.0, 8.0, 1e-2, "x", 2, 0.5, clip=1.0)
    fields = plan_fields(plan)
    assert read_plan(fields) == plan
    assert (fields["ldp-evaluations"], fields["ldp-evaluation-epsilon"]) == (2, 0.5)
    del fields["ldp-evaluation-epsilon"]
    with pytest.raises(ValueError, match="missing or unknown fields of a plan"):
        read_plan(fields)
