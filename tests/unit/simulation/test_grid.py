"""The grid with one worker: threads that pull at the same time, and apps that fail."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from tests.unit.simulation.apps import ask_all, asked, client, messages, numbers, partition


def test_an_exception_has_one_traceback_and_is_an_error_reply(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Message, context: Context) -> int:
        if partition(context) == 0:
            raise ZeroDivisionError("of partition 0")
        if partition(context) == 1:
            raise SystemExit("an app that ends its program")
        return 7

    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.ERROR, "flwr"):
        found = asked(client(fail), ask_all, 3)
    assert found == {0: "error 2", 1: "error 2", 2: 7}
    traces = ["".join(traceback.format_exception(*one.exc_info)) for one in caplog.records]  # type: ignore[misc]
    assert [one.count("Traceback") for one in traces] == [1, 1]
    assert "partition 0" in caplog.records[0].getMessage()
    assert "ZeroDivisionError: of partition 0" in traces[0]


class _NamelessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("there is no text")


@pytest.mark.parametrize("options", [{}, {"strict": False}, {"workers": 2}], ids=str)
@pytest.mark.parametrize(
    "error", [FileNotFoundError("\udcff.csv"), _NamelessError()], ids=["half a letter", "nameless"]
)
def test_an_exception_whose_text_cannot_be_sent_is_an_error_reply_too(
    error: Exception, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    # Test processes could not send the log's text to each other either.
    caplog.set_level(logging.CRITICAL, logger="flwr")

    def fail(_: Message, __: Context) -> int:
        raise error

    def ask(grid: Grid) -> list[tuple[int, bool]]:
        replies = grid.send_and_receive(messages(grid.get_node_ids()))
        return [(one.error.code, type(error).__name__ in one.error.reason) for one in replies]

    assert asked(client(fail), ask, 2, **options) == [(2, True)] * 2


def test_what_is_no_reply_to_the_message_is_an_error() -> None:
    app = ClientApp()
    before: list[Message] = []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        before.append(message)
        if partition(context) == 0:
            return message
        return Message(RecordDict(), reply_to=before[0])

    assert asked(app, ask_all, 2) == {0: "error 2", 1: "error 2"}


@pytest.mark.parametrize("workers", [1, 2])
def test_threads_that_pull_the_same_messages_get_each_reply_once(workers: int) -> None:
    def ask(grid: Grid) -> list[int]:
        names = list(grid.push_messages(messages(grid.get_node_ids())))
        found: list[int] = []

        def pull(offset: int) -> None:
            mine = names[offset:] + names[:offset]
            while len(found) < len(names):
                found.extend(one.metadata.src_node_id for one in grid.pull_messages(mine))

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(pull, range(8)))
        return sorted(found)

    found = asked(client(lambda message, context: 0), ask, 40, workers=workers)
    assert found == list(range(1_000_000, 1_000_040))


def test_a_thread_does_not_wait_beyond_its_time_for_another_threads_app() -> None:
    begun, leave = threading.Event(), threading.Event()

    def wait(_: Message, context: Context) -> int:
        begun.set()
        return int(leave.wait(10))

    def ask(grid: Grid) -> tuple[float, int, dict[int, float | str]]:
        first, second = grid.get_node_ids()
        with ThreadPoolExecutor(1) as thread:
            other = thread.submit(grid.send_and_receive, messages([first]))
            begun.wait(10)
            start = time.monotonic()
            mine = list(grid.send_and_receive(messages([second]), timeout=0.05))
            took = time.monotonic() - start
            leave.set()
            return took, len(mine), numbers(other.result())

    took, mine, other = asked(client(wait), ask, 2)
    assert took < 5
    assert mine == 0
    assert other == {0: 1}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_reply_after_the_messages_time_to_live_is_none(workers: int) -> None:
    def ask(grid: Grid) -> dict[int, float | str]:
        (node,) = grid.get_node_ids()
        return numbers(grid.send_and_receive([Message(RecordDict(), node, "train", ttl=0.1)]))

    app = client(lambda message, context: time.sleep(0.15) or 0)
    assert asked(app, ask, 1, workers=workers) == {0: "error 3"}


def test_messages_are_worked_on_in_the_order_they_were_sent_whoever_asks() -> None:
    order: list[int] = []

    def ask(grid: Grid) -> list[int]:
        nodes = list(grid.get_node_ids())
        first = list(grid.push_messages(messages(nodes[::2])))
        second = list(grid.push_messages(messages(nodes[1::2])))
        assert len(list(grid.pull_messages(second))) == len(second)
        assert len(list(grid.pull_messages(first))) == len(first)
        return order

    app = client(lambda message, context: order.append(partition(context)) or 0)
    assert asked(app, ask, 6) == [0, 2, 4, 1, 3, 5]


_FORGETS: list[int] = []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_workers_begin_where_a_fork_takes_the_signals_pipe_away() -> None:
    """As asyncio does from Python 3.12 on, in every process that is forked."""
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1) if _FORGETS else None)
    _FORGETS.append(1)

    try:
        done = asked(client(lambda message, context: 0), ask_all, 2, workers=2)
    finally:
        _FORGETS.clear()
    assert done == {0: 0, 1: 0}
