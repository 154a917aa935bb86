"""The guard on a connection: what it sends, and what it does with odd uses of it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from flower_ldp.clients import LdpMod, OwnerAuthorizer, SignDSRelease
from flower_ldp.errors import ReleaseError
from flower_ldp.mechanisms import SignDS
from flower_ldp.node.flower_api import Channel, object_ids, unpack
from flower_ldp.node.gates import PaidReports
from flower_ldp.node.guard import Guard, PendingMessage
from flower_ldp.node.runtime_api import AppCalls
from flower_ldp.refusals import NO_PROPOSAL
from flower_ldp.wire.proposal import PAYLOAD_KEY, REPORT_KEY
from tests.fixtures import (
    accounts,
    context_of,
    counted,
    make_site,
    message,
    payload,
    policy_text,
    proposal,
    record,
)
from tests.unit.clients.world import training

MODEL = {"w": np.zeros((20, 30), dtype=np.float32)}
TRAINED = {"w": np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30)}
POLICY = policy_text("{train: {signds: {epsilon: 2.0}}}", life=6.0)


def packed(one: Message) -> tuple[Any, dict[str, bytes]]:
    """Return a message's tree and objects, as they travel."""
    one.metadata.__dict__["_message_id"] = one.object_id
    objects = {name: part.deflate() for name, part in get_all_nested_objects(one).items()}
    return get_object_tree(one), objects


class Link:
    """The far end of a connection: messages to hand out, and what was sent."""

    def __init__(self) -> None:
        self.waiting: list[Message] = []
        self.objects: dict[str, bytes] = {}
        self.sent: list[Message] = []
        self.confirmed: list[str] = []
        self.run_times: list[float] = []
        self._trees: list[Any] = []
        self._got: dict[str, bytes] = {}

    def channel(self) -> Channel:
        return Channel(
            7,
            self._receive,
            self._send,
            lambda run_id: None,
            lambda fab_hash, run_id: None,
            lambda run_id, object_id: self.objects[object_id],
            self._push,
            lambda run_id, object_id: self.confirmed.append(object_id),
        )

    def _receive(self) -> tuple[Message, Any] | None:
        if not self.waiting:
            return None
        one = self.waiting.pop(0)
        tree, objects = packed(one)
        self.objects.update(objects)
        return one, tree

    def _send(self, one: Message, object_tree: Any, run_time: float) -> tuple[set[str], str]:
        self.run_times.append(run_time)
        self._trees.append(object_tree)
        self._got.clear()  # two reports may be equal, and share an object
        return object_ids(object_tree), "session"

    def _push(self, run_id: int, session_id: str, object_id: str, contents: bytes) -> None:
        self._got[object_id] = contents
        if set(self._got) >= object_ids(self._trees[-1]):
            self.sent.append(unpack(self._trees[-1], self._got))


def node(tmp_path: Path, gate: Any = None, **options: Any) -> tuple[Link, Channel]:
    config: Any = make_site(tmp_path, POLICY).node_config
    link = Link()
    gate = gate or LdpMod(train=SignDSRelease(), authorizer=OwnerAuthorizer())
    return link, Guard(link.channel(), gate, config, **options).channel()


def ask(epsilon: float = 2.0, kind: str = "train", **fields: float) -> Message:
    """Return a message; with a field of its own it has another identity, which is a digest."""
    one = message(proposal(MODEL, SignDS(epsilon=epsilon, k=0.2)), kind=kind)
    vars(one.metadata).update({f"_{name}": value for name, value in fields.items()})
    return one


def given(link: Link, channel: Channel, one: Message | None = None) -> Message:
    """Have a message arrive, and return what the app gets."""
    link.waiting.append(one or ask())
    received = channel.receive()
    assert received is not None
    return received[0]


def reply(channel: Channel, one: Message) -> None:
    """Send a reply as Flower's SuperNode does."""
    tree, objects = packed(one)
    wanted, session = channel.send(one, tree, 12.5)
    for name in wanted:
        channel.push_object(one.metadata.run_id, session, name, objects[name])


def trained(one: Message) -> Message:
    """Return what an app replies that has trained."""
    return Message(RecordDict({"a": record(TRAINED)}), reply_to=one)


