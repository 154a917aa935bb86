"""Split learning with parties that fail: what leaves, and where the party stands afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from flower_ldp.clients import Permit, split_client_app
from flower_ldp.mechanisms import BottomModelClaim, UnaryEncoding
from flower_ldp.split import TorchParty, weights_digest
from flower_ldp.strategies import LocalExchange
from flower_ldp.wire import embedding as wire
from flower_ldp.wire.embedding import ALIGN, BACKWARD, FORWARD, PREPARE, REWIND, STEP_KEY
from flower_ldp.wire.proposal import PROPOSAL_KEY
from tests.fixtures import UnrecordedPermit, payload, record, wait_for_counts
from tests.split_world import Side, tables

CONDITIONAL = BottomModelClaim("conditional")
OWN = tables()
TERMS = wire.TableTerms("train", OWN.tables["train"].digest, 150, 25)
#: So much that a bit is flipped once in 10^13.
CLEAR = UnaryEncoding(60.0, 32)


class Broken(BaseException):
    """What an app may raise."""


@dataclass
class Owner:
    """Admits everything in a deployment, and keeps reports under their questions."""

    permit: UnrecordedPermit = field(default_factory=UnrecordedPermit)
    kept: dict[str, bytes] = field(default_factory=dict)
    acknowledged: list[str] = field(default_factory=list)

    def authorize(self, request: Any, context: Context) -> Permit:

        def keep(report: bytes, last: bool) -> None:
            self.kept[request.memo] = report

        timing: Any = self.permit
        return Permit(timing, keep, self.kept.get(request.memo))

    def acknowledge(self, message_type: str, context: Context) -> UnrecordedPermit:
        self.acknowledged.append(message_type)
        return self.permit


@dataclass
class World:
    """One party, loaded anew for each message, and its owner."""

    folder: Path
    owner: Owner = field(default_factory=Owner)
    step: str = ""

    def party(self) -> TorchParty:
        return Side("left", self.folder, CONDITIONAL)(None)  # type: ignore[arg-type]

    def ask(self, kind: str, content: RecordDict) -> Message:
        def load(_: Context) -> TorchParty:
            return self.party()

        context = Context(1, 1, {}, RecordDict(), {})
        app = split_client_app(load, authorizer=self.owner)
        (reply,) = LocalExchange({1: (app, context)}).ask(kind, {1: content}).values()
        return reply

    def forward(self, block: int = 0) -> Message:
        return self.ask(FORWARD, forward(self.step, block))

    def backward(self, step: str) -> Message:
        reply = self.ask(BACKWARD, backward(self.step, step))
        self.step = step
        return reply


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def proposal(block: int = 0) -> ConfigRecord:
    return ConfigRecord({**wire.EmbeddingProposal(CLEAR, TERMS, block).to_fields()})


def forward(after: str, block: int = 0) -> RecordDict:
    return RecordDict({PROPOSAL_KEY: proposal(block), STEP_KEY: ConfigRecord({"after": after})})


def backward(after: str, step: str) -> RecordDict:
    gradient = record({wire.GRADIENT_KEY: np.ones((25, 32), dtype=np.float32)})
    steps = ConfigRecord({"after": after, "step": step})
    return RecordDict({PROPOSAL_KEY: proposal(), STEP_KEY: steps, wire.GRADIENT_KEY: gradient})


def rewind(after: str) -> RecordDict:
    return RecordDict({STEP_KEY: ConfigRecord({"after": after})})


def prepare() -> RecordDict:
    return RecordDict(
        {
            PROPOSAL_KEY: ConfigRecord({**TERMS.to_fields()}),
            wire.CHANNEL_KEY: ConfigRecord({"epsilon": 4.0, "categories": 10}),
            wire.LABELS_KEY: record({wire.LABELS_KEY: np.arange(150) % 10}),
        }
    )


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Have a method of parties fail."""

    def fail(*_: object, **__: object) -> None:
        raise Broken("secret")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchParty, name, fail)
        yield


