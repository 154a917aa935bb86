"""What an app may ask of the node's runtime API: each attempt works on Flower's own, not here."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import context_to_proto, message_to_proto
from flwr.proto import log_pb2, message_pb2, runtime_pb2, task_pb2
from flwr.supercore.constant import TASK_TOKEN_HEADER, TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable import inflatable_object as inflatable
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunStatus
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeState, NodeStateFactory

from flower_ldp.node import runtime_api
from flower_ldp.node.flower_api import object_ids
from flower_ldp.node.runtime_api import AppCalls
from tests import fixtures

RUN, OTHER_RUN, NODE = 7, 8, 5
LOGS = log_pb2.PushLogsRequest(logs=["text"])
FAB = sha256(b"content").hexdigest()


@dataclass
class Client:
    """Calls an application in this process."""

    app: Any

    def request(
        self, method: str, path: str, headers: dict[str, str] | None = None, content: bytes = b""
    ) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://node") as one:
                return await one.request(method, path, headers=headers, content=content)

        return asyncio.run(ask())


@dataclass
class Node:
    """A node's runtime API, the app of one message, and what the node has stored."""

    calls: AppCalls
    state: NodeState
    client: Client
    guarded: bool
    token: str = ""
    message: Message | None = None
    reply: Message | None = None

    def send(self, name: str, content: bytes, token: str | None = None) -> httpx.Response:
        headers = {"content-type": "application/protobuf"}
        headers[TASK_TOKEN_HEADER] = self.token if token is None else token
        return self.client.request("POST", f"/v1/runtime/{name}", headers, content)

    def post(self, name: str, asked: Any, token: str | None = None) -> Any:
        return self.send(name, asked.SerializeToString(), token)

    def receive(self, run: int = RUN) -> None:
        """Do what the SuperNode does with a message, and an executor with its task."""
        content = RecordDict({"a": ConfigRecord({"n": 1})})
        message = fixtures.message(content, node=NODE, message_id="")
        message.metadata.__dict__.update(_run_id=run, _group_id="3")
        message.metadata.__dict__["_message_id"] = message.object_id
        with inflatable.no_object_id_recompute():
            self.calls.opened(message, inflatable.get_object_tree(message))
        self.message, self.reply = message, None
        task = self.state.create_task(task_type=TaskType.CLIENT_APP, run_id=run, fab_hash=FAB)
        self.state.store_message(message)
        with inflatable.no_object_id_recompute():
            self.state.object_store.preregister(run, inflatable.get_object_tree(message))
            for name, one in inflatable.get_all_nested_objects(message).items():
                self.state.object_store.put(name, one.deflate())
        assert task is not None
        self.token = self.state.claim_task(task) or ""
        assert self.post("pull-task-input", runtime_pb2.PullTaskInputRequest()).status_code == 200

    def pull(self) -> Any:
        return self.post("pull-messages", runtime_pb2.PullAppMessagesRequest())

    def start(self) -> None:
        """Have an app take a message."""
        self.receive()
        assert self.pull().is_success

    def push(
        self, change: Callable[[message_pb2.Message], None] = lambda one: None, tree: Any = None
    ) -> Any:
        """Push the reply, changed as an app may change it."""
        assert self.message is not None
        if self.reply is None:
            self.reply = Message(RecordDict({"r": ConfigRecord({"n": 2})}), reply_to=self.message)
            self.reply.metadata.__dict__["_message_id"] = self.reply.object_id
        if tree is None:
            with inflatable.no_object_id_recompute():
                tree = inflatable.get_object_tree(self.reply)
        sent = message_to_proto(self.reply)
        change(sent)
        asked = runtime_pb2.PushAppMessagesRequest(messages_list=[sent])
        asked.message_object_trees.append(tree)
        return self.post("push-messages", asked)

    def replies(self) -> list[Any]:
        return [one.metadata for one in self.state.get_messages_legacy(is_reply=True)]

    def end(self, **fields: Any) -> Any:
        asked = runtime_pb2.PushTaskOutputRequest(sub_status="completed", **fields)
        return self.post("push-task-output", asked)


@cache
def _api() -> FastAPI:
    return create_app(None, b"x" * 32)


def flower_runtime_api(factory: NodeStateFactory) -> FastAPI:
    """Return Flower's runtime API of one node at a time: its routes are made once."""
    app = _api()
    app.state.runtime_state_factory = factory
    return app