def failed(one: Message) -> Message:
    """Return what an app replies that has failed."""
    return Message(Error(code=1, reason="secret"), reply_to=one)


#: Of every report that answers :func:`ask`.
LENGTH = SignDS(epsilon=2.0, k=0.2).plan(600).report_bytes


def entries(tmp_path: Path) -> int:
    return accounts(tmp_path)[0]


def test_a_raw_reply_leaves_as_a_report_without_run_time(tmp_path: Path) -> None:
    link, channel = node(tmp_path)
    link.waiting.append(ask())
    received = channel.receive()
    assert received is not None
    assert entries(tmp_path) == 1
    link.objects.clear()  # the SuperNode gets the objects that the guard has fetched
    for name in object_ids(received[1]):
        assert channel.pull_object(3, name)
    channel.confirm_message_received(3, received[0].metadata.message_id)
    answer = trained(received[0])
    reply(channel, answer)
    (sent,) = link.sent
    assert payload(sent)
    assert sent.metadata.reply_to_message_id == received[0].metadata.message_id
    assert sent.metadata.message_id != answer.metadata.message_id
    assert link.run_times == [0.0]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (lambda: ask(epsilon=2.5), "ldp:refused:policy"),
        (lambda: message(RecordDict({"arrays": record(MODEL)})), NO_PROPOSAL),
        (lambda: ask(kind="evaluate"), "ldp:refused:message"),
        (lambda: ask(kind="query.anything"), "ldp:refused:message"),
    ],
)
def test_a_refused_message_never_reaches_the_app(asked: Any, reason: str, tmp_path: Path) -> None:
    link, channel = node(tmp_path)
    one = asked()
    link.waiting.append(one)
    assert channel.receive() is None
    (sent,) = link.sent
    assert sent.error.reason == reason
    assert link.confirmed == [one.metadata.message_id]
    assert entries(tmp_path) == 0


def test_a_message_delivered_again_gets_the_same_report_without_the_app(tmp_path: Path) -> None:
    link, channel = node(tmp_path)
    one = ask()
    reply(channel, trained(given(link, channel, one)))
    again, restarted = node(tmp_path)
    again.waiting.append(one)
    assert restarted.receive() is None
    assert payload(link.sent[0]) == payload(again.sent[0])
    assert entries(tmp_path) == 1


def test_a_message_without_an_answer_gets_a_neutral_report(tmp_path: Path) -> None:
    link, channel = node(tmp_path)
    received = given(link, channel)
    stray = trained(received)
    stray.metadata.__dict__["_reply_to_message_id"] = "secret"
    reply(channel, stray)
    assert link.sent == []
    assert channel.receive() is None  # when the next is fetched
    (sent,) = link.sent
    assert len(payload(sent)) == LENGTH
    assert counted(tmp_path) == {"failed": 1}
    assert sent.metadata.reply_to_message_id == received.metadata.message_id
    # A reply that comes after that, or a second one, is dropped.
    reply(channel, trained(received))
    assert len(link.sent) == 1


def test_a_reply_that_is_no_message_leaves_as_a_neutral_report(tmp_path: Path) -> None:
    link, channel = node(tmp_path)
    answer = trained(given(link, channel))
    tree, _ = packed(answer)
    wanted, session = channel.send(answer, tree, 0.1)
    for name in wanted:
        channel.push_object(3, session, name, b"secret")
    assert len(payload(link.sent[0])) == LENGTH
    assert counted(tmp_path) == {"failed": 1}


def test_a_gate_of_the_apps_own_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    link, channel = node(tmp_path)
    reply(channel, app_with_gate(given(link, channel), NO_SITE))  # told of no policy
    assert payload(link.sent[0])  # a neutral one leaves
    assert "flower-ldp-superexec" in caplog.text


def test_a_gate_that_breaks_lets_nothing_out() -> None:
    def broken(one: Message, context: Context, call_next: ClientAppCallable) -> Message:
        call_next(one, context)
        raise SystemError("secret")

    held = PendingMessage(broken, ask(), NO_SITE)
    assert held.authorize() is None
    assert held.finish(ask()).error.reason == "ldp:failed"


NO_SITE = Context(3, 7, {}, RecordDict(), {})


