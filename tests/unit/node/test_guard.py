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

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import LdpMod, OwnerAuthorizer, SignDSRelease
from flower_ldp.errors import ReleaseError
from flower_ldp.mechanisms import SignDS
from flower_ldp.node.flower_api import Channel, object_ids, unpack
from flower_ldp.node.gates import PaidReports
from flower_ldp.node.guard import Guard, PendingMessage
from flower_ldp.node.runtime_api import AppCalls
from flower_ldp.refusals import NO_PROPOSAL
from flower_ldp.wire.proposal import PAYLOAD_KEY, REPORT_KEY
from tests.fixtures import message, proposal, record, wait_for_counts

MODEL = {"w": np.zeros((20, 30), dtype=np.float32)}
TRAINED = {"w": np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30)}
POLICY = """
data_id: ward-7
ledger: ledger.sqlite
mode: deployment
messages: {train: {signds: {epsilon: 2.0}}}
budgets: {client: {life: {epsilon: 6.0}}}
"""


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
    (tmp_path / "policy.yaml").write_text(POLICY)
    if not (tmp_path / "ledger.sqlite").exists():
        Ledger.open(tmp_path / "ledger.sqlite", create=True).close()
    link = Link()
    gate = gate or LdpMod(train=SignDSRelease(), authorizer=OwnerAuthorizer())
    config: Any = {"ldp-policy": str(tmp_path / "policy.yaml")}
    return link, Guard(link.channel(), gate, config, **options).channel()


def ask(epsilon: float = 2.0, kind: str = "train") -> Message:
    return message(proposal(MODEL, SignDS(epsilon=epsilon, k=0.2)), kind=kind)


def reply(channel: Channel, one: Message) -> None:
    """Send a reply as Flower's SuperNode does."""
    tree, objects = packed(one)
    wanted, session = channel.send(one, tree, 12.5)
    for name in wanted:
        channel.push_object(one.metadata.run_id, session, name, objects[name])


#: Of every report that answers :func:`ask`.
LENGTH = SignDS(epsilon=2.0, k=0.2).plan(600).report_bytes


def payload(sent: Message) -> bytes:
    assert list(sent.content) == [REPORT_KEY]
    assert list(sent.content.config_records[REPORT_KEY]) == [PAYLOAD_KEY]
    found = sent.content.config_records[REPORT_KEY][PAYLOAD_KEY]
    assert isinstance(found, bytes)
    return found


def counted(tmp_path: Path) -> dict[str, int]:
    wait_for_counts()
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        return {kind: number for kind, number in ledger.counts("ward-7").items() if number}


def entries(tmp_path: Path) -> int:
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        return ledger.verify().entries


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
    answer = Message(RecordDict({"a": record(TRAINED)}), reply_to=received[0])
    reply(channel, answer)
    (sent,) = link.sent
    assert list(sent.content) == [REPORT_KEY]
    assert list(sent.content.config_records[REPORT_KEY]) == [PAYLOAD_KEY]
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
def test_a_refused_message_is_answered_and_never_reaches_the_app(
    asked: Any, reason: str, tmp_path: Path
) -> None:
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
    link.waiting.append(one)
    received = channel.receive()
    assert received is not None
    reply(channel, Message(RecordDict({"a": record(TRAINED)}), reply_to=received[0]))
    again, restarted = node(tmp_path)
    again.waiting.append(one)
    assert restarted.receive() is None
    first, second = link.sent[0], again.sent[0]
    assert first.content[REPORT_KEY] == second.content[REPORT_KEY]
    assert entries(tmp_path) == 1


def test_a_message_without_an_answer_gets_a_neutral_report_when_the_next_is_fetched(
    tmp_path: Path,
) -> None:
    link, channel = node(tmp_path)
    link.waiting.append(ask())
    received = channel.receive()
    assert received is not None
    stray = Message(RecordDict({"a": record(TRAINED)}), reply_to=received[0])
    stray.metadata.__dict__["_reply_to_message_id"] = "secret"
    reply(channel, stray)
    assert link.sent == []
    assert channel.receive() is None
    (sent,) = link.sent
    assert len(payload(sent)) == LENGTH
    assert counted(tmp_path) == {"failed": 1}
    assert sent.metadata.reply_to_message_id == received[0].metadata.message_id
    # A reply that comes after that, or a second one, is dropped.
    reply(channel, Message(RecordDict({"a": record(TRAINED)}), reply_to=received[0]))
    assert len(link.sent) == 1


def test_a_reply_that_is_no_message_leaves_as_a_neutral_report(tmp_path: Path) -> None:
    link, channel = node(tmp_path)
    link.waiting.append(ask())
    received = channel.receive()
    assert received is not None
    answer = Message(RecordDict({"a": record(TRAINED)}), reply_to=received[0])
    tree, _ = packed(answer)
    wanted, session = channel.send(answer, tree, 0.1)
    for name in wanted:
        channel.push_object(3, session, name, b"secret")
    assert len(payload(link.sent[0])) == LENGTH
    assert counted(tmp_path) == {"failed": 1}


