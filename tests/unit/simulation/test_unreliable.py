"""Nodes that are away, slow, or lose replies: what a server app sees of them, and when."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.server.superlink.linkstate.utils import (
    check_node_availability_for_in_message,
    verify_message_ids,
)
from flwr.serverapp import Grid

from flower_ldp.simulation import Fate, Faults
from tests.unit.simulation import apps
from tests.unit.simulation.apps import client, count_calls, partition

EXPIRED, GONE = 3, 5
FIRST, SECOND, THIRD = 0, 1, 2


def asked(faults: Faults, ask: Any, worked: list[int] | None = None) -> Any:
    """Run a server app that asks three nodes, and return what that gave; note who has worked."""

    def work(message: Message, context: Context) -> int:
        if worked is not None:
            worked.append(partition(context))
        return count_calls(message, context)

    return apps.asked(client(work), ask, 3, faults=faults)


def to(*parts: int, ttl: float | None = None) -> list[Message]:
    return [Message(RecordDict(), 1_000_000 + part, "train", ttl=ttl) for part in parts]


def number(reply: Message) -> tuple[int, object]:
    return reply.metadata.src_node_id - 1_000_000, reply.content["m"]["n"]  # type: ignore[index]


def seen(replies: Any) -> list[object]:
    """Return what each reply says: the partition and its count, or the error's code."""
    return [one.error.code if one.has_error() else number(one) for one in replies]


@pytest.fixture(autouse=True)
def no_time_passes() -> Iterator[None]:
    """Hold every test to the promise that waiting costs nothing."""
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < 10.0


def test_who_is_away_is_not_among_the_nodes_and_is_back_in_its_turn() -> None:
    def ask(grid: Grid) -> list[list[int]]:
        found = []
        for _ in range(3):
            found.append([node - 1_000_000 for node in grid.get_node_ids()])
            grid.push_messages(to(FIRST))
        return found

    assert asked(Faults(schedule={1: {2}}.get), ask) == [[0, 1, 2], [2], [0, 1, 2]]


def test_who_waits_for_nodes_gets_others() -> None:
    def ask(grid: Grid) -> list[list[int]]:
        return [[node - 1_000_000 for node in grid.get_node_ids()] for _ in range(5)]

    schedule = {0: {0}, 1: {1}}.get
    assert asked(Faults(schedule=schedule), ask) == [[0], [0], [0], [1], [0, 1, 2]]


def test_a_push_belongs_to_the_looks_before_it_and_is_a_turn_without_one() -> None:
    turns: list[int] = []

    def ask(grid: Grid) -> None:
        for _ in range(2):
            for _ in range(3):
                grid.get_node_ids()
            assert list(grid.send_and_receive([])) == []
            grid.send_and_receive(to(FIRST))
        grid.send_and_receive(to(FIRST))

    asked(Faults(schedule=turns.append), ask)
    assert turns == [0, 1, 2]


def first_is(**fate: Any) -> Faults:
    return Faults(plan=lambda part, _: Fate(**fate) if part == FIRST else None)


BOTH = (FIRST, SECOND)
FIRST_IS_AWAY = Faults(schedule={0: {1}}.get)


@pytest.mark.parametrize(
    ("faults", "parts", "limits", "found", "has_worked"),
    [
        (FIRST_IS_AWAY, BOTH, (60.0, None), [[GONE, (1, 1)], [(0, 1), (1, 2)]], [1, 0, 1]),
        (Faults(slow=1.0), (FIRST,), (60.1, None), [[(0, 1)], [(0, 2)]], [0, 0]),
        (first_is(lost=True), BOTH, (60.0, None), [[(1, 1)], [EXPIRED, (1, 2)]], [0, 1, 0, 1]),
        (first_is(leaves=True), BOTH, (59.0, 61.0), [[(1, 1)], [GONE, (1, 2)]], [1, 1]),
        (Faults(lost=0.0), (FIRST, 7), (None,), [[(0, 1), GONE]], [0]),
    ],
    ids=["away", "slow but in time", "lost until it expires", "missed in a minute", "nobody"],
)
def test_what_comes_of_messages_within_time_limits_and_who_has_worked(
    faults: Faults, parts: Any, limits: Any, found: list[object], has_worked: list[int]
) -> None:
    worked: list[int] = []

    def ask(grid: Grid) -> list[object]:
        return [seen(grid.send_and_receive(to(*parts), timeout=limit)) for limit in limits]

    assert asked(faults, ask, worked) == found
    assert worked == has_worked


FIRST_IS_AWAY_WHILE_SECOND_IS_SLOW = Faults(
    schedule={0: {1}, 1: {1}}.get, plan=lambda part, _: Fate(late=100.0 * (part == SECOND))
)


@pytest.mark.parametrize(
    ("faults", "ttl", "limit", "found", "has_worked"),
    [
        (FIRST_IS_AWAY, None, None, (0, 1), [0, 1]),
        (FIRST_IS_AWAY_WHILE_SECOND_IS_SLOW, 60.0, None, EXPIRED, [1]),
        (Faults(slow=1.0), 30.0, 90.0, EXPIRED, [0, 1]),
    ],
    ids=["waits for its node", "waits too long", "its reply comes too late"],
)
def test_a_message_for_whose_reply_nobody_asks_meanwhile(
    faults: Faults, ttl: float | None, limit: float | None, found: object, has_worked: list[int]
) -> None:
    worked: list[int] = []

    def ask(grid: Grid) -> list[object]:
        names = list(grid.push_messages(to(FIRST, ttl=ttl)))
        others = seen(grid.send_and_receive(to(SECOND), timeout=limit))
        return [others, seen(grid.pull_messages(names)), seen(grid.pull_messages(names))]

    assert asked(faults, ask, worked) == [[(1, 1)], [found], []]
    assert worked == has_worked