def test_a_step_that_fails_is_acknowledged_and_taken(world: World) -> None:
    first = payload(world.forward())
    weights = world.party().digest()
    with broken("learn"):
        assert payload(world.backward("s-1")) == b""
    assert world.owner.permit.failures == 1
    assert (world.party().step, world.party().digest() == weights) == ("s-1", False)
    # The next messages are answered as if it had moved, and with another draw.
    second = payload(world.forward())
    assert len(second) == len(first)
    assert len(world.owner.kept) == 2
    assert payload(world.backward("s-2")) == b""
    assert world.owner.permit.failures == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_of_an_earlier_name_is_another_question(fails: bool, world: World) -> None:
    """Otherwise the same report, given again, says that nothing in between moved the bottom."""
    with broken("learn") if fails else nullcontext():
        world.backward("s-1")
        payload(world.forward())
        world.backward("s-2")
        world.backward("s-1")
        payload(world.forward())
    assert len(world.owner.kept) == 2
    # The way back is known by the file: the same bottom, the same question.
    world.backward("s-3")
    world.ask(REWIND, rewind("s-1"))
    world.step = "s-1"
    payload(world.forward())
    assert len(world.owner.kept) == 2


def test_what_a_party_writes_while_it_is_loaded_is_not_kept(world: World) -> None:
    context = Context(1, 1, {"ldp-policy": "the operator's"}, RecordDict(), {"rate": 0.1})

    def load(given: Context) -> TorchParty:
        given.node_config["ldp-policy"] = "mine"
        given.run_config["rate"] = 0.2
        return world.party()

    app = split_client_app(load, authorizer=world.owner)
    exchange = LocalExchange({1: (app, context)})
    for kind, content in ((ALIGN, RecordDict()), (FORWARD, forward(""))):
        exchange.ask(kind, {1: content})
        assert context.node_config == {"ldp-policy": "the operator's"}
        assert context.run_config == {"rate": 0.1}


def test_a_step_that_fails_half_way_is_not_made_again(world: World) -> None:
    with broken("_table"):
        world.backward("s-1")
    before = world.party().digest()
    world.step = ""
    assert payload(world.backward("s-1")) == b""  # its answer was lost, so it was sent again
    assert (world.party().step, world.party().digest()) == ("s-1", before)


def test_a_way_back_that_fails_is_gone_all_the_same(world: World) -> None:
    world.backward("s-1")
    with broken("rewind"):
        assert payload(world.ask(REWIND, rewind(""))) == b""
    assert world.party().step == ""
    world.step = ""
    assert payload(world.forward())