def stored_run(run: int) -> Run:
    """Return a run as a node stores it."""
    status = RunStatus("running", "", "")
    known = ("f", "1", FAB, {}, "", "", "", "", status, "", "", None, 0, 0, 0.0)
    return Run(run, *known, series_id=run)


def make_node(*, guarded: bool) -> Node:
    factory = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
    state = factory.state()
    state.set_node_id(NODE)
    state.store_fab(Fab(FAB, b"content", {}))
    for run in (RUN, OTHER_RUN):
        state.store_run(stored_run(run))
        state.set_run_series_context(run, Context(run, NODE, {}, RecordDict(), {}))
    calls = AppCalls()
    app = flower_runtime_api(factory)
    return Node(calls, state, Client(calls.around(app) if guarded else app), guarded)


@pytest.fixture(params=[True, False], ids=["guarded", "plain"])
def either(request: pytest.FixtureRequest) -> Node:
    return make_node(guarded=request.param)


@pytest.fixture
def node() -> Node:
    return make_node(guarded=True)


def test_an_honest_app_does_all_that_it_needs(either: Node) -> None:
    node = either
    for run in (RUN, RUN, OTHER_RUN):
        node.receive(run)
        assert node.post("send-task-heartbeat", runtime_pb2.SendTaskHeartbeatRequest()).is_success
        found = runtime_pb2.PullAppMessagesResponse.FromString(node.pull().content)
        (tree,) = found.message_object_trees
        objects = {}
        for name in object_ids(tree):
            asked = message_pb2.PullObjectRequest(object_id=name)
            one = node.post("pull-object", asked).content
            objects[name] = message_pb2.PullObjectResponse.FromString(one).object_content
        assert inflate_object_from_contents(tree.object_id, objects)
        done = message_pb2.ConfirmMessageReceivedRequest(message_object_id=tree.object_id)
        assert node.post("confirm-message-received", done).is_success
        for _ in range(2):  # a client that heard no answer asks again
            assert node.push().is_success
        assert node.end().is_success
        (said,) = node.replies()
        assert (said.run_id, said.group_id, said.message_type) == (run, "3", "train")
        assert node.message is not None
        assert said.reply_to_message_id == node.message.metadata.message_id


CREATE_APP = runtime_pb2.CreateTaskRequest(type=TaskType.CLIENT_APP, fab_hash=FAB)
EVENTS = [task_pb2.TaskEvent(event="e", data="d")]


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("create-task", CREATE_APP),
        ("create-task", runtime_pb2.CreateTaskRequest(type=TaskType.MODEL, model_ref="a/b")),
        ("push-logs", LOGS),
        ("push-task-events", runtime_pb2.PushTaskEventsRequest(events=EVENTS)),
        ("record-task-usage", runtime_pb2.RecordTaskUsageRequest()),
        ("get-run-series-events", runtime_pb2.GetRunSeriesEventsRequest()),
        ("pull-task-message", runtime_pb2.PullTaskMessageRequest()),
    ],
)
def test_what_no_app_needs_is_refused(name: str, asked: Any, either: Node) -> None:
    either.start()
    assert either.post(name, asked).status_code == (404 if either.guarded else 200)
    tasks = len(either.state.get_tasks())
    assert tasks == 1 if either.guarded else tasks >= 1


def test_no_app_starts_another(either: Node) -> None:
    either.receive()
    for _ in range(3):
        either.post("create-task", CREATE_APP)
    assert len(either.state.get_tasks()) == (1 if either.guarded else 4)


def test_an_app_that_stays_gets_no_second_message_and_answers_none(either: Node) -> None:
    either.start()
    assert either.push().is_success
    either.replies()
    first = either.token
    either.receive()
    second, either.token = either.token, first
    found = either.pull()
    assert either.push().status_code == (404 if either.guarded else 200)
    either.token = second
    if either.guarded:
        assert either.pull().is_success
        assert either.push().is_success
    else:
        taken = runtime_pb2.PullAppMessagesResponse.FromString(found.content)
        assert len(taken.messages_list) == 1  # it has taken the message from the right app


def test_a_message_of_the_apps_own_is_given_to_nobody(either: Node) -> None:
    either.start()
    either.push(lambda one: one.metadata.ClearField("reply_to_message_id"))
    planted = either.state.get_messages_legacy(is_reply=False)
    assert len(planted) == (0 if either.guarded else 1)


