"""A SuperNode's own loop in a thread, behind the guard, with apps that stop where a test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flwr.supernode.start_client_internal as worker
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import context_to_proto, message_from_proto, message_to_proto
from flwr.proto import message_pb2, runtime_pb2
from flwr.supercore.constant import TASK_TOKEN_HEADER
from flwr.supercore.fab import Fab
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate import NodeStateFactory

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import LdpMod, OwnerAuthorizer, SignDSRelease
from flower_ldp.node import flower_api
from flower_ldp.node.flower_api import Setup, object_ids
from flower_ldp.node.guard import Guard
from flower_ldp.node.runtime_api import AppCalls
from tests.fixtures import record
from tests.unit.node.test_guard import POLICY, TRAINED, Link, packed
from tests.unit.node.test_runtime_api import FAB, Client, flower_runtime_api, stored_run

RUN = 3
PATIENCE = 20.0


class Ended(BaseException):
    """The test is over."""


def until(true: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            raise AssertionError("it did not come")
        time.sleep(0.005)


class Site:
    """A node whose loop runs, and its link's far end."""

    def __init__(self, tmp_path: Path) -> None:
        (tmp_path / "policy.yaml").write_text(POLICY)
        Ledger.open(tmp_path / "ledger.sqlite", create=True).close()
        self.link = Link()
        gate = LdpMod(train=SignDSRelease(), authorizer=OwnerAuthorizer())
        config: Any = {"ldp-policy": str(tmp_path / "policy.yaml")}
        self.calls = AppCalls()
        self.guard = Guard(self.link.channel(), gate, config, hides=True, calls=self.calls)
        self.factory = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
        self.state: Any = self.factory.state()
        self.state.store_fab(Fab(FAB, b"content", {}))
        self.state.store_run(stored_run(RUN))
        self.state.set_run_series_context(RUN, Context(RUN, 7, {}, RecordDict(), {}))
        plain = flower_runtime_api(self.factory)
        self.api = self.calls.around(plain)
        self.client, self.plain = Client(self.api), Client(plain)
        self.apps = 0
        self._over = threading.Event()

    def sleep(self, seconds: float) -> None:
        """Stand for the loop's sleep: short, and its end."""
        if self._over.is_set():
            raise Ended
        time.sleep(min(seconds, 0.01))

    def start(self) -> Any:
        """Wait for the next message's task, as an executor does, and return its app."""
        until(lambda: bool(self.state.get_tasks(statuses=["pending"])))
        (task,) = self.state.get_tasks(statuses=["pending"])
        until(lambda: len(self.state.msg_store) > 0)
        self.apps += 1
        app = App(self, task.task_id, self.state.claim_task(task.task_id))
        assert app.post("pull-task-input", runtime_pb2.PullTaskInputRequest()).is_success
        return app

    def is_empty(self) -> bool:
        """Return whether the node holds nothing of any message."""
        return not self.state.msg_store and not len(self.state.object_store)