def test_the_log_says_what_to_do_about_an_app_with_a_gate_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link, channel = node(tmp_path)
    link.waiting.append(ask())
    received = channel.receive()
    assert received is not None
    reply(channel, app_with_gate(received[0], _context(tmp_path)))  # told of no policy
    assert list(link.sent[0].content) == [REPORT_KEY]  # a neutral one leaves
    assert "flower-ldp-superexec" in caplog.text


def test_a_gate_that_breaks_lets_nothing_out(tmp_path: Path) -> None:
    def broken(one: Message, context: Context, call_next: ClientAppCallable) -> Message:
        call_next(one, context)
        raise SystemError("secret")

    held = PendingMessage(broken, ask(), _context(tmp_path))
    assert held.authorize() is None
    assert held.finish(ask()).error.reason == "ldp:failed"


def _context(tmp_path: Path) -> Context:
    return Context(3, 7, {}, RecordDict(), {})


def app_with_gate(one: Message, context: Context) -> Message:
    """What the app's process does when its author put LdpMod first."""

    def app(asked: Message, _: Context) -> Message:
        return Message(RecordDict({"a": record(TRAINED)}), reply_to=asked)

    return LdpMod(train=SignDSRelease(), authorizer=OwnerAuthorizer())(one, context, app)


def test_only_the_report_that_the_ledger_holds_leaves(tmp_path: Path) -> None:
    link, channel = node(tmp_path, PaidReports())
    context = Context(3, 7, {"ldp-policy": str(tmp_path / "policy.yaml")}, RecordDict(), {})
    for _ in range(2):
        link.waiting.append(ask())
    received = channel.receive()
    assert received is not None
    honest = app_with_gate(received[0], context)
    reply(channel, honest)
    assert link.sent[0].content[REPORT_KEY] == honest.content[REPORT_KEY]
    assert entries(tmp_path) == 1


def app_report(one: Message, context: Context) -> bytes:
    """The report that the app's gate sealed for the message."""
    return payload(app_with_gate(one, context))


@pytest.mark.parametrize("kind", ["raw", "other report", "not charged", "error", "extra record"])
def test_what_the_ledger_does_not_hold_does_not_leave(kind: str, tmp_path: Path) -> None:
    link, channel = node(tmp_path, PaidReports())
    context = Context(3, 7, {"ldp-policy": str(tmp_path / "policy.yaml")}, RecordDict(), {})
    link.waiting.append(ask())
    received = channel.receive()
    assert received is not None
    one = received[0]
    answer = app_with_gate(one, context) if kind != "not charged" else None
    if kind == "raw":
        answer = Message(RecordDict({"a": record(TRAINED)}), reply_to=one)
    elif kind in ("other report", "not charged"):
        made_up = ConfigRecord({PAYLOAD_KEY: b"\x01\x01secret"})
        answer = Message(RecordDict({REPORT_KEY: made_up}), reply_to=one)
    elif kind == "error":
        answer = Message(Error(code=1, reason="secret"), reply_to=one)
    elif kind == "extra record" and answer is not None:
        answer.content["more"] = ConfigRecord({"secret": 1})
    assert answer is not None
    sealed = None if kind == "not charged" else app_report(one, context)
    reply(channel, answer)
    sent = payload(link.sent[0])
    assert len(sent) == LENGTH
    assert sent != b"\x01\x01secret"
    assert sealed in (None, sent)
    assert entries(tmp_path) == 1


def test_an_app_that_was_refused_for_its_budget_is_answered_so(tmp_path: Path) -> None:
    link, channel = node(tmp_path, PaidReports())
    context = Context(3, 7, {"ldp-policy": str(tmp_path / "policy.yaml")}, RecordDict(), {})
    for number in range(4):
        one = message(proposal(MODEL, SignDS(epsilon=2.0, k=0.2)), message_id=f"m-{number}")
        one.metadata.group_id = str(number)  # another identity: it is a digest
        link.waiting.append(one)
        received = channel.receive()
        assert received is not None
        reply(channel, app_with_gate(received[0], context))
    assert [sent.has_error() for sent in link.sent] == [False, False, False, True]
    assert link.sent[3].error.reason == "ldp:refused:budget"