def test_a_failed_training_does_not_show(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(module: Any, *_: object) -> None:
        for parameter in module.parameters():
            parameter.data.add_(1.0)
        raise Broken

    payload(world.forward())
    party = world.party()
    before = weights_digest(party.bottom.state_dict())
    monkeypatch.setattr("tests.split_world.train", half)
    assert payload(world.ask(PREPARE, prepare())) == b""
    assert world.owner.permit.failures == 1
    party = world.party()
    assert weights_digest(party.bottom.state_dict()) == before != party.digest()
    payload(world.forward())
    assert len(world.owner.kept) == 2
    monkeypatch.undo()
    assert payload(world.ask(PREPARE, prepare())) == b""
    after = world.party()
    assert weights_digest(after.bottom.state_dict()) == after.digest() != before


def test_in_a_simulation_a_failing_party_is_loud(world: World) -> None:
    world.owner.permit.is_simulation = True
    for name, kind, content in (
        ("learn", BACKWARD, backward("", "s-1")),
        ("prepare", PREPARE, prepare()),
        ("embed", FORWARD, forward("")),
    ):
        with broken(name):
            assert world.ask(kind, content).error.reason == "ldp:failed"
    assert world.party().step == ""


@pytest.mark.parametrize("way", ["raises", "drops", "widens"])
def test_a_record_that_fails_alone(way: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the bottom drops it in silence, or answers for its block in another shape."""
    bad, embed, party = 7, TorchParty.embed, world.party()
    rows = OWN.rows("train", 0)
    honest = np.packbits(party.embed("train", rows) > 0, axis=1)

    def failing(self: TorchParty, table: str, asked: Any) -> Any:
        if way == "drops":
            return embed(self, table, asked[asked != rows[bad]])
        found = embed(self, table, asked)
        if rows[bad] in asked:
            if way == "raises":
                raise Broken("secret")
            return np.pad(found, ((0, 0), (0, 1)))
        return found

    monkeypatch.setattr(TorchParty, "embed", failing)
    found = np.frombuffer(payload(world.forward())[1:], dtype=np.uint8).reshape(25, 4)
    assert (np.delete(found, bad, 0) == np.delete(honest, bad, 0)).all()
    assert (found[bad] != honest[bad]).any()  # fair bits: alike once in 2^32
    assert world.owner.permit.failures >= 1


def test_a_late_step_is_not_made_afterwards(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    features, ended = TorchParty._table, threading.Event()
    before = weights_digest(world.party().bottom.state_dict())

    def slow(self: TorchParty, table: str) -> Any:
        ended.wait(30)
        return features(self, table)

    world.owner.permit = replace(world.owner.permit, answer_after=0.3)
    monkeypatch.setattr(TorchParty, "_table", slow)
    assert payload(world.backward("s-1")) == b""
    assert world.party().step == "s-1"
    wait_for_counts()
    assert world.owner.permit.failures == 1
    ended.set()
    for thread in threading.enumerate():
        if thread.name == "flower-ldp-app":
            thread.join(30)
    party = world.party()
    assert (party.step, weights_digest(party.bottom.state_dict())) == ("s-1", before)


ONES = np.ones((25, 32), dtype=np.float32)
NAN = ONES.copy()
NAN[0, 0] = np.nan


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (wire.GRADIENT_KEY, record({wire.GRADIENT_KEY: ONES.astype(np.float64)})),
        (wire.GRADIENT_KEY, record({wire.GRADIENT_KEY: ONES[:3]})),
        (wire.GRADIENT_KEY, record({wire.GRADIENT_KEY: NAN})),
        (STEP_KEY, ConfigRecord({"after": "", "step": ""})),
        (wire.GRADIENT_KEY, None),
    ],
    ids=["type", "rows", "nan", "step", "none"],
)
def test_what_the_server_sent_is_judged(name: str, content: Any, world: World) -> None:
    asked = backward("", "s-1")
    del asked[name]
    if content is not None:
        asked[name] = content
    assert world.ask(BACKWARD, asked).error.reason == "ldp:refused:proposal"
    assert world.party().step == ""
    assert world.owner.acknowledged == []


def test_without_a_policy_all_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWER_LDP_POLICY", raising=False)
    side, context = Side("left", tmp_path, CONDITIONAL), Context(1, 1, {}, RecordDict(), {})
    exchange = LocalExchange({1: (split_client_app(side), context)})
    for kind, content in (
        (ALIGN, RecordDict()),
        (PREPARE, prepare()),
        (BACKWARD, backward("", "s-1")),
        (REWIND, rewind("")),
        (FORWARD, forward("")),
    ):
        (reply,) = exchange.ask(kind, {1: content}).values()
        assert reply.error.reason == "ldp:refused:policy"
    assert side(context).step == ""


@pytest.mark.parametrize("error", [ValueError, SystemExit, Broken])
def test_a_party_that_cannot_be_loaded_tells_no_more(error: type[BaseException]) -> None:
    def load(_: Context) -> TorchParty:
        raise error("secret")

    app = split_client_app(load, authorizer=Owner())
    exchange = LocalExchange({1: (app, Context(1, 1, {}, RecordDict(), {}))})
    for kind in (ALIGN, FORWARD, BACKWARD):
        (reply,) = exchange.ask(kind, {1: forward("")}).values()
        assert reply.error.reason == "ldp:failed"
