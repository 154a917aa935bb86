"""Private training by a listed app: the sealed model leaves, paid for, and nothing else does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from flower_ldp.accounting.ledger import Entry, Ledger
from flower_ldp.clients import AccuracyRelease, DPSGDRelease, LdpMod, OwnerAuthorizer, Release
from flower_ldp.clients.dpsgd_charging import LAST
from flower_ldp.clients.session import CountSession, TrainingSession, current_session
from flower_ldp.mechanisms import TrainingPlan
from flower_ldp.node.flower_api import Channel
from flower_ldp.wire.training_plan import encode_model, plan_fields
from tests.fixtures import context_of, counted, message, record, wait_for_counts
from tests.unit.clients.world import App, replying
from tests.unit.node.test_guard import given, reply
from tests.unit.node.test_pinned_apps import APP, OTHER, Far, amend, refusal, site

PLAN = "{rounds: 2, steps: 3, rate: 1.0, noise: 2.1, clip: 1.0}"
ALLOWED = f"""train: {{dpsgd: {{epsilon: 8.0, delta: 1.0e-2, unit: example, plan: {PLAN}}}}},
  evaluate: {{example_mean: {{epsilon: 2.0, unit: example}}}}"""
BUDGETS = "example: {life: {epsilon: 20.0, delta: 0.5}}"
MODEL = {
    "w": np.zeros((2, 3), dtype=np.float32),
    "b": np.zeros(3, dtype=np.float64),
    "seen": np.array([5, -1], dtype=np.int64),
}
TRAINED = {**MODEL, "w": np.full((2, 3), 0.5, dtype=np.float32)}
OTHER_LEFT = "the app's reply is not what the ledger holds"


@dataclass
class Ward:
    """A guarded node with one listed app, and the far end of its connection."""

    folder: Path
    far: Far
    channel: Channel

    def ask(self, one: Message, app: App) -> Message:
        """Return what leaves when this app answers."""
        given(self.far, self.channel, one)
        assert self.far.sent == []
        reply(self.channel, app(one, context_of(self.folder)))
        wait_for_counts()
        return self.far.taken()

    def refusal(self, one: Message) -> str:
        """Return the code of a refusal, without a sentence for whoever reads the server's log."""
        return refusal(self.far, self.channel, one).split(": ")[0]

    def entries(self) -> list[Entry]:
        with Ledger.open(self.folder / "ledger.sqlite", read_only=True) as ledger:
            ledger.verify()
            return list(ledger.entries())

    def failures(self) -> int:
        return counted(self.folder).get("failed", 0)


def ward(
    tmp_path: Path,
    *,
    releases: str = "[dpsgd, example_mean]",
    gate: str = "reports",
    app: bytes = APP,
    plan: str = PLAN,
) -> Ward:
    """Return a node with a policy and, if there is none, an empty ledger."""
    far, channel = site(tmp_path, f" {{releases: {releases}}}", gate, "examples: 8", app)
    amend(tmp_path, "train: {signds: {epsilon: 2.0}}", ALLOWED.replace(PLAN, plan))
    amend(tmp_path, "client: {life: {epsilon: 60.0}}, label: {life: {epsilon: 60.0}}", BUDGETS)
    if plan == "none":
        amend(tmp_path, ", plan: none", "")
    return Ward(tmp_path, far, channel)


def asked(
    number: int = 1,
    kind: str = "train",
    arrays: Mapping[str, Any] = MODEL,
    **config: str | int | float,
) -> Message:
    fields = ConfigRecord({"server-round": number, **config})
    content = RecordDict({"arrays": record(arrays), "config": fields})
    one = message(content, kind=kind)
    one.metadata.__dict__["_message_id"] = one.object_id
    return one


def gated(release: Release | None = None) -> App:
    """Return an app with the gate in it."""
    gate = LdpMod(train=DPSGDRelease(), evaluate=release or AccuracyRelease(2.0))
    own = {"train": trains, "evaluate": counts}
    return lambda one, context: gate(one, context, own[one.metadata.message_type])


def trains(one: Message, _: Context) -> Message:
    """Do as the package's own training does: take the steps, hand the model over."""
    session = current_session(TrainingSession)
    session.begin()
    session.trained = TRAINED
    return Message(RecordDict(), reply_to=one)


def counts(one: Message, _: Context) -> Message:
    """Do as the package's own evaluation does."""
    current_session(CountSession).finish(4096)
    return Message(RecordDict(), reply_to=one)


raw = replying(
    RecordDict({"arrays": record(TRAINED), "metrics": MetricRecord({"num-examples": 8})})
)


def sealing(report: bytes, release: Release | None = None) -> App:
    """Return an app that charges as it should, and seals what it likes."""

    def app(one: Message, context: Context) -> Message:
        opened = (release or DPSGDRelease()).open(one.content)
        OwnerAuthorizer().authorize(opened.request(one.metadata), context).keep(report, False)
        return raw(one, context)

    return app


def killed(one: Message, context: Context) -> Message:
    """Charge, and be killed: what an executor answers for it has no content of the app's."""
    request = DPSGDRelease().open(one.content).request(one.metadata)
    OwnerAuthorizer().authorize(request, context).close()
    return Message(RecordDict(), reply_to=one)


