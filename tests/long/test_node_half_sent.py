"""An app that dies or stalls at any step: one report leaves, and the node takes the next message.

Flower's own loop is the control: each step that stops it for good does so here.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flwr.supercore.object_store.in_memory_object_store as store
import pytest
import uvicorn
from flwr.app import Message
from flwr.proto import message_pb2, runtime_pb2
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

from flower_ldp.node import reply_wait
from tests.fixtures import message, proposal
from tests.node_loop import App, Site, running, until
from tests.unit.node.test_guard import LENGTH, MODEL, SignDS, counted, entries, payload


def ask(number: int) -> Message:
    one = message(proposal(MODEL, SignDS(epsilon=2.0, k=0.2)), message_id=f"m-{number}")
    one.metadata.ttl = 3_600.0 + number  # another identity: it is a digest
    return one


def took_no_message(app: App) -> None:
    app.die()


def announced_and_sent_nothing(app: App) -> None:
    app.pull()
    app.announce()
    app.die()


def sent_some_objects(app: App) -> None:
    app.pull()
    app.announce()
    app.push(2)
    app.die()


def sent_all_but_one(app: App) -> None:
    app.pull()
    app.announce()
    app.push(len(app.wanted) - 1)
    app.die()


def confirmed_nothing_and_sent_some(app: App) -> None:
    app.pull(confirm=False)
    app.announce()
    app.push(1)
    app.die()


def said_that_it_is_done_with_half(app: App) -> None:
    """As Flower's own client does when it is asked to end, or cannot send an object."""
    app.pull()
    app.announce()
    app.push(1)
    assert app.end().is_success


def took_its_message(app: App) -> None:
    app.pull()
    app.die()


def announced_what_has_no_name(app: App) -> None:
    def change(tree: Any) -> None:
        tree.children[0].object_id = "canary"

    app.pull()
    assert app.announce(change).status_code == 404
    guarded, app.site.client = app.site.client, app.site.plain
    assert app.again().is_server_error  # Flower keeps the reply all the same
    app.site.client = guarded
    app.die()


