"""Worker processes: what they share with one process, and what happens when one dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from flower_ldp.simulation import flower_api, run_in_process
from flower_ldp.simulation.nodes import Plan
from flower_ldp.simulation.workers import Pool, Spawning
from tests.unit.simulation.apps import (
    asked,
    client,
    count_calls,
    counting,
    messages,
    numbers,
    partition,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked here")


def pid_of(_: Message, __: Context) -> int:
    return os.getpid()


def alive(pid: int, *, zombie: bool) -> bool:
    """Return whether there is such a process; or, as ``zombie``, what its parent left of one."""
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat")
        return zombie or not status.exists() or ") Z " not in status.read_text()
    return False


def gone(pids: list[int], *, zombies: bool = True) -> bool:
    end = time.monotonic() + 3.0
    while (some := any(alive(pid, zombie=zombies) for pid in pids)) and time.monotonic() < end:
        time.sleep(0.01)
    return not some


def test_each_node_has_its_worker_which_keeps_its_context() -> None:
    def ask(grid: Grid) -> list[dict[int, float | str]]:
        nodes = list(grid.get_node_ids())
        return [numbers(grid.send_and_receive(messages(nodes))) for _ in range(3)]

    assert asked(client(count_calls), ask, 5, workers=2) == [
        dict.fromkeys(range(5), n) for n in (1, 2, 3)
    ]
    first, second, third = asked(client(pid_of), ask, 5, workers=2)
    assert first == second == third
    assert len(set(first.values()) | {os.getpid()}) == 3
    assert first[0] == first[2] == first[4]
    assert gone([int(pid) for pid in first.values()])


@pytest.mark.parametrize("contexts", ["memory", "disk", "drop"])
def test_a_worker_that_dies_is_an_error_for_its_message_and_is_replaced(
    contexts: str, temporary: Path
) -> None:
    def die_once(message: Message, context: Context) -> int:
        calls = count_calls(message, context)
        if message.metadata.group_id == "die" and partition(context) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if message.metadata.group_id == "die" and partition(context) == 1:
            os._exit(3)
        return calls

    def ask(grid: Grid) -> list[dict[int, float | str]]:
        found = []
        for group in ("", "die", ""):
            sent = messages(grid.get_node_ids())
            for one in sent:
                one.metadata.group_id = group
            found.append(numbers(grid.send_and_receive(sent)))
        return found

    first, second, third = asked(client(die_once), ask, 4, workers=2, contexts=contexts)
    assert first == {0: 1, 1: 1, 2: 1, 3: 1}
    # The worker's other nodes are answered by its successor, which knows what was on disk.
    again = 2 if contexts == "disk" else 1
    assert second == {0: "error 8", 1: "error 8", 2: again, 3: again}
    assert (
        third
        == {
            "memory": {0: 1, 1: 1, 2: 2, 3: 2},
            "disk": {0: 2, 1: 2, 2: 3, 3: 3},
            "drop": {0: 1, 1: 1, 2: 1, 3: 1},
        }[contexts]
    )
    assert not list(temporary.iterdir())


def test_a_time_limit_does_not_wait_for_a_worker_and_its_reply_comes_late() -> None:
    def slow(_: Message, context: Context) -> int:
        time.sleep(0.4 if partition(context) == 1 else 0)
        return 7

    def ask(grid: Grid) -> tuple[dict[int, float | str], float, dict[int, float | str]]:
        sent, begun = messages(grid.get_node_ids()), time.monotonic()
        in_time = numbers(grid.send_and_receive(sent, timeout=0.1))
        took = time.monotonic() - begun
        names = [one.metadata.message_id for one in sent]
        late: dict[int, float | str] = {}
        while not late:
            late = numbers(grid.pull_messages(names))
        return in_time, took, late

    in_time, took, late = asked(client(slow), ask, 2, workers=2)
    assert (in_time, late) == ({0: 7}, {1: 7})
    assert took < 0.4


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which temporary folders are made."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@contextlib.contextmanager
def interrupted(when: Callable[[], bool]) -> Iterator[None]:
    """Have this process interrupted, as Ctrl-C does, as soon as something is so."""

    def wait() -> None:
        end = time.monotonic() + 30
        while not when() and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    # Tests that run in the background of a shell are started with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupt_ends_a_run_at_once(workers: int, temporary: Path, tmp_path: Path) -> None:
    def sleep(_: Message, context: Context) -> int:
        (tmp_path / str(partition(context))).write_text(str(os.getpid()))
        time.sleep(60)
        return 0

    def all_sleep() -> bool:
        return sum(bool(one.read_text()) for one in tmp_path.iterdir()) == workers

    with pytest.raises(KeyboardInterrupt), interrupted(all_sleep):
        asked(
            client(sleep),
            lambda grid: grid.send_and_receive(messages(grid.get_node_ids())),
            workers,
            workers=workers,
            contexts="disk",
        )
    pids = [int(one.read_text()) for one in tmp_path.iterdir()]
    assert len(pids) == workers
    assert workers == 1 or gone(pids)
    assert not list(temporary.iterdir())


def test_workers_and_their_folder_end_with_a_process_that_is_killed(temporary: Path) -> None:
    def run(tell: Connection) -> None:
        def sleep(_: Message, __: Context) -> int:
            tell.send(os.getpid())
            time.sleep(60)
            return 0

        asked(
            client(sleep),
            lambda grid: grid.send_and_receive(messages(grid.get_node_ids())),
            2,
            workers=2,
            contexts="disk",
        )

    forked = multiprocessing.get_context("fork")
    ours, theirs = forked.Pipe()
    process = forked.Process(target=run, args=(theirs,))
    process.start()
    pids = [ours.recv(), ours.recv()]
    assert list(temporary.iterdir())
    process.kill()
    process.join()
    end = time.monotonic() + 3.0
    while list(temporary.iterdir()) and time.monotonic() < end:
        time.sleep(0.01)
    assert not list(temporary.iterdir())
    assert gone(pids, zombies=False)  # whoever inherits them takes what is left away, or not


def test_workers_that_are_spawned_find_the_app_by_its_name() -> None:
    plan = Plan(7, 3, {}, {})
    with (
        flower_api.server_identity(7),
        contextlib.closing(Pool(1, Spawning(counting, plan))) as pool,
    ):
        for number, sent in enumerate(messages(plan.ids)):
            pool.submit(flower_api.outgoing(sent, str(number), 7, flower_api.MessageEncoder()))
        found: dict[int, float | str] = {}
        while pool.pending:
            found |= numbers(pool.answers(10.0))
    assert found == {0: 1, 1: 1, 2: 1}


def _die_beside_a_copy(_: Message, __: Context) -> int:
    if not os.fork():
        time.sleep(20)  # and holds the connection meanwhile
        os._exit(0)
    os._exit(3)


dying = client(_die_beside_a_copy)


def test_a_worker_that_was_spawned_and_died_is_noticed_while_a_copy_of_it_lives() -> None:
    begun = time.monotonic()
    found = asked(
        dying,
        lambda grid: numbers(grid.send_and_receive(messages(grid.get_node_ids()))),
        1,
        workers=2,
        start="spawn",
    )
    assert found == {0: "error 8"}
    assert time.monotonic() - begun < 15.0


def test_a_worker_that_is_spawned_needs_an_app_with_a_name() -> None:
    with pytest.raises(ValueError, match="top level of a module"):
        asked(client(count_calls), lambda grid: None, 1, workers=2, start="spawn")


def test_a_run_goes_on_where_no_worker_can_be_started_any_more() -> None:
    def die(_: Message, __: Context) -> int:
        os.kill(os.getppid(), signal.SIGKILL)  # what starts workers, and so ends with them
        time.sleep(60)
        return 0

    def ask(grid: Grid) -> dict[int, float | str]:
        return numbers(grid.send_and_receive(messages(grid.get_node_ids())))

    assert asked(client(die), ask, 4, workers=2) == dict.fromkeys(range(4), "error 8")


def test_an_app_cannot_draw_the_same_numbers_in_two_workers() -> None:
    def draw(_: Message, __: Context) -> float:
        return float(np.random.random())  # noqa: NPY002

    def ask(grid: Grid) -> dict[int, float | str]:
        return numbers(grid.send_and_receive(messages(grid.get_node_ids())))

    np.random.random()  # noqa: NPY002 - so that there is a generator which a worker would copy
    found = asked(client(draw), ask, 4, workers=4)
    assert len(set(found.values())) == 4


def test_an_app_may_start_processes_of_its_own() -> None:
    def start(_: Message, __: Context) -> int:
        process = multiprocessing.get_context("fork").Process(target=os._exit, args=(3,))
        process.start()
        process.join()
        return process.exitcode or 0

    def ask(grid: Grid) -> dict[int, float | str]:
        return numbers(grid.send_and_receive(messages(grid.get_node_ids())))

    assert asked(client(start), ask, 2, workers=2) == {0: 3, 1: 3}


def test_a_worker_that_ends_between_two_messages_costs_no_reply() -> None:
    def ask(grid: Grid) -> list[dict[int, float | str]]:
        nodes = list(grid.get_node_ids())
        found = [numbers(grid.send_and_receive(messages(nodes)))]
        pids = [int(pid) for pid in found[0].values()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert gone(pids)
        return [*found, numbers(grid.send_and_receive(messages(nodes)))]

    first, second = asked(client(pid_of), ask, 2, workers=2)
    assert len({*first.values(), *second.values()}) == 4
    assert not any(isinstance(pid, str) for pid in second.values())


def test_a_process_that_outlives_the_worker_that_began_it_holds_nothing_up() -> None:
    def begin(_: Message, context: Context) -> int:
        if partition(context) == 0:
            if not os.fork():
                time.sleep(3)
                os._exit(0)
            os._exit(1)
        return 5

    def ask(grid: Grid) -> tuple[dict[int, float | str], float]:
        begun = time.monotonic()
        found = numbers(grid.send_and_receive(messages(grid.get_node_ids())))
        return found, time.monotonic() - begun

    found, took = asked(client(begin), ask, 3, workers=2)
    assert found == {0: "error 8", 1: 5, 2: 5}
    assert took < 2.5


def test_a_program_that_ignores_its_childrens_ends_has_workers_too() -> None:
    def die_first(_: Message, context: Context) -> int:
        return 5 if partition(context) else os._exit(1)

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        found = asked(
            client(die_first),
            lambda grid: numbers(grid.send_and_receive(messages(grid.get_node_ids()))),
            3,
            workers=2,
        )
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert found == {0: "error 8", 1: 5, 2: 5}


def test_a_copy_that_an_app_makes_of_its_process_answers_nothing() -> None:
    def copy(_: Message, context: Context) -> int:
        child = os.fork()
        if not child and partition(context) == 0:
            raise SystemExit(3)
        if not child and partition(context) == 1:
            raise ValueError("of the copy")
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 7

    def ask(grid: Grid) -> list[dict[int, float | str]]:
        nodes = list(grid.get_node_ids())
        return [numbers(grid.send_and_receive(messages(nodes))) for _ in range(2)]

    found = asked(client(copy), ask, 3, workers=2)
    assert found == [{0: 3, 1: 1, 2: 0}] * 2


def test_wrong_numbers_of_workers_and_ways_to_start_are_refused() -> None:
    for workers in (0, True, 1.5):
        with pytest.raises(ValueError, match="workers"):
            run_in_process(ServerApp(), counting, 1, workers=workers)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start must be"):
        run_in_process(ServerApp(), counting, 1, workers=2, start="copy")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="contexts must be"):
        run_in_process(ServerApp(), counting, 1, contexts="cloud")  # type: ignore[arg-type]