def test_answers_are_held_back(tmp_path: Path) -> None:
    link, channel = node(tmp_path, hold_seconds=0.3)
    link.waiting.append(ask())
    received = channel.receive()
    assert received is not None
    came = received[0].metadata.created_at
    reply(channel, Message(RecordDict({"a": record(TRAINED)}), reply_to=received[0]))
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
    link.waiting.append(one)
    began = time.monotonic()
    received = channel.receive()
    assert received is not None
    waited_for(link, 1)
    assert AFTER <= time.monotonic() - began < LONG
    assert len(payload(link.sent[0])) == LENGTH
    assert counted(tmp_path) == {"failed": 1}
    # What the app replies afterwards is dropped, and the node takes the next message.
    reply(channel, Message(RecordDict({"a": record(TRAINED)}), reply_to=received[0]))
    assert channel.receive() is None
    assert len(link.sent) == 1
    # The same message gets the same report.
    link.waiting.append(one)
    assert channel.receive() is None
    assert payload(link.sent[1]) == payload(link.sent[0])
    assert link.run_times == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["report", "error", "none"])
def test_an_answer_that_is_early_leaves_at_the_fixed_moment(kind: str, tmp_path: Path) -> None:
    link, channel = late_node(tmp_path)
    link.waiting.append(ask())
    began = time.monotonic()
    received = channel.receive()
    assert received is not None
    if kind == "report":
        reply(channel, Message(RecordDict({"a": record(TRAINED)}), reply_to=received[0]))
    elif kind == "error":
        reply(channel, Message(Error(code=1, reason="secret"), reply_to=received[0]))
    else:
        assert channel.receive() is None  # the SuperNode is done with it
    assert AFTER <= time.monotonic() - began < LONG
    assert [len(payload(sent)) for sent in link.sent] == [LENGTH]
    assert counted(tmp_path) == ({} if kind == "report" else {"failed": 1})


@pytest.mark.parametrize("kind", ["no message", "error", "nothing"])
def test_an_app_that_fails_cannot_be_told_from_one_that_answers(kind: str, tmp_path: Path) -> None:
    link, channel = node(tmp_path)
    seen = []
    for number in range(2):
        one = message(proposal(MODEL, SignDS(epsilon=2.0, k=0.2)), message_id=f"m-{number}")
        one.metadata.ttl = 3_600.0 + number  # another identity: it is a digest
        link.waiting.append(one)
        received = channel.receive()
        assert received is not None
        if not number:
            reply(channel, Message(RecordDict({"a": record(TRAINED)}), reply_to=received[0]))
        elif kind == "error":
            reply(channel, Message(Error(code=1, reason="secret"), reply_to=received[0]))
        elif kind == "no message":
            stray = Message(RecordDict({"a": record({})}), reply_to=received[0])
            reply(channel, stray)
        else:
            assert channel.receive() is None
        fields = dict(vars(link.sent[number].metadata))
        assert fields.pop("_reply_to_message_id") == received[0].metadata.message_id
        for name in ("_message_id", "_created_at", "_ttl"):
            fields.pop(name)
        seen.append((fields, len(payload(link.sent[number]))))
    assert seen[0] == seen[1]
    assert entries(tmp_path) == 2


def test_a_gate_that_answers_by_itself_is_not_waited_for(tmp_path: Path) -> None:
    """The moment may come before the app has the message."""
    told = []

    def hasty(one: Message, context: Context, call_next: ClientAppCallable) -> Message:
        def call() -> None:
            with suppress(ReleaseError):
                call_next(one, context)

        threading.Thread(target=call, daemon=True).start()
        time.sleep(0.1)
        return Message(RecordDict(), reply_to=one)

    held = PendingMessage(hasty, ask(), _context(tmp_path), lambda: told.append(1))
    assert held.authorize() is None
    assert held.finish(None).has_content()
    time.sleep(0.1)
    assert told == [1]
    at_once = PendingMessage(
        lambda one, *_: Message(RecordDict(), reply_to=one), ask(), held.context
    )
    assert at_once.authorize() is not None
    nothing = PendingMessage(lambda *_: None, ask(), held.context)  # type: ignore[arg-type,return-value]
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
    reply(channel, Message(RecordDict({"a": record(TRAINED)}), reply_to=seen))
    (sent,) = link.sent
    assert len(payload(sent)) == LENGTH
    assert sent.metadata.reply_to_message_id == one.metadata.message_id
    assert counted(tmp_path) == {}


@pytest.mark.parametrize(("after", "hold"), [(0.3, 0.0), (None, 0.3), (None, 0.0)])
def test_calls_are_told_of_the_moment_and_when_the_answer_was_sent(
    after: float | None, hold: float, tmp_path: Path
) -> None:
    """Under a fixed moment from when the message came; under a hold from when a reply is there."""
    calls = AppCalls()
    told: list[tuple[float, threading.Event]] = []
    calls.quiet = lambda moment, sent: told.append((moment, sent))  # type: ignore[method-assign]
    link, channel = node(
        tmp_path, calls=calls, answer_after={"train": after}.get, hold_seconds=hold
    )
    link.waiting.append(ask())
    begun = time.monotonic()
    received = channel.receive()
    assert received is not None
    assert len(told) == (0 if after is None else 1)
    assert not any(sent.is_set() for _, sent in told)
    reply(channel, Message(RecordDict({"a": record(TRAINED)}), reply_to=received[0]))
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
