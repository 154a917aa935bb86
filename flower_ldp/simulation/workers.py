"""Worker processes: several messages at a time, each node's always at the same worker.

A worker answers messages until nobody sends any more. It begins afresh, on every system, or as a
copy of this process (:mod:`flower_ldp.simulation.forking`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pkgutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import TYPE_CHECKING, Literal, TypeAlias

from flwr.app import Message
from flwr.clientapp import ClientApp

from flower_ldp.simulation import flower
from flower_ldp.simulation.grid import SLICE_SECONDS
from flower_ldp.simulation.nodes import FIRST_NODE, Nodes, Plan

if TYPE_CHECKING:
    from flower_ldp.simulation.forking import Forking

#: How workers begin.
Start = Literal["fork", "spawn"]
#: Starts workers and ends them.
Starter: TypeAlias = "Forking | Spawning"
#: The first thing that a worker sends: it has the app.
_READY = b"ready"
#: How long a worker that has nothing to do may take to end.
GRACE_SECONDS = 1.0


def starter(start: Start | None, app: ClientApp, plan: Plan) -> Starter:
    """Return what starts workers.

    Parameters
    ----------
    start : {"fork", "spawn"} or None
        None forks on Linux, and spawns elsewhere.
    app : ClientApp
        To spawn, at the top level of a module.
    plan : Plan
        Of the nodes.

    Raises
    ------
    ValueError
        If there is no such way here, or the app cannot be found by its name.
    """
    if start not in (None, "fork", "spawn"):
        raise ValueError(f"start must be fork or spawn, got {start!r}")
    if start == "spawn" or (start is None and sys.platform != "linux"):
        return Spawning(app, plan)
    if not hasattr(os, "fork"):
        raise ValueError("this system has no fork; workers can be spawned")
    from flower_ldp.simulation.forking import Forking

    return Forking(app, plan)


@dataclass(eq=False)
class _Worker:
    """A worker's messages, which it gets one by one."""

    #: None once it has ended and before another takes its place.
    connection: Connection | None
    held: Message | None = None
    waiting: deque[Message] = field(default_factory=deque)


class Pool:
    """Works on messages in processes, so that replies come in any order.

    A node's messages go to one worker, by its number, in the order they were sent. A worker that
    dies is an error reply for the message that it held, and another takes its place; what it
    kept in memory of its nodes is lost, what is on disk is not.

    Parameters
    ----------
    workers : int
        How many.
    starter : Starter
        Begins them. The pool closes it.
    """

    def __init__(self, workers: int, starter: Starter) -> None:
        self._starter = starter
        self._lock = threading.Lock()
        self._pending = 0
        self._replies: list[Message] = []
        try:
            connections = [starter.start() for _ in range(workers)]
            for connection in connections:
                connection.recv_bytes()  # that it is ready
        except BaseException as error:
            starter.close(at_once=True)
            if isinstance(error, (EOFError, OSError)):
                raise RuntimeError("a worker ended before it began; it said why") from error
            raise
        self._workers = [_Worker(one) for one in connections]

    def submit(self, message: Message) -> None:
        """Take a message to a node."""
        node = message.metadata.dst_node_id
        worker = self._workers[(node - FIRST_NODE) % len(self._workers)]
        with self._lock:
            self._pending += 1
            worker.waiting.append(message)
            self._send_next(worker)

    def answers(self, timeout: float) -> list[Message]:
        """Return replies that are there, after waiting for the first."""
        with self._lock:
            # Of those without a message too: it is seen when one ends.
            workers = {one.connection: one for one in self._workers if one.connection is not None}
            seconds = 0.0 if self._replies else max(0.0, min(timeout, SLICE_SECONDS))
        for connection in wait(list(workers), seconds):
            self._receive(workers[connection], connection)  # type: ignore[index, arg-type]
        with self._lock:
            found, self._replies = self._replies, []
            self._pending -= len(found)
        return found

    @property
    def pending(self) -> int:
        """How many messages have no reply yet."""
        return self._pending

    def close(self) -> None:
        """End the workers: at once, unless none has anything to do."""
        at_once, self._pending = self._pending > 0, 0  # a thread that still waits need not
        for worker in self._workers:
            worker.waiting.clear()
            if not at_once and worker.connection is not None:
                worker.connection.close()
        self._starter.close(at_once=at_once)

    def _receive(self, worker: _Worker, connection: Connection) -> None:
        """Take a reply from a worker, or notice its end; send it the next message."""
        try:
            reply = flower.from_bytes(connection.recv_bytes())
        except (EOFError, OSError):
            reply = None
        with self._lock:
            held, worker.held = worker.held, None
            if reply is not None:
                self._replies.append(reply)
            else:
                connection.close()
                worker.connection = None
                if held is not None:
                    self._fail(held)
            self._send_next(worker)

    def _send_next(self, worker: _Worker) -> None:
        """Send a worker its next message, if it holds none; if it has ended, start another."""
        while worker.waiting and worker.held is None:
            message, connection = worker.waiting[0], worker.connection
            try:
                data = flower.to_bytes(message)
                if connection is None:
                    connection = self._starter.start()
                    connection.recv_bytes()  # that it is ready
                connection.send_bytes(data)
            except (EOFError, OSError):
                if worker.connection is not None:
                    return  # it ended since its last reply, and held nothing: answers() sees that
                self._fail(worker.waiting.popleft())
            except Exception as error:
                self._fail(worker.waiting.popleft(), f"the message could not be written: {error}")
            else:
                worker.connection, worker.held = connection, worker.waiting.popleft()

    def _fail(self, message: Message, reason: str = "") -> None:
        ended = f"the process that worked for node {message.metadata.dst_node_id} ended"
        error = flower.error_reply(message.metadata, flower.APP_DIED, reason or ended)
        self._replies.append(error)


