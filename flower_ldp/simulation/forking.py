"""Workers that begin as copies of this process: nothing is imported again.

A process forks one child when the run begins, the nursery, and has that fork the workers, also
those that replace one that died. So a worker is a copy of a process with one thread, which did
nothing since the run began: locks that another thread holds and threads of numerical libraries
do not survive a fork. A worker has no end of another's connection. The nursery keeps one of each,
to cut the connection when the worker has died: a process that its app forked may live on and hold
another. And a worker dies with the nursery, which dies with the run, however that ends.

There is no such thing on Windows: only :mod:`flower_ldp.simulation.workers` imports this, where
there is ``os.fork``.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import recv_handle, send_handle

from flwr.clientapp import ClientApp

from flower_ldp.simulation.nodes import Plan
from flower_ldp.simulation.workers import GRACE_SECONDS, end_all, serve

if sys.platform == "win32":
    raise ImportError("there is no fork on Windows")

#: How often the nursery looks for workers that have ended, and whether the run has.
_LOOK_SECONDS = 0.2
_START, _END, _KILL = b"start", b"end", b"kill"
_PR_SET_PDEATHSIG = 1


class Forking:
    """Starts workers that are copies of this process.

    Parameters
    ----------
    app : ClientApp
        Any.
    plan : Plan
        Of the nodes.
    """

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
        """Start a worker; return the connection to it.

        Raises
        ------
        OSError
            If the nursery has ended.
        """
        ours, theirs = multiprocessing.get_context("fork").Pipe()
        with self._lock, theirs:
            self._control.send_bytes(_START)
            send_handle(self._control, theirs.fileno(), self._nursery.pid)
        return ours

    def close(self, *, at_once: bool) -> None:
        """End the workers; those that have nothing to do may end by themselves first."""
        with self._lock:
            with contextlib.suppress(OSError):
                self._control.send_bytes(_KILL if at_once else _END)
            self._control.close()
        end_all([self._nursery], 2 * GRACE_SECONDS)


def _nurse(
    control: Connection, others: Connection, parent: int, app: ClientApp, plan: Plan
) -> None:
    """Fork a worker for each request; end them all when the run ends, or its process does."""
    others.close()
    signal.set_wakeup_fd(-1)  # the program's, which is told of its own signals
    signal.signal(signal.SIGINT, lambda *_: None)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    multiprocessing.current_process().daemon = False  # it starts processes, and apps may
    context = multiprocessing.get_context("fork")
    workers: dict[BaseProcess, Connection] = {}
    grace = 0.0
    try:
        # A program that the server app started may hold the other end of the connection, which
        # is then not seen to close.
        _end_with(parent, signal.SIGTERM)
        while not over.is_set():
            if control in wait([control, *(one.sentinel for one in workers)], _LOOK_SECONDS):
                order = control.recv_bytes()
                if order != _START:
                    grace = GRACE_SECONDS if order == _END else 0.0
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


def _cut(connection: Connection) -> None:
    """End a connection for all who hold an end of it."""
    end = socket.socket(fileno=os.dup(connection.fileno()))
    with connection, end, contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _serve_copy(
    connection: Connection, ends: list[Connection], nursery: int, app: ClientApp, plan: Plan
) -> None:
    """Serve in a process that was forked."""
    _end_with(nursery, signal.SIGKILL)
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


def _end_with(parent: int, how: signal.Signals) -> None:
    """Have this process sent a signal when its parent ends, where the system can do so."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, how)
    if os.getppid() != parent:
        sys.exit(1)