def model(sent: Message) -> dict[str, Any]:
    """Return the model of an answer that is one and nothing else."""
    assert not sent.has_error(), sent.error
    held = {name: set(records) for name, records in sent.content.items()}
    assert held == {"arrays": set(MODEL), "metrics": {"num-examples"}}
    assert sent.content.metric_records["metrics"]["num-examples"] == 8
    found = {name: one.numpy() for name, one in sent.content.array_records["arrays"].items()}
    for name, one in MODEL.items():
        assert (found[name].dtype, found[name].shape) == (one.dtype, one.shape)
    assert np.array_equal(found["seen"], MODEL["seen"])
    return found


def is_trained(sent: Message) -> bool:
    return bool(np.array_equal(model(sent)["w"], TRAINED["w"]))


def test_a_listed_apps_rounds_leave(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = ward(tmp_path)
    for number in (1, 2):
        assert is_trained(node.ask(asked(number), gated()))
    plan, first, second = node.entries()
    assert [str(event.cost) for event in plan.events] == ["epsilon 8, delta 0.01"]
    assert (plan.data_id, plan.releases) == ("ward-7", 0)
    for one in (first, second):
        assert (one.events, one.sealed, one.releases) == ((), True, 1)
    assert node.failures() == 0
    assert OTHER_LEFT not in caplog.text
    # The plan has no further round, whatever the app does of its own.
    for number, app in ((3, gated()), (4, raw)):
        assert node.ask(asked(number), app).error.reason == "ldp:refused:budget"
    assert len(node.entries()) == 3


def test_a_listed_apps_evaluation_leaves_and_is_paid_for(tmp_path: Path) -> None:
    node = ward(tmp_path)
    sent = node.ask(asked(kind="evaluate"), gated())
    held = {name: set(records) for name, records in sent.content.items()}
    assert held == {"metrics": {"accuracy", "num-examples"}}
    (entry,) = node.entries()
    assert [str(event.cost) for event in entry.events] == ["epsilon 2"]
    assert entry.sealed


@pytest.mark.parametrize(
    ("how", "kinds", "reason"),
    [
        ({"app": OTHER}, ("train", "evaluate"), "ldp:refused:app"),
        ({"releases": "[signds, embedding_dp]"}, ("train", "evaluate"), "ldp:refused:app"),
        ({"releases": "[example_mean]"}, ("train",), "ldp:refused:app"),
        ({"releases": "[dpsgd]"}, ("evaluate",), "ldp:refused:app"),
        ({"gate": "privatize"}, ("train", "evaluate"), "ldp:refused:proposal"),
    ],
)
def test_any_other_app_is_refused_before_a_charge(
    tmp_path: Path, how: dict[str, Any], kinds: tuple[str, ...], reason: str
) -> None:
    node = ward(tmp_path, **how)
    for kind in kinds:
        assert node.refusal(asked(kind=kind)) == reason
    assert node.entries() == []


@pytest.mark.parametrize("app", [raw, killed], ids=["not charged", "killed after its charge"])
def test_an_app_that_seals_nothing_ends_its_plan(tmp_path: Path, app: App) -> None:
    node = ward(tmp_path)
    assert not is_trained(node.ask(asked(1), app))
    assert node.failures() == 1
    plan, *rounds = node.entries()
    assert [str(event.cost) for event in plan.events] == ["epsilon 8, delta 0.01"]
    assert sum(one.releases for one in rounds) == 2
    with Ledger.open(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        # With it no round leaves that is underway.
        assert ledger.has_report(rounds[0].data_id, LAST)
    assert node.ask(asked(2), gated()).error.reason == "ldp:refused:budget"


def test_an_evaluation_that_was_not_counted_is_answered_for(tmp_path: Path) -> None:
    node = ward(tmp_path)
    sent = node.ask(asked(kind="evaluate"), raw)
    assert set(sent.content) == {"metrics"}
    assert sent.content.metric_records["metrics"]["accuracy"] != 0.5
    assert [one.sealed for one in node.entries()] == [True]
    assert node.failures() == 1
    # With it the evaluations of the run end.
    assert node.ask(asked(2, kind="evaluate"), raw).error.reason == "ldp:refused:budget"
    assert len(node.entries()) == 1


@pytest.mark.parametrize(
    "report",
    [
        b"",
        b"data",
        encode_model(TRAINED, MODEL, 7),
        encode_model(TRAINED, MODEL, 8)[:-1],
        encode_model(TRAINED, MODEL, 8) + b"!",
        encode_model({**TRAINED, "seen": np.array([5, 7])}, MODEL, 8),
    ],
    ids=["empty", "short", "another weight", "cut", "longer", "another counter"],
)
def test_what_is_sealed_in_no_form_of_a_model_stays(tmp_path: Path, report: bytes) -> None:
    node = ward(tmp_path)
    assert not is_trained(node.ask(asked(1), sealing(report)))
    assert node.failures() == 1
    assert node.ask(asked(2), gated()).error.reason == "ldp:refused:budget"


@pytest.mark.parametrize("report", [b"", bytes(31), bytes(33), bytes(32)])
def test_what_is_sealed_in_no_form_of_a_count_stays(tmp_path: Path, report: bytes) -> None:
    node = ward(tmp_path)
    sent = node.ask(asked(kind="evaluate"), sealing(report, AccuracyRelease(2.0)))
    assert sent.content.metric_records["metrics"]["num-examples"] == 8
    assert node.failures() == 1


def test_what_the_app_replies_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = ward(tmp_path)

    def exchanging(one: Message, context: Context) -> Message:
        gated()(one, context)
        names = {"arrays": {**TRAINED, "w": TRAINED["w"] + 1}, "more": {"x": np.ones(3)}}
        content = {name: record(arrays) for name, arrays in names.items()}
        return Message(RecordDict({**content, "m": MetricRecord({"age": 42})}), reply_to=one)

    assert is_trained(node.ask(asked(), exchanging))
    assert OTHER_LEFT in caplog.text


def test_a_round_that_is_asked_for_again_has_the_model_that_left(tmp_path: Path) -> None:
    node = ward(tmp_path)
    one = asked()
    assert is_trained(node.ask(one, gated()))
    assert is_trained(node.ask(one, raw))
    # Of a model that was exchanged on the disk nothing leaves.
    (kept,) = (tmp_path / "ledger.sqlite.models").iterdir()
    kept.write_bytes(encode_model(MODEL, MODEL, 8))
    assert node.ask(one, raw).error.reason == "ldp:refused:ledger"
    kept.unlink()
    assert node.ask(one, raw).error.reason == "ldp:refused:repeat"
    assert len(node.entries()) == 2


@pytest.mark.parametrize(
    "numbers",
    [{"noise": 0.1}, {"rounds": 3}, {"epsilon": 9.0}, {"delta": 0.2}, {"epsilon": 4.0}],
)
@pytest.mark.parametrize("plan", [PLAN, "none"], ids=["own plan", "any plan"])
def test_the_servers_numbers_are_judged(
    tmp_path: Path, numbers: dict[str, float], plan: str
) -> None:
    node = ward(tmp_path, plan=plan)
    wanted = replace(TrainingPlan(2, 3, 1.0, 2.1, 8.0, 1e-2, clip=1.0), **numbers)
    for app in (gated(), raw):
        sent = node.ask(asked(**plan_fields(wanted)), app)
        assert sent.error.reason == "ldp:refused:policy"
    assert node.entries() == []


@pytest.mark.parametrize("value", [np.nan, np.inf, np.finfo(np.float32).max])
def test_weights_of_the_servers_get_noise_and_no_error(tmp_path: Path, value: float) -> None:
    sent_model = {**MODEL, "w": np.full((2, 3), value, dtype=np.float32)}
    model(ward(tmp_path).ask(asked(arrays=sent_model), raw))


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"a": record(MODEL), "b": record(MODEL)}),
        RecordDict({"a": record({"w": np.array([1])})}),
        RecordDict({"a": record(MODEL), "c": ConfigRecord({"ldp-rounds": 3})}),
        RecordDict({"a": record(MODEL), "ldp.proposal": ConfigRecord({"mechanism": "dpsgd"})}),
        RecordDict({"a": record(MODEL), "ldp.proposal": MetricRecord({"mechanism": 1})}),
    ],
)
def test_a_message_that_asks_for_no_round_is_refused(tmp_path: Path, content: RecordDict) -> None:
    node = ward(tmp_path)
    assert node.refusal(message(content)) == "ldp:refused:proposal"
    assert node.entries() == []