class App:
    """The app of one message, which does what the test says."""

    def __init__(self, site: Site, task: int, token: str) -> None:
        self.site, self.task, self.token = site, task, token
        self.session = ""
        self.wanted: list[str] = []
        self.objects: dict[str, bytes] = {}
        self.message: Message | None = None

    def post(self, name: str, asked: Any) -> Any:
        headers = {"content-type": "application/protobuf", TASK_TOKEN_HEADER: self.token}
        path = f"/v1/runtime/{name}"
        return self.site.client.request("POST", path, headers, asked.SerializeToString())

    def pull(self, *, confirm: bool = True) -> None:
        """Take the message and its objects."""
        found = self.post("pull-messages", runtime_pb2.PullAppMessagesRequest())
        found = runtime_pb2.PullAppMessagesResponse.FromString(found.content)
        self.message = message_from_proto(found.messages_list[0])
        (tree,) = found.message_object_trees

        def there(name: str) -> bool:
            asked = message_pb2.PullObjectRequest(object_id=name)
            one = message_pb2.PullObjectResponse.FromString(self.post("pull-object", asked).content)
            return bool(one.object_available)

        for name in object_ids(tree):
            until(lambda name=name: there(name))  # type: ignore[misc]
        if confirm:
            done = message_pb2.ConfirmMessageReceivedRequest(message_object_id=tree.object_id)
            assert self.post("confirm-message-received", done).is_success

    def announce(self, change: Callable[[Any], None] = lambda tree: None) -> Any:
        """Say which objects the reply has."""
        assert self.message is not None
        reply = Message(RecordDict({"a": record(TRAINED)}), reply_to=self.message)
        tree, self.objects = packed(reply)
        change(tree)
        sent = message_to_proto(reply)
        asked = runtime_pb2.PushAppMessagesRequest(messages_list=[sent])
        asked.message_object_trees.append(tree)
        self.announced = asked
        return self.again()

    def again(self) -> Any:
        """Say it once more."""
        found = self.post("push-messages", self.announced)
        if found.is_success:
            said = runtime_pb2.PushAppMessagesResponse.FromString(found.content)
            self.session, self.wanted = said.session_id, list(said.objects_to_push)
        return found

    def push(self, number: int | None = None) -> list[bool]:
        """Send the next objects, all of them by default; return which were stored."""
        names = self.wanted[: len(self.wanted) if number is None else number]
        self.wanted = self.wanted[len(names) :]
        stored = []
        for name in names:
            asked = message_pb2.PushObjectRequest(
                run_id=RUN, session_id=self.session, object_id=name
            )
            asked.object_content = self.objects[name]
            found = self.post("push-object", asked)
            said = message_pb2.PushObjectResponse
            stored.append(found.is_success and said.FromString(found.content).stored)
        return stored

    def beat(self) -> bool:
        """Say that it is alive; return whether Flower knows it."""
        found = self.post("send-task-heartbeat", runtime_pb2.SendTaskHeartbeatRequest())
        return bool(found.is_success)

    def end(self) -> Any:
        """Say that the task is done."""
        asked = runtime_pb2.PushTaskOutputRequest(sub_status="completed")
        asked.context.CopyFrom(context_to_proto(Context(RUN, 7, {}, RecordDict(), {})))
        return self.post("push-task-output", asked)

    def die(self) -> None:
        """Be silent for so long that Flower takes the app for dead."""
        self.site.state.task_token_store[self.task].active_until = datetime(2000, 1, 1, tzinfo=UTC)

    def answer(self) -> None:
        """Do all that an honest app does."""
        self.pull()
        assert self.announce().is_success
        assert all(self.push())
        assert self.end().is_success


@contextmanager
def running(site: Site, monkeypatch: pytest.MonkeyPatch, *, guarded: bool = True) -> Iterator[Site]:
    """Run the loop, started as the command starts it; or Flower's own, with the guard alone."""

    @contextmanager
    def connect(*_: Any, **__: Any) -> Iterator[Any]:
        def send(message: Any, object_tree: Any, clientapp_runtime: float) -> Any:
            return site.link._send(message, object_tree, clientapp_runtime)

        yield tuple(site.link.channel()._replace(send=send))

    @contextmanager
    def plainly(*_: Any, **__: Any) -> Iterator[Any]:
        yield tuple(site.guard.channel())

    def start() -> None:
        flower_api._command.start_client_internal(
            node_config={},
            state_factory=site.factory,
            server_address="",
            insecure=True,
            isolation="process",
        )

    def run() -> None:
        try:
            if guarded:
                flower_api.run_supernode(prepare)
            else:
                start()
        except Ended:
            pass

    def prepare(_: Any) -> Setup:
        def guard(_: Any, opened: Any) -> flower_api.Channel:
            site.guard.opened = opened
            return site.guard.channel()

        return Setup(guard, {})

    def stop(reason: str) -> Any:
        raise AssertionError(reason)

    monkeypatch.setattr(flower_api, "stop", stop)
    monkeypatch.setattr(worker, "time", SimpleNamespace(sleep=site.sleep))
    monkeypatch.setattr(worker, "register_signal_handlers", lambda **_: None)
    monkeypatch.setattr(worker, "_init_connection", connect if guarded else plainly)
    monkeypatch.setattr(worker, "start_client_internal", worker.start_client_internal)
    whole = worker.start_client_internal
    monkeypatch.setattr(flower_api._command, "start_client_internal", whole)
    monkeypatch.setattr(flower_api._command, "flower_supernode", start)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site._over.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()