def test_a_slow_reply_is_not_in_time_and_can_be_pulled_once() -> None:
    def ask(grid: Grid) -> list[object]:
        sent = to(FIRST, SECOND, THIRD)
        in_time = seen(grid.send_and_receive(sent, timeout=59.9))
        names = [one.metadata.message_id for one in sent]
        late = seen(grid.pull_messages(names))
        return [in_time, late, seen(grid.pull_messages(names))]

    faults = Faults(plan=lambda part, _: Fate(late=60.0 * (part == SECOND)))
    assert asked(faults, ask) == [[(0, 1), (2, 1)], [(1, 1)], []]


def test_one_pull_lets_no_more_time_pass_than_flowers_own_pause() -> None:
    def ask(grid: Grid) -> int:
        names = list(grid.push_messages(to(FIRST)))
        return next(n for n in range(100) if list(grid.pull_messages(names)))

    assert asked(Faults(slow=1.0, slow_seconds=30.0), ask) == 9  # the tenth


def test_a_slow_node_works_on_one_message_after_another() -> None:
    def ask(grid: Grid) -> list[object]:
        found = [seen(grid.send_and_receive(to(FIRST), timeout=40.0)) for _ in range(2)]
        names = grid.push_messages(to(FIRST))  # at 80 s; the node has had two, is free at 120 s
        while not (replies := list(grid.pull_messages(names))):
            pass
        return [*found, seen(replies), grid.now]  # type: ignore[attr-defined]

    assert asked(Faults(slow=1.0), ask) == [[], [], [(0, 3)], 180.0]


def test_a_lost_reply_to_a_message_that_never_expires_is_given_up() -> None:
    def ask(grid: Grid) -> list[list[object]]:
        grid.get_node_ids()
        sent = to(FIRST, SECOND, THIRD, ttl=math.inf)
        late = grid.push_messages(to(THIRD, ttl=math.inf))
        first = seen(grid.send_and_receive(sent[:1], timeout=5.0))
        return [first, seen(grid.send_and_receive(sent)), seen(grid.pull_messages(late))]

    faults = Faults(lost=1.0, schedule=lambda turn: {FIRST, SECOND} if turn else None)
    assert asked(faults, ask) == [[], [EXPIRED, EXPIRED, GONE], []]


def test_errors_are_those_of_flowers_superlink() -> None:
    def ask(grid: Grid) -> list[object]:
        (sent,) = to(FIRST)
        (name,) = grid.push_messages([sent])
        over, known = sent.metadata.created_at + sent.metadata.ttl + 1.0, {name: sent}
        late = verify_message_ids({name}, known, sent.metadata.run_id, over)
        gone = check_node_availability_for_in_message({name}, known, {})
        return seen([*late.values(), *gone.values()])

    assert asked(Faults(), ask) == [EXPIRED, GONE]


def test_no_message_expires_because_the_machine_is_slow() -> None:
    def ask(grid: Grid) -> Any:
        sent = to(FIRST, SECOND, THIRD, ttl=0.02)
        time.sleep(0.03)
        return seen(grid.send_and_receive(sent)), grid.now  # type: ignore[attr-defined]

    class Slow(list[int]):
        def append(self, part: int) -> None:
            super().append(part)
            time.sleep(0.03)

    assert asked(Faults(), ask, Slow()) == ([(0, 1), (1, 1), (2, 1)], 0.0)


def test_threads_that_wait_at_the_same_time_all_end() -> None:
    def ask(grid: Grid) -> list[object]:
        names = [list(grid.push_messages(to(part))) for part in (FIRST, SECOND, THIRD)]
        found: dict[str, list[object]] = {}

        def wait(name: str) -> None:
            found[name] = []
            while not found[name]:
                found[name] = seen(grid.pull_messages([name]))

        with ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda name: wait(*name), names))
        return [found[name] for (name,) in names]

    late = {FIRST: 60.0, SECOND: 20.0, THIRD: 0.0}
    faults = Faults(plan=lambda part, _: Fate(late=late[part]))
    assert asked(faults, ask) == [[(0, 1)], [(1, 1)], [(2, 1)]]


def test_nobody_keeps_a_message_that_was_given_up() -> None:
    """A run of many rounds would grow."""
    fates = (Fate(lost=True), Fate(late=600.0), Fate(leaves=True))

    def ask(grid: Grid) -> list[int]:
        for _ in range(3):
            messages = to(FIRST, SECOND, THIRD, ttl=30.0)
            assert seen(grid.send_and_receive(messages)) == [EXPIRED] * 3
        link = grid._link  # type: ignore[attr-defined]
        return [len(link._open), len(link._under_way), len(grid._open)]  # type: ignore[attr-defined]

    assert asked(Faults(plan=lambda part, _: fates[part]), ask) == [0, 0, 0]
