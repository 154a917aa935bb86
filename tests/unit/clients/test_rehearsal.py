"""The rehearsal: a bug shows on public data, in words, before anything is charged."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from flower_ldp.clients import LdpMod, Rehearsal, SignDSRelease
from flower_ldp.clients.rehearsal import MARK
from flower_ldp.mechanisms import SignDS
from flower_ldp.refusals import NO_PROPOSAL, REFUSED_REHEARSAL
from flower_ldp.strategies import FixedStep, RunStopped, SignDSStrategy
from flower_ldp.wire.proposal import PROPOSAL_KEY, REPORT_KEY
from tests.fixtures import (
    context,
    error_reply,
    message,
    not_called,
    payload,
    record,
    signds_proposal,
)
from tests.unit.clients.world import App, Watching, asking, raising, replying, training

CANARY = "canary-51d0"
MODEL = {"w": np.zeros(400, dtype=np.float32)}
SELECTION = SignDS(8.0, 0.2)
_runs = itertools.count(10_000)


trained = training({"w": np.linspace(-1, 1, 400, dtype=np.float32)})


def asked(run: int | None = None, kind: str = "train") -> Message:
    sent = message(asking(signds_proposal(SELECTION).to_fields(), MODEL), kind=kind)
    sent.metadata.__dict__["_run_id"] = next(_runs) if run is None else run
    return sent


def gate(authorizer: Any = None, **rehearsal: Any) -> LdpMod:
    apps = Rehearsal(**rehearsal)
    return LdpMod(train=SignDSRelease(), rehearsal=apps, authorizer=authorizer or Watching())


class Unspeakable(Exception):  # noqa: N818
    """Fails when it is asked what it says."""

    def __str__(self) -> str:
        raise SystemExit("no")


@pytest.mark.parametrize(
    ("app", "text"),
    [
        (raising(ValueError("Expected 64 channels, got 3")), "ValueError: Expected 64 channels"),
        (raising(SystemExit(3)), "SystemExit: 3"),
        (raising(GeneratorExit()), "GeneratorExit"),
        (raising(Unspeakable()), "Unspeakable: without a text"),
        (raising(ImportError("No module named 'timm'")), "No module named 'timm'"),
        (replying(RecordDict()), "expected one ArrayRecord, found 0"),
        (replying(RecordDict({"a": record({"v": MODEL["w"]})})), "no model like the one sent"),
        (replying(RecordDict({"a": record({"w": MODEL["w"][:9]})})), "no model like the one sent"),
        (replying(RecordDict({"a": record({"w": MODEL["w"] * np.nan})})), "400 NaN and 0 infinite"),
        (lambda message, context: Message(Error(5, "no GPU"), reply_to=message), "no GPU"),
        (lambda message, context: None, "answered with a NoneType, not a message"),
    ],
)
def test_what_fails_in_a_rehearsal_is_told_and_costs_nothing(app: Any, text: str) -> None:
    authorizer = Watching()
    reply = gate(authorizer, train=app)(asked(), context(), not_called)
    assert reply.has_error()
    assert reply.error.reason.startswith(f"{REFUSED_REHEARSAL}: ")
    assert text in reply.error.reason
    assert (authorizer.requests, authorizer.acknowledged) == ([], ["train"])


def test_an_app_that_passes_is_rehearsed_once_and_then_charged() -> None:
    calls: list[str] = []

    def noting(name: str) -> App:
        def app(sent: Message, given: Context) -> Message:
            calls.append(name)
            return trained(sent, given)

        return app

    rehearsed, app, authorizer, run = noting("rehearsal"), noting("app"), Watching(), next(_runs)
    for own in (context(), context()):  # two clients of one process
        for _ in range(2):
            payload(gate(authorizer, train=rehearsed, evaluate=not_called)(asked(run), own, app))
    assert calls == ["rehearsal", *["app"] * 4]
    payload(gate(authorizer, train=rehearsed)(asked(), context(), app))
    payload(gate(authorizer, evaluate=not_called)(asked(), context(), app))
    assert calls[5:] == ["rehearsal", "app", "app"]
    assert (len(authorizer.requests), authorizer.acknowledged) == (6, [])


def test_a_new_process_finds_the_mark_in_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    run, own = next(_runs), context()
    gate(train=trained)(asked(run), own, trained)
    monkeypatch.setattr("flower_ldp.clients.rehearsal._held", type({})())
    reply = gate(train=not_called)(asked(run), own, trained)
    payload(reply)
    # and what an app makes of the mark only spares or repeats a rehearsal
    for mark in (ConfigRecord({"train": 1.5}), ArrayRecord(), ConfigRecord({"train": "0"})):
        own.state["ldp.rehearsal"] = mark
        reply = gate(train=trained)(asked(run), own, trained)
        payload(reply)


def test_a_failure_is_found_once_and_told_to_every_client() -> None:
    calls = []

    def failing(message: Message, context: Context) -> Message:
        calls.append(1)
        raise ValueError("a bug")

    run = next(_runs)
    replies = [gate(train=failing)(asked(run), context(), not_called) for _ in range(3)]
    assert {reply.error.reason for reply in replies} == {f"{REFUSED_REHEARSAL}: ValueError: a bug"}
    assert len(calls) == 1


def test_a_rehearsal_sees_nothing_of_the_client() -> None:
    own = context()
    own.node_config["data"] = CANARY
    own.state["kept"] = ConfigRecord({"secret": CANARY})
    own.run_config["batch-size"] = 32
    sent = asked()
    seen: dict[str, Any] = {}

    def prying(message: Message, context: Context) -> Message:
        seen["context"] = repr(vars(context))
        seen["batch"] = context.run_config["batch-size"]
        seen["marked"] = dict(context.node_config) == {MARK: True}
        seen["identity"] = context.node_id
        seen["proposal"] = PROPOSAL_KEY in message.content
        context.node_config["ldp-policy"] = "mine"
        context.state["left"] = ConfigRecord({"x": 1})
        context.run_config["batch-size"] = 1
        message.content["arrays"] = record({"w": MODEL["w"] + 9})
        message.metadata.group_id = CANARY
        return Message(RecordDict({"a": record(MODEL)}), reply_to=message)

    reply = gate(train=prying)(sent, own, trained)
    payload(reply)
    assert CANARY not in seen.pop("context")
    assert seen == {"batch": 32, "marked": True, "identity": 0, "proposal": False}
    assert reply.metadata.group_id == "1"
    assert own.run_config["batch-size"] == 32
    assert "ldp-policy" not in own.node_config
    assert "left" not in own.state
    assert PROPOSAL_KEY in sent.content
    np.testing.assert_array_equal(sent.content["arrays"]["w"].numpy(), MODEL["w"])


def test_what_an_app_wrote_into_its_configuration_is_not_found_by_a_later_rehearsal() -> None:
    own, run = context(), next(_runs)
    own.run_config["classes"] = 10

    def app(message: Message, context: Context) -> Message:
        context.run_config["classes"] = CANARY  # as one that counts the labels it finds
        return trained(message, context)

    def rehearsed(message: Message, context: Context) -> Message:
        raise ValueError(f"{context.run_config['classes']} classes")

    mod = LdpMod(
        train=SignDSRelease(),
        evaluate=SignDSRelease(),
        rehearsal=Rehearsal(evaluate=rehearsed),
        authorizer=Watching(),
    )
    assert list(mod(asked(run), own, app).content) == [REPORT_KEY]
    reason = mod(asked(run, "evaluate"), own, not_called).error.reason
    assert reason == f"{REFUSED_REHEARSAL}: ValueError: 10 classes"


def test_without_a_policy_a_rehearsal_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWER_LDP_POLICY", raising=False)
    mod = LdpMod(train=SignDSRelease(), rehearsal=Rehearsal(train=raising(ValueError("a bug"))))
    assert mod(asked(), context(), not_called).error.reason == "ldp:refused:policy"


def test_the_text_is_one_line_that_is_cut() -> None:
    huge = raising(ValueError("\x1b[31m\n" + "x" * 10**6))
    reason = gate(train=huge)(asked(), context(), not_called).error.reason
    assert len(reason) < 600
    assert reason.isprintable()


def test_a_proposal_that_is_refused_is_not_rehearsed() -> None:
    sent = asked()
    del sent.content[PROPOSAL_KEY]
    reply = gate(train=not_called)(sent, context(), not_called)
    assert reply.error.reason == NO_PROPOSAL


def test_an_interrupt_still_stops_the_client() -> None:
    with pytest.raises(KeyboardInterrupt):
        gate(train=raising(KeyboardInterrupt()))(asked(), context(), not_called)


def test_what_is_no_rehearsal_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"rehearsal must be as Rehearsal\(train"):
        LdpMod(train=SignDSRelease(), rehearsal=trained)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="train of a rehearsal must be a function"):
        Rehearsal(train="training.train")  # type: ignore[arg-type]


# On the server.


class Nodes:
    def get_node_ids(self) -> list[int]:
        return [100, 101, 102]


def configured(monkeypatch: pytest.MonkeyPatch) -> SignDSStrategy:
    def make(self: FedAvg, content: RecordDict, nodes: list[int], kind: str) -> list[Message]:
        return [message(content, node=node, kind=kind) for node in nodes]

    monkeypatch.setattr(FedAvg, "_construct_messages", make)
    strategy = SignDSStrategy(SELECTION, FixedStep(0.5))
    list(strategy.configure_train(1, record(MODEL), ConfigRecord(), Nodes()))  # type: ignore[arg-type]
    return strategy


def test_the_server_stops_the_run_and_says_what_the_app_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = configured(monkeypatch)
    reason = f"{REFUSED_REHEARSAL}: ValueError: Expected 64 channels\n\x1b, got 3" + "x" * 10_000
    with (
        caplog.at_level(logging.WARNING, logger="flower_ldp"),
        pytest.raises(RunStopped, match="begin again: ValueError: Expected 64") as caught,
    ):
        strategy.aggregate_train(1, [error_reply(reason, node) for node in (100, 101, 102)])
    assert len(str(caught.value)) < 600
    assert str(caught.value).isprintable()
    assert caplog.text.count("Expected 64") == 1
    assert strategy.privacy_spent().units == {}


def test_one_client_cannot_stop_the_run_by_a_rehearsal_that_it_made_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_up = f"{REFUSED_REHEARSAL}: made up"
    strategy = configured(monkeypatch)
    told = message(gate()(asked(), context(), trained).content, node=100, reply=True)
    arrays, metrics = strategy.aggregate_train(1, [told, error_reply(made_up, 101)])
    assert arrays is not None
    assert metrics is not None
    assert metrics[f"rejected-{REFUSED_REHEARSAL}"] == 1
    refused = [error_reply("ldp:refused:budget", node) for node in (100, 101)]
    with pytest.raises(RunStopped, match="ldp:refused:budget 2 times") as caught:
        configured(monkeypatch).aggregate_train(1, [*refused, error_reply(made_up, 102)])
    assert "made up" not in str(caught.value)
