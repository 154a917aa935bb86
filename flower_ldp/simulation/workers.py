"""Worker processes: several messages at a time, each node's always at the same worker.

To fork workers, the process forks one child at the start of the run, the nursery, which forks the
workers and their replacements: locks and numerical libraries' threads do not survive a fork. The
nursery holds an end of each connection, to cut it when the worker has died, since a process that
the app forked may hold another end. Workers end with the nursery, and the nursery with the run.
"""

import contextlib
import ctypes
import multiprocessing
import os
import pkgutil
import queue
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import recv_handle, send_handle
from types import ModuleType
from typing import Literal, TypeAlias

from flwr.app import Message
from flwr.clientapp import ClientApp

from flower_ldp.simulation import flower_api
from flower_ldp.simulation.grid import SLICE_SECONDS
from flower_ldp.simulation.nodes import FIRST_NODE, Nodes, Plan

#: How workers begin.
Start = Literal["fork", "spawn"]
#: Starts workers and ends them.
Starter: TypeAlias = "Forking | Spawning"
#: What comes from workers: a reply in bytes, or an error in place of one.
_Replies: TypeAlias = "queue.SimpleQueue[Message | bytes]"
#: How long a worker that has nothing to do may take to end.
GRACE_SECONDS = 1.0
#: How often the nursery looks for workers that have ended, and whether the run has.
_LOOK_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1


def starter(start: Start | None, app: ClientApp, plan: Plan) -> Starter:
    """Return the starter of workers; None forks on Linux, and spawns elsewhere.

    ValueError if there is no such way here, or a spawned app cannot be found by its name.
    """
    if start not in (None, "fork", "spawn"):
        raise ValueError(f"start must be fork or spawn, got {start!r}")
    if start == "spawn" or (start is None and sys.platform != "linux"):
        return Spawning(app, plan)
    if not hasattr(os, "fork"):
        raise ValueError("this system has no fork; workers can be spawned")
    return Forking(app, plan)


class Pool:
    """Answers messages in processes, so that replies come in any order.

    A worker that dies is an error reply for its message and is replaced; its nodes' contexts in
    memory are lost, those on disk are not.
    """

    def __init__(self, workers: int, starter: Starter) -> None:
        self._starter = starter
        self._lock = threading.Lock()
        self._pending = 0
        self._replies: _Replies = queue.SimpleQueue()
        try:
            connections = [starter.start() for _ in range(workers)]
            for connection in connections:
                connection.recv_bytes()  # that it is ready
        except BaseException as error:
            starter.close(0.0)
            if isinstance(error, (EOFError, OSError)):
                raise RuntimeError("a worker ended before it began; it said why") from error
            raise
        self._workers = [_Worker(one, starter, self._replies) for one in connections]
        for worker in self._workers:
            worker.start()

    def submit(self, message: Message) -> None:
        """Take a message."""
        with self._lock:
            self._pending += 1
        node = message.metadata.dst_node_id
        self._workers[(node - FIRST_NODE) % len(self._workers)].waiting.put(message)

    def answers(self, timeout: float) -> list[Message]:
        """Return replies that are there, after waiting for the first."""
        found = []
        with contextlib.suppress(queue.Empty):
            found.append(self._replies.get(timeout=max(0.0, min(timeout, SLICE_SECONDS))))
            while len(found) < len(self._workers):
                found.append(self._replies.get_nowait())
        with self._lock:
            self._pending -= len(found)
        return [flower_api.from_bytes(one) if isinstance(one, bytes) else one for one in found]

    @property
    def pending(self) -> int:
        """Number of messages without a reply."""
        return self._pending

    def close(self) -> None:
        """End the workers: at once if one of them is busy."""
        for worker in self._workers:
            worker.is_over = True
            worker.waiting.put(None)
        self._starter.close(0.0 if self._pending else GRACE_SECONDS)
        self._pending = 0  # a thread that still waits need not
        for worker in self._workers:
            # Not for ever: a program that an app started may hold the other end of a connection.
            worker.join(SLICE_SECONDS)


class _Worker(threading.Thread):
    def __init__(self, connection: Connection, starter: Starter, replies: _Replies) -> None:
        super().__init__(daemon=True)
        self.waiting: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self.is_over = False
        self._connection, self._starter, self._replies = connection, starter, replies

    def run(self) -> None:
        while (message := self.waiting.get()) is not None and not self.is_over:
            self._replies.put(self._answered(message))
        self._connection.close()

    def _answered(self, message: Message) -> Message | bytes:
        try:
            self._send(flower_api.to_bytes(message))
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            self._connection.close()
            reason = f"the process that worked for node {message.metadata.dst_node_id} ended"
        except Exception as error:
            reason = f"the message could not be written: {error}"
        return flower_api.error_reply(message.metadata, flower_api.APP_DIED, reason)

    def _send(self, data: bytes) -> None:
        try:
            self._connection.send_bytes(data)
        except OSError:  # it ended since its last reply, and held nothing
            if self.is_over:
                raise  # with the run: none takes its place
            self._connection.close()
            self._connection = self._starter.start()
            self._connection.recv_bytes()  # that it is ready
            self._connection.send_bytes(data)