def test_a_second_reply_is_refused(node: Node) -> None:
    node.start()
    assert node.push().is_success
    node.reply = None  # another
    assert node.push().status_code == 404
    assert len(node.replies()) == 1


def test_a_call_that_is_held_back_makes_no_room_for_a_second_reply(node: Node) -> None:
    node.receive()

    async def late() -> AsyncIterator[bytes]:
        assert (await asyncio.to_thread(node.pull)).is_success
        assert (await asyncio.to_thread(node.push)).is_success
        yield b""

    async def ask() -> None:
        transport = httpx.ASGITransport(node.client.app)
        headers = {"content-type": "application/protobuf", TASK_TOKEN_HEADER: node.token}
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as one:
            path = "/v1/runtime/pull-messages"
            assert (await one.post(path, headers=headers, content=late())).is_success

    asyncio.run(ask())
    node.reply = None  # another
    assert node.push().status_code == 404
    assert len(node.replies()) == 1


def test_an_object_of_the_message_is_no_reply(either: Node) -> None:
    """It goes with the message, when the app says: the node would look for it and end."""
    either.start()
    assert either.message is not None
    with inflatable.no_object_id_recompute():
        tree = inflatable.get_object_tree(either.message)
        trees = list(inflatable.iterate_object_tree(tree))
    for one in trees:
        found = either.push(renamed(one.object_id), one)
        assert found.status_code == (404 if either.guarded else 200)
    # One is the message's name.
    assert len(either.replies()) == (0 if either.guarded else len(trees) - 1)


def renamed(name: str) -> Callable[[message_pb2.Message], None]:
    """Have a reply bear this name."""
    return lambda sent: setattr(sent.metadata, "message_id", name)


def test_a_reply_of_many_objects_is_refused(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.start()
    tree = message_pb2.ObjectTree(object_id="f" * 64)
    tree.children.extend(message_pb2.ObjectTree(object_id=f"{n:064x}") for n in range(125_000))

    with caplog.at_level(logging.WARNING, "flower_ldp"):
        assert node.push(renamed(tree.object_id), tree).status_code == 404
    assert "too many bytes" in caplog.text
    assert node.push().is_success


def test_a_replys_metadata_are_the_messages_own(either: Node) -> None:
    either.start()

    def forge(one: message_pb2.Message) -> None:
        one.metadata.group_id = "1]\nINFO : forged"
        one.metadata.message_type = "query"
        one.metadata.reply_to_message_id = "canary"

    assert either.push(forge).is_success
    (said,) = either.replies()
    assert either.message is not None
    right = ("3", "train", either.message.metadata.message_id)
    found = (said.group_id, said.message_type, said.reply_to_message_id)
    assert (found == right) is either.guarded


@pytest.mark.parametrize("field", ["message_id", "run_id"])
def test_a_reply_of_another_run_or_identity_is_refused(field: str, node: Node) -> None:
    node.start()
    value: Any = OTHER_RUN if field == "run_id" else "canary\n"
    assert node.push(lambda one: setattr(one.metadata, field, value)).status_code == 404
    assert node.replies() == []


def test_an_app_cannot_delete_what_the_node_is_about_to_send(either: Node) -> None:
    either.start()
    either.push()
    (said,) = either.replies()
    asked = message_pb2.ConfirmMessageReceivedRequest(message_object_id=said.message_id)
    either.post("confirm-message-received", asked)
    assert (either.state.object_store.get(said.message_id) is not None) is either.guarded


def test_a_task_is_not_done_before_its_reply(either: Node) -> None:
    either.start()
    assert either.end().status_code == (404 if either.guarded else 200)
    # Flower answers for an app that is gone, but not for one that said that it is done.
    assert (either.state.get_task_by_token(either.token) is not None) is either.guarded
    if either.guarded:
        either.push()
        context = context_to_proto(Context(RUN, NODE, {}, RecordDict(), {}))
        assert either.end(context=context).is_success


def test_an_object_that_belongs_to_no_reply_is_not_stored(node: Node) -> None:
    node.start()
    name = sha256(b"data").hexdigest()
    for session in ("", "made up"):
        assert pushed(node, name, b"data", session_id=session) == 404
    assert node.state.object_store.get(name) is None


def pushed(node: Node, name: str, content: bytes, **more: Any) -> int:
    sent = {"run_id": RUN, "object_id": name, "object_content": content, **more}
    return int(node.post("push-object", message_pb2.PushObjectRequest(**sent)).status_code)


def replied(node: Node) -> str:
    """Say what a reply's objects are; return the name of one without others below it."""
    node.start()
    assert node.push().is_success
    assert node.reply is not None
    (record,) = node.reply.content.values()
    return str(record.object_id)


def test_an_object_is_read_only_as_its_tree_says(node: Node) -> None:
    """Flower takes a head of 7 MB apart into millions of texts; here no name of it is read."""
    name = replied(node)
    assert pushed(node, name, b"ConfigRecord  4\0data") == 200
    heads = (b"Array " + b"ab," * 100, b"Array " + b"f" * 64 + b" 0", b"ConfigRecord  " * 9, b"")
    for content in (head + b"\0data" for head in heads):
        assert pushed(node, name, content) == 404
        assert pushed(node, sha256(content).hexdigest(), content) == 404


def test_no_more_bytes_than_a_replys_are_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_api, "_MODEL", 1_000_000)
    name = replied(node)
    content = b"ConfigRecord  0\0" + bytes(300_000)
    found = [pushed(node, name, content) for _ in range(5)]
    assert found == [200, 200, 200, 404, 404]
    node.receive()  # of each message anew
    assert pushed(node, replied(node), content) == 200