def serve(connection: Connection, app: ClientApp, plan: Plan) -> None:
    """Answer each message that comes, until the other end is closed."""
    # Ctrl-C is the parent's, which ends its workers. A handler, since programs that an app
    # starts would inherit that a signal is ignored.
    signal.signal(signal.SIGINT, lambda *_: None)
    nodes = Nodes(app, plan)
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(_READY)
        while True:
            connection.send_bytes(nodes.answer_bytes(connection.recv_bytes()))


def end_all(processes: Iterable[BaseProcess], grace: float) -> None:
    """Wait for processes, and kill those that do not end."""
    end = time.monotonic() + grace
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
        process.kill()
        process.join()
        # Where a parent ignores its children's ends, nobody can learn that this one has ended.
        with contextlib.suppress(ValueError):
            process.close()


class Spawning:
    """Starts workers that import the app.

    Parameters
    ----------
    app : ClientApp
        At the top level of a module.
    plan : Plan
        Of the nodes.

    Raises
    ------
    ValueError
        If the app is at the top level of no module.
    """

    def __init__(self, app: ClientApp, plan: Plan) -> None:
        self._name = _name_of(app)
        self._plan = plan
        self._processes: list[BaseProcess] = []

    def start(self) -> Connection:
        """Start a worker; return the connection to it."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve_by_name, args=(theirs, self._name, self._plan), daemon=True
        )
        process.start()
        theirs.close()
        self._processes.append(process)
        return ours

    def close(self, *, at_once: bool) -> None:
        """End the workers; those that have nothing to do may end by themselves first."""
        end_all(self._processes, 0.0 if at_once else GRACE_SECONDS)


def _name_of(app: ClientApp) -> str:
    """Return where a fresh process finds an app, as ``module:name``."""
    modules = [one for one in sys.modules.values() if isinstance(one, ModuleType)]
    for module in modules:
        for name, value in list(vars(module).items()):
            if value is app:
                return f"{module.__name__}:{name}"
    raise ValueError(
        "a worker that is spawned loads the client app anew, so the app has to be at the top "
        "level of a module; this one is not"
    )


def _serve_by_name(connection: Connection, name: str, plan: Plan) -> None:
    """Load an app in a process that was spawned, and serve."""
    multiprocessing.current_process().daemon = False  # apps may start processes
    threading.Thread(target=_end_after_parent, daemon=True).start()
    app = pkgutil.resolve_name(name)
    if not isinstance(app, ClientApp):
        raise TypeError(f"{name} is a {type(app).__name__}, no ClientApp")
    serve(connection, app, plan)


def _end_after_parent() -> None:
    """End this process when its parent ends, whatever the app does."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