def serve(connection: Connection, app: ClientApp, plan: Plan) -> None:
    """Answer each message, until the other end is closed."""
    # Ctrl-C is the parent's, which ends its workers. A handler, since programs that an app
    # starts would inherit that a signal is ignored.
    signal.signal(signal.SIGINT, lambda *_: None)
    nodes = Nodes(app, plan)
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(b"ready")  # it has the app
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
    """Starts workers that import the app."""

    def __init__(self, app: ClientApp, plan: Plan) -> None:
        self._name = _name_of(app)
        self._plan = plan
        self._processes: list[BaseProcess] = []

    def start(self) -> Connection:
        """Start a worker."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve_by_name, args=(theirs, self._name, self._plan), daemon=True
        )
        process.start()
        # A process that the app forks may hold the other end after the worker has died.
        threading.Thread(target=_cut_after, args=(process, theirs), daemon=True).start()
        self._processes.append(process)
        return ours

    def close(self, grace: float) -> None:
        """End the workers after so many seconds."""
        end_all(self._processes, grace)


def _name_of(app: ClientApp) -> str:
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
    multiprocessing.current_process().daemon = False  # apps may start processes
    threading.Thread(target=_end_after_parent, daemon=True).start()
    app = pkgutil.resolve_name(name)
    if not isinstance(app, ClientApp):
        raise TypeError(f"{name} is a {type(app).__name__}, no ClientApp")
    serve(connection, app, plan)


def _end_after_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class Forking:
    """Starts workers that are copies of this process."""

    def __init__(self, app: ClientApp, plan: Plan) -> None:
        context = multiprocessing.get_context("fork")
        self._control, theirs = context.Pipe()
        self._lock = threading.Lock()
        self._nursery = context.Process(
            target=_nurse, args=(theirs, self._control, os.getpid(), app, plan), daemon=True
        )
        self._nursery.start()
        theirs.close()

    def start(self) -> Connection:
        """Start a worker; OSError if the nursery has ended."""
        ours, theirs = multiprocessing.get_context("fork").Pipe()
        with self._lock, theirs:
            self._control.send(None)
            send_handle(self._control, theirs.fileno(), self._nursery.pid)
        return ours

    def close(self, grace: float) -> None:
        """End the workers after so many seconds."""
        with self._lock:
            with contextlib.suppress(OSError):
                self._control.send(grace)
            self._control.close()
        end_all([self._nursery], 2 * GRACE_SECONDS)


def _nurse(
    control: Connection, others: Connection, parent: int, app: ClientApp, plan: Plan
) -> None:
    """Fork a worker for each None that arrives; a number ends all, after so many seconds."""
    others.close()
    signal.set_wakeup_fd(-1)  # the program's, which is told of its own signals
    signal.signal(signal.SIGINT, lambda *_: None)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    if sys.platform != "win32":  # where nothing forks
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    multiprocessing.current_process().daemon = False  # it starts processes, and apps may
    context = multiprocessing.get_context("fork")
    workers: dict[BaseProcess, Connection] = {}
    grace = 0.0
    try:
        # A program that the server app started may hold the other end of the connection, which
        # is then not seen to close.
        _end_with(parent)
        while not over.is_set():
            if control in wait([control, *(one.sentinel for one in workers)], _LOOK_SECONDS):
                if (asked := control.recv()) is not None:
                    grace = asked
                    break
                end = Connection(recv_handle(control))
                ends = [control, *workers.values()]
                worker = context.Process(
                    target=_serve_copy, args=(end, ends, os.getpid(), app, plan)
                )
                worker.start()
                workers[worker] = end
            # A process that a worker's app forked holds its sentinel too: each is asked.
            for one in list(workers):
                if not one.is_alive():
                    _cut(workers.pop(one))  # at once: nothing is sent to it any more
                    one.close()
    except (EOFError, OSError, RuntimeError):
        pass  # the run's process is gone, or was interrupted in the middle of a request
    finally:
        end_all(workers, grace)
        if plan.folder is not None:
            # The parent does so too, unless it was killed.
            shutil.rmtree(plan.folder, ignore_errors=True)


def _cut_after(process: BaseProcess, connection: Connection) -> None:
    with contextlib.suppress(ValueError):  # closed with the run
        process.join()
    _cut(connection)


def _cut(connection: Connection) -> None:
    """End a connection for all processes that hold an end of it."""
    with connection, contextlib.suppress(OSError):
        if sys.platform != "win32":  # where nothing forks, and a connection is no socket
            with socket.socket(fileno=os.dup(connection.fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)


def _serve_copy(
    connection: Connection, ends: list[Connection], nursery: int, app: ClientApp, plan: Plan
) -> None:
    _end_with(nursery, killed=True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for end in ends:
        end.close()
    # Two workers must not draw the same from the global generators that they copied.
    if (legacy := sys.modules.get("numpy.random")) is not None:
        legacy.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
    with connection:
        serve(connection, app, plan)


def _end_with(parent: int, *, killed: bool = False) -> None:
    """End this process with its parent, where the system supports it."""
    if sys.platform == "linux":
        how = signal.SIGKILL if killed else signal.SIGTERM
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, how)
    if os.getppid() != parent:
        sys.exit(1)