BLOCKS = [
    took_no_message,
    announced_and_sent_nothing,
    sent_some_objects,
    sent_all_but_one,
    confirmed_nothing_and_sent_some,
    said_that_it_is_done_with_half,
]
Way = Callable[[App], None]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("way", BLOCKS)
def test_flowers_own_loop_waits_for_ever(
    way: Way, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.link.waiting += [ask(1), ask(2)]
    with running(site, monkeypatch, guarded=False):
        way(site.start())
        time.sleep(0.3)
        assert len(site.link.waiting) == 1
        assert site.link.sent == []


@pytest.mark.parametrize("way", [*BLOCKS, took_its_message, announced_what_has_no_name])
def test_an_app_that_dies_is_answered_for_and_the_next_message_is_taken(
    way: Way, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(1)
    site.link.waiting += [first, ask(2)]
    with running(site, monkeypatch):
        way(site.start())
        until(lambda: len(site.link.sent) == 1)
        assert site.link.sent[0].metadata.reply_to_message_id == first.metadata.message_id
        assert len(payload(site.link.sent[0])) == LENGTH
        assert counted(tmp_path) == {"failed": 1}
        site.start().answer()
        until(lambda: len(site.link.sent) == 2)
        assert len(payload(site.link.sent[1])) == LENGTH
        assert counted(tmp_path) == {"failed": 1}  # the second is the app's own
        until(site.is_empty)
    assert entries(tmp_path) == 2
    assert len(site.link.sent) == 2


def test_an_app_that_dies_after_its_last_object_has_answered(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.link.waiting += [ask(1), ask(2)]
    with running(site, monkeypatch):
        for number in (1, 2):
            app = site.start()
            app.pull(confirm=False)
            app.announce()
            app.push()
            app.die()
            until(lambda: len(site.link.sent) == number)  # noqa: B023
        # A message that nobody confirmed is kept until the next one comes.
        site.link.waiting.append(ask(3))
        site.start().answer()
        until(lambda: len(site.link.sent) == 3)
        until(site.is_empty)
    assert counted(tmp_path) == {}


def test_an_app_that_lives_and_sends_nothing_more_is_dropped(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(reply_wait, "time", SimpleNamespace(monotonic=lambda: now))
    site.link.waiting += [ask(1), ask(2)]
    with running(site, monkeypatch):
        app = site.start()
        app.pull()
        app.announce()
        for _ in range(3):  # as long as something comes, it is waited for
            time.sleep(0.2)
            now += 0.9 * reply_wait.SILENCE
            assert app.push(1) == [True]
        time.sleep(0.2)
        assert site.link.sent == []
        now += 1.1 * reply_wait.SILENCE
        until(lambda: len(site.link.sent) == 1)
        assert not app.beat()
        assert counted(tmp_path) == {"failed": 1}
        # It goes on as if nothing were: nothing of it is taken.
        assert app.again().is_error
        assert not any(app.push())
        site.start().answer()
        until(lambda: len(site.link.sent) == 2)
    assert counted(tmp_path) == {"failed": 1}


@pytest.mark.parametrize("step", ["not taken", "taken", "half sent"])
def test_after_the_fixed_moment_no_app_is_waited_for(
    step: str, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(1)
    site.link.waiting += [first, ask(2)]
    with running(site, monkeypatch):
        late = site.start()
        if step != "not taken":
            late.pull()
        if step == "half sent":
            late.announce()
            late.push(2)
        site.guard._due(first.metadata.message_id)  # as the gate says that the moment has come
        assert len(site.link.sent) == 1
        app = site.start()
        # The late one cannot take the message of the next, nor answer it.
        found = late.post("pull-messages", runtime_pb2.PullAppMessagesRequest())
        assert found.is_error
        if step == "half sent":
            assert late.again().is_error
        app.answer()
        until(lambda: len(site.link.sent) == 2)
        until(site.is_empty)
    assert counted(tmp_path) == {"failed": 1}


def test_the_same_objects_may_answer_the_next_message(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.link.waiting += [ask(1), ask(2)]
    with running(site, monkeypatch):
        first = site.start()
        first.pull()
        first.announce()
        until(lambda: first.push(1) == [True])
        first.die()
        until(lambda: len(site.link.sent) == 1)
        second = site.start()
        second.answer()  # the arrays are the same, so are their names
        assert set(first.objects) & set(second.objects)
        until(lambda: len(site.link.sent) == 2)
        until(site.is_empty)
    assert counted(tmp_path) == {"failed": 1}


def test_a_reply_that_is_said_again_is_none_to_the_next_message(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.link.waiting.append(ask(1))
    with running(site, monkeypatch):
        first = site.start()
        first.pull()
        first.announce()
        first.push()
        until(lambda: len(site.link.sent) == 1 and not site.state.msg_store)
        assert first.again().is_success  # it is the open message still
        site.link.waiting.append(ask(2))
        second = site.start()
        time.sleep(0.1)
        assert len(site.link.sent) == 1
        second.answer()
        until(lambda: len(site.link.sent) == 2)
        until(site.is_empty)
    assert counted(tmp_path) == {}


def test_calls_that_never_end_hold_up_nobody(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over real sockets: more open calls than the API has threads."""
    server = uvicorn.Server(uvicorn.Config(site.api, port=0, ws="none", log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    site.link.waiting += [ask(1), ask(2)]
    opened = []
    try:
        with running(site, monkeypatch):
            app = site.start()
            app.pull()
            app.announce()
            for number in range(60):
                name = ("push-object", "push-messages")[number % 2]
                one = socket.create_connection(("127.0.0.1", port))
                one.sendall(
                    f"POST /v1/runtime/{name} HTTP/1.1\r\nhost: a\r\n"
                    f"flwr-task-token: {app.token}\r\ncontent-length: 1000\r\n\r\n".encode()
                )
                one.sendall(b"half")
                opened.append(one)
            app.die()
            until(lambda: len(site.link.sent) == 1)
            site.start().answer()
            until(lambda: len(site.link.sent) == 2)
    finally:
        for one in opened:
            one.close()
        server.should_exit = True
        thread.join(20)
    assert counted(tmp_path) == {"failed": 1}


def test_a_tree_is_taken_in_whole_while_the_app_drops_its_message(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is below an object of the reply is gone, and the node ends when it frees that."""

    def shared(tree: Any) -> None:
        """Say that two new objects have the same one of the message's below them."""
        for upper in "ab":
            tree.children.add(object_id=upper * 64).children.add(object_id=leaf)

    def slowly(tree: Any) -> Iterator[Any]:
        for one in iterate_object_tree(tree):
            if one.object_id == "a" * 64 and not dropping:
                dropping.append(threading.Thread(target=drop))
                dropping[0].start()
                dropping[0].join(0.5)
            yield one

    def drop() -> None:
        done = message_pb2.ConfirmMessageReceivedRequest(message_object_id=name)
        assert app.post("confirm-message-received", done).is_success

    dropping: list[threading.Thread] = []
    site.link.waiting += [ask(1), ask(2)]
    with running(site, monkeypatch):
        app = site.start()
        app.pull(confirm=False)
        assert app.message is not None
        name = app.message.metadata.message_id
        leaf = next(iterate_object_tree(site.state.object_store.get_object_tree(name))).object_id
        monkeypatch.setattr(store, "iterate_object_tree", slowly)
        app.announce(shared)
        app.again()
        dropping[0].join()
        assert app.end().is_success
        until(lambda: len(site.link.sent) == 1)
        site.start().answer()
        until(lambda: len(site.link.sent) == 2)
        until(site.is_empty)
    assert counted(tmp_path) == {"failed": 1}


def knotted(tree: Any, knots: int = 16) -> None:
    """Say of each of some objects that it is twice below the next: short, and long as a tree."""
    leaf = tree.children[0].object_id[:-2]
    for number in range(1, knots + 1):
        knot = tree.children.add(object_id=f"{leaf}{number:02x}")
        for _ in range(2):
            knot.children.add(object_id=f"{leaf}{number - 1:02x}")


def below_the_message(tree: Any, name: str) -> None:
    """Say of an object of the message that it has nothing below it, many times."""
    for _ in range(50):
        tree.children.add(object_id=name)


def test_a_short_tree_that_is_a_long_one_is_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's node writes it out whole, at which it ends."""
    site.link.waiting += [ask(1), ask(2)]
    with running(site, monkeypatch):
        app = site.start()
        app.pull(confirm=False)
        assert app.message is not None
        name = app.message.metadata.message_id
        for change in (knotted, lambda tree: below_the_message(tree, name)):
            assert app.announce(change).status_code == 404
        # Nor can it say one thing first and another thing then.
        assert app.announce().is_success
        (tree,) = app.announced.message_object_trees
        tree.children.pop()
        assert app.again().status_code == 404
        assert all(app.push())
        until(lambda: len(site.link.sent) == 1)
    assert counted(tmp_path) == {}


def test_flowers_own_node_writes_such_a_tree_out(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.link.waiting.append(ask(1))
    taken: list[Any] = []
    monkeypatch.setattr(reply_wait.WaitingState, "_take", lambda _, __, one: taken.append(one))
    with running(site, monkeypatch):
        app = site.start()
        app.pull()
        site.client = site.plain
        # 16 knots are refused above; fewer show here that each doubles what is written out.
        assert app.announce(lambda tree: knotted(tree, 11)).is_success
        assert len(app.announced.SerializeToString()) < 8_000
        name = app.announced.message_object_trees[0].object_id
        assert len(list(iterate_object_tree(site.state.object_store.get_object_tree(name)))) > 2**11