@pytest.mark.parametrize("name", ["send-task-heartbeat", "pull-task-input", "pull-messages"])
def test_a_call_without_content_has_none(name: str, node: Node) -> None:
    node.receive()
    assert node.send(name, bytes(100_000)).status_code == 404


def test_calls_wait_around_a_fixed_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_api, "QUIET", 0.1)
    layer, sent = AppCalls(), threading.Event()
    seen: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(time.monotonic())

    async def ask() -> None:
        around = layer.around(app)
        await around({"type": "lifespan"}, None, None)
        layer.quiet(time.monotonic() + 0.15, sent)
        threading.Timer(0.3, sent.set).start()
        for _ in range(60):
            await around({"type": "http", "method": "GET", "path": "/health"}, None, None)
            await asyncio.sleep(0.01)

    begun = time.monotonic()
    asyncio.run(ask())
    assert [one for one in seen if 0.15 < one - begun < 0.29] == []
    assert max(seen) - begun > 0.3


@pytest.mark.parametrize("name", ["confirm-message-received", "push-messages"])
def test_what_is_no_call_is_refused(name: str, node: Node) -> None:
    node.start()
    for content in (b"", b"\xff" * 50, b"x" * 70_000_000):
        assert node.send(name, content).status_code == 404


def test_a_token_that_flower_does_not_know_is_remembered_by_nobody(node: Node) -> None:
    node.receive()
    for number in range(50):
        asked = runtime_pb2.PullAppMessagesRequest()
        assert node.post("pull-messages", asked, token=f"made up {number}").is_error
    assert len(node.calls._tasks) == 0
    for number in range(1100):
        node.calls._tasks[b"%d" % number] = node.calls._tasks.get(b"", None)  # type: ignore[assignment]
    node.pull()
    assert len(node.calls._tasks) == 1024


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("HEAD", "/health", 200),
        ("POST", "/health", 404),
        ("GET", "/docs", 404),
        ("GET", "/openapi.json", 404),
        ("GET", "/v1/runtime/push-object", 404),
        ("POST", "/v1/runtime/responses", 404),
        ("POST", "/v1/runtime//push-object", 404),
        ("POST", "/v1/runtime/push-object/", 404),
        ("POST", "push-object", 404),
    ],
)
def test_paths(method: str, path: str, status: int, node: Node) -> None:
    assert node.client.request(method, path).status_code == status


@pytest.mark.parametrize(("name", "kept"), [("acquire-task", True), ("push-object", False)])
def test_an_app_names_no_trace(name: str, kept: bool) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    client = Client(AppCalls().around(app))
    client.request("POST", f"/v1/runtime/{name}", {"Traceparent": "00-data-data-01"})
    assert ((b"traceparent", b"00-data-data-01") in seen) is kept


def test_an_attempt_is_written_down_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.start()
    with caplog.at_level(logging.WARNING, "flower_ldp"):
        for _ in range(20):
            node.post("push-logs", LOGS)
    names = [record.name for record in caplog.records if record.levelno >= logging.WARNING]
    assert names == ["flower_ldp"]