def app_with_gate(one: Message, context: Context) -> Message:
    """What the app's process does when its author put LdpMod first."""
    gate = LdpMod(train=SignDSRelease(), authorizer=OwnerAuthorizer())
    return gate(one, context, training(TRAINED))


@pytest.mark.parametrize("kind", ["raw", "other report", "not charged", "error", "extra record"])
def test_what_the_ledger_does_not_hold_does_not_leave(kind: str, tmp_path: Path) -> None:
    link, channel = node(tmp_path, PaidReports())
    one = given(link, channel)
    made_up = RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: b"\x01\x01secret"})})
    sealed = None if kind == "not charged" else app_with_gate(one, context_of(tmp_path))
    answers = {"raw": trained(one), "error": failed(one)}
    if kind == "extra record" and sealed is not None:
        answers[kind] = Message(sealed.content.copy(), reply_to=one)
        answers[kind].content["more"] = ConfigRecord({"secret": 1})
    reply(channel, answers.get(kind) or Message(made_up, reply_to=one))
    sent = payload(link.sent[0])
    assert len(sent) == LENGTH
    assert sent != b"\x01\x01secret"
    assert sealed is None or payload(sealed) == sent
    assert entries(tmp_path) == 1


def test_an_app_that_was_refused_for_its_budget_is_answered_so(tmp_path: Path) -> None:
    link, channel = node(tmp_path, PaidReports())
    for number in range(4):
        received = given(link, channel, ask(group_id=str(number)))
        reply(channel, app_with_gate(received, context_of(tmp_path)))
    assert [sent.has_error() for sent in link.sent] == [False, False, False, True]
    assert link.sent[3].error.reason == "ldp:refused:budget"


def test_answers_are_held_back(tmp_path: Path) -> None:
    link, channel = node(tmp_path, hold_seconds=0.3)
    received = given(link, channel)
    came = received.metadata.created_at
    reply(channel, trained(received))
    assert link.sent[0].metadata.created_at - came >= 0.3


AFTER, LONG = 0.8, 15.0


def late_node(tmp_path: Path) -> tuple[Link, Channel]:
    """Return a node whose policy sets a fixed moment."""
    link, channel = node(tmp_path)
    policy = tmp_path / "policy.yaml"
    policy.write_text(policy.read_text() + f"answer_after: {{train: {AFTER}}}\n")
    return link, channel


def waited_for(link: Link, number: int) -> None:
    for _ in range(400):
        if len(link.sent) >= number:
            return
        time.sleep(0.05)
    raise AssertionError(f"{len(link.sent)} of {number} answers left")


def test_at_the_fixed_moment_the_answer_leaves_although_the_app_still_runs(tmp_path: Path) -> None:
    link, channel = late_node(tmp_path)
    one = ask()
    began = time.monotonic()
    received = given(link, channel, one)
    waited_for(link, 1)
    assert AFTER <= time.monotonic() - began < LONG
    assert len(payload(link.sent[0])) == LENGTH
    assert counted(tmp_path) == {"failed": 1}
    # What the app replies afterwards is dropped, and the node takes the next message.
    reply(channel, trained(received))
    assert channel.receive() is None
    assert len(link.sent) == 1
    # The same message gets the same report.
    link.waiting.append(one)
    assert channel.receive() is None
    assert payload(link.sent[1]) == payload(link.sent[0])
    assert link.run_times == [0.0, 0.0]


@pytest.mark.parametrize("answer", [trained, failed, None], ids=["report", "error", "none"])
def test_an_answer_that_is_early_leaves_at_the_fixed_moment(answer: Any, tmp_path: Path) -> None:
    link, channel = late_node(tmp_path)
    began = time.monotonic()
    received = given(link, channel)
    if answer is None:
        assert channel.receive() is None  # the SuperNode is done with it
    else:
        reply(channel, answer(received))
    assert AFTER <= time.monotonic() - began < LONG
    assert [len(payload(sent)) for sent in link.sent] == [LENGTH]
    assert counted(tmp_path) == ({} if answer is trained else {"failed": 1})


def empty(one: Message) -> Message:
    return Message(RecordDict({"a": record({})}), reply_to=one)