def test_an_evaluation_at_another_price_than_the_policys_is_refused(tmp_path: Path) -> None:
    node = ward(tmp_path)
    sent = node.ask(asked(kind="evaluate"), gated(AccuracyRelease(1.0)))
    assert sent.error.reason == "ldp:refused:repeat"


WITH_EVALUATIONS = (
    "{rounds: 2, steps: 3, rate: 1.0, noise: 9.0, clip: 1.0, evaluations: {number: 2, epsilon: 2}}"
)


def test_a_plan_pays_for_its_evaluations_on_a_guarded_node(tmp_path: Path) -> None:
    node = ward(tmp_path, plan=WITH_EVALUATIONS)
    assert is_trained(node.ask(asked(1), gated()))
    for number, app in ((2, gated()), (3, raw)):  # of one that charges nothing, noise alone
        assert not node.ask(asked(number, kind="evaluate"), app).has_error()
    plan, *free = node.entries()
    assert [str(event.cost) for event in plan.events] == ["epsilon 8, delta 0.01"]
    assert [(one.events, one.sealed) for one in free] == [((), True)] * 3
    assert node.ask(asked(4, kind="evaluate"), gated()).error.reason == "ldp:refused:budget"


def test_a_policy_without_a_price_of_evaluations_answers_none(tmp_path: Path) -> None:
    node = ward(tmp_path)
    amend(tmp_path, "example_mean: {epsilon: 2.0, unit: example}", "")
    assert node.refusal(asked(kind="evaluate")) == "ldp:refused:policy"
