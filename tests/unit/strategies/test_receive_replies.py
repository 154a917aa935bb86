"""Replies are collected until the deadline, and one that stays away holds up no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import cast

import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flower_ldp.strategies import GridExchange, grid_with_deadlines
from flower_ldp.strategies.deadlines import GROUPS, send_and_receive
from tests.fixtures import message


class ManyNodes:
    """A grid as Flower's: a pull hands out what was announced, once, when all of it is complete.

    A message's content says nothing; its node says how it is answered: ``after`` seconds, and
    complete at once unless the node is among the ``dying``.
    """

    def __init__(self, dying: Iterable[int] = (), after: float = 0.0) -> None:
        self.dying, self.after = frozenset(dying), after
        self.given_up = threading.Event()
        self.handed_out: list[str] = []
        self.pulls = 0
        self._sent: dict[str, tuple[Message, float]] = {}
        self._lock = threading.Lock()

    def push_messages(self, messages: list[Message]) -> list[str]:
        now = time.monotonic()
        self._sent = {f"to {one.metadata.dst_node_id}": (one, now) for one in messages}
        return list(self._sent)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        with self._lock:
            self.pulls += 1
            ready = [
                name
                for name in message_ids
                if time.monotonic() >= self._sent[name][1] + self.after
                and name not in self.handed_out
            ]
            self.handed_out += ready
        asked = [self._sent[name][0] for name in ready]
        if any(one.metadata.dst_node_id in self.dying for one in asked):
            self.given_up.wait()
        return [reply(one, name) for one, name in zip(asked, ready, strict=True)]


def reply(to: Message, message_id: str) -> Message:
    """Return an empty reply to the message that the grid knows by this name."""
    return message(RecordDict(), node=to.metadata.dst_node_id, reply=True, to=message_id)


@pytest.fixture
def dying() -> Iterator[ManyNodes]:
    """Three nodes, of which the second announces a reply and dies."""
    grid = ManyNodes(dying=[2])
    yield grid
    grid.given_up.set()


def messages(nodes: int) -> list[Message]:
    return [message(RecordDict(), node=node) for node in range(1, nodes + 1)]


def nodes_of(replies: Iterable[Message]) -> list[int]:
    return sorted(reply.metadata.src_node_id for reply in replies)


def test_all_replies_come_back_once() -> None:
    grid = ManyNodes(after=0.3)
    count = 2 * GROUPS + 5
    replies = send_and_receive(cast(Grid, grid), messages(count))
    assert nodes_of(replies) == list(range(1, count + 1))
    assert len(grid.handed_out) == count
    assert grid.pulls > GROUPS  # asked again until they were there


def test_a_reply_that_is_never_complete_is_missing_at_the_deadline(dying: ManyNodes) -> None:
    before = time.monotonic()
    replies = send_and_receive(cast(Grid, dying), messages(3), timeout=1.0)
    assert nodes_of(replies) == [1, 3]
    assert time.monotonic() - before < 60.0  # the grid would wait for ever
    assert sorted(dying.handed_out) == ["to 1", "to 2", "to 3"]


def test_a_reply_that_is_complete_late_counts_if_it_is_in_time(dying: ManyNodes) -> None:
    threading.Timer(0.7, dying.given_up.set).start()
    replies = send_and_receive(cast(Grid, dying), messages(3), timeout=60.0)
    assert nodes_of(replies) == [1, 2, 3]


def test_nobody_is_asked_after_the_deadline() -> None:
    grid = ManyNodes(after=3_600.0)
    before = time.monotonic()
    assert send_and_receive(cast(Grid, grid), messages(3), timeout=0.5) == []
    assert time.monotonic() - before >= 0.5
    pulls = grid.pulls
    assert send_and_receive(cast(Grid, grid), messages(3), timeout=0.0) == []
    assert grid.pulls == pulls


def test_what_asking_raises_is_raised() -> None:
    class Broken(ManyNodes):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            raise ConnectionError("the SuperLink is gone")

    with pytest.raises(ConnectionError, match="SuperLink is gone"):
        send_and_receive(cast(Grid, Broken()), messages(2))


def test_without_messages_nobody_waits() -> None:
    assert send_and_receive(cast(Grid, ManyNodes()), []) == []


def test_a_round_and_a_step_are_collected_so(
    dying: ManyNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = grid_with_deadlines(cast(Grid, dying), 60.0).send_and_receive(
        messages(3), timeout=1.0
    )
    assert nodes_of(replies) == [1, 3]
    dying.handed_out.clear()
    # Flower makes messages only within a run.
    monkeypatch.setattr(
        "flower_ldp.strategies.split_exchange.Message",
        lambda content, dst_node_id, message_type: message(
            content, node=dst_node_id, kind=message_type
        ),
    )
    exchange = GridExchange(cast(Grid, dying), timeout=1.0)
    found = exchange.ask("query", {node: RecordDict() for node in (1, 2, 3)})
    assert sorted(found) == [1, 3]


def test_a_grid_that_keeps_time_limits_is_asked_once() -> None:
    limits: list[float | None] = []

    class Keeping(ManyNodes):
        keeps_time_limits = True

        def send_and_receive(
            self, sent: Iterable[Message], *, timeout: float | None = None
        ) -> list[Message]:
            limits.append(timeout)
            return [reply(one, f"to {one.metadata.dst_node_id}") for one in sent]

    grid = Keeping()
    patient = grid_with_deadlines(cast(Grid, grid), 60.0)
    assert len(list(patient.send_and_receive(messages(3), timeout=7.0))) == 3
    assert (limits, grid.pulls) == ([7.0], 0)