@pytest.mark.parametrize("answer", [empty, failed, None], ids=["no message", "error", "nothing"])
def test_an_app_that_fails_is_like_one_that_answers(answer: Any, tmp_path: Path) -> None:
    link, channel = node(tmp_path)
    seen = []
    for number, one in enumerate((trained, answer)):
        received = given(link, channel, ask(ttl=3_600.0 + number))
        if one is None:
            assert channel.receive() is None
        else:
            reply(channel, one(received))
        fields = dict(vars(link.sent[number].metadata))
        assert fields.pop("_reply_to_message_id") == received.metadata.message_id
        for name in ("_message_id", "_created_at", "_ttl"):
            fields.pop(name)
        seen.append((fields, len(payload(link.sent[number]))))
    assert seen[0] == seen[1]
    assert entries(tmp_path) == 2


def test_a_gate_that_answers_by_itself_is_not_waited_for() -> None:
    """The moment may come before the app has the message."""
    told = []

    def hasty(one: Message, context: Context, call_next: ClientAppCallable) -> Message:
        def call() -> None:
            with suppress(ReleaseError):
                call_next(one, context)

        threading.Thread(target=call, daemon=True).start()
        time.sleep(0.1)
        return Message(RecordDict(), reply_to=one)

    held = PendingMessage(hasty, ask(), NO_SITE, lambda: told.append(1))
    assert held.authorize() is None
    assert held.finish(None).has_content()
    time.sleep(0.1)
    assert told == [1]
    itself = PendingMessage(lambda one, *_: Message(RecordDict(), reply_to=one), ask(), NO_SITE)
    assert itself.authorize() is not None
    nothing = PendingMessage(lambda *_: None, ask(), NO_SITE)  # type: ignore[arg-type,return-value]
    answer = nothing.authorize()
    assert answer is not None
    assert answer.error.reason == "ldp:failed"


def test_the_gates_own_records_are_kept_from_the_app(tmp_path: Path) -> None:
    link, channel = node(tmp_path, hides=True)
    one = ask()
    one.content["config"] = ConfigRecord({"lr": 0.1})
    link.waiting.append(one)
    received = channel.receive()
    assert received is not None
    shown, tree = received
    link.objects.clear()
    contents = {name: channel.pull_object(3, name) for name in object_ids(tree)}
    seen = unpack(tree, contents)
    assert sorted(seen.content) == ["arrays", "config"]
    assert b"ldp.proposal" not in b"".join(contents.values())
    identity = seen.metadata.message_id
    assert shown.metadata.message_id == tree.object_id == seen.object_id == identity
    assert identity != one.metadata.message_id
    assert seen.metadata.group_id == shown.metadata.group_id == one.metadata.group_id
    # To the SuperLink it is the message that came.
    channel.confirm_message_received(3, identity)
    assert link.confirmed == [one.metadata.message_id]
    reply(channel, trained(seen))
    (sent,) = link.sent
    assert len(payload(sent)) == LENGTH
    assert sent.metadata.reply_to_message_id == one.metadata.message_id
    assert counted(tmp_path) == {}


@pytest.mark.parametrize(("after", "hold"), [(0.3, 0.0), (None, 0.3), (None, 0.0)])
def test_calls_are_told_of_the_moment(after: float | None, hold: float, tmp_path: Path) -> None:
    """Under a fixed moment from when the message came; under a hold from when a reply is there."""
    calls = AppCalls()
    told: list[tuple[float, threading.Event]] = []
    calls.quiet = lambda moment, sent: told.append((moment, sent))  # type: ignore[method-assign]
    options = {"answer_after": {"train": after}.get, "hold_seconds": hold}
    link, channel = node(tmp_path, calls=calls, **options)
    begun = time.monotonic()
    received = given(link, channel)
    assert len(told) == (0 if after is None else 1)
    assert not any(sent.is_set() for _, sent in told)
    reply(channel, trained(received))
    assert len(told) == (1 if after or hold else 0)
    assert all(0.3 <= moment - begun < 10 for moment, _ in told)
    assert all(sent.is_set() for _, sent in told)
    assert len(link.sent) == 1


def test_what_fails_after_the_charge_reaches_flowers_loop(tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    link, channel = node(tmp_path, opened=full)
    link.waiting.append(ask())
    with pytest.raises(OSError, match="no space left"):  # the node ends, and starts anew
        channel.receive()
    assert entries(tmp_path) == 1
