"""Workers that begin as copies of this process: nothing is imported again.

A process forks one child when the run begins, the nursery, and has that fork the workers, also
those that replace one that died. So a worker is a copy of a process with one thread, which did
nothing since the run began: locks that another thread holds and threads of numerical libraries
do not survive a fork. A worker has no end of another's connection. The nursery keeps one of each,
to cut the connection when the worker has died: a process that its app forked may live on and hold
another. And a worker dies with the nursery, which dies with the run, however that ends.

There is no such thing on Windows: only :mod:`flower_ldp.simulation.pool` imports this, where
there is ``os.fork``.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle

from flwr.clientapp import ClientApp

from flower_ldp.simulation.contexts import Plan
from flower_ldp.simulation.serving import GRACE_SECONDS, serve

if sys.platform == "win32":
    raise ImportError("there is no fork on Windows")

#: How often the nursery looks for workers that have ended, and whether the run has.
_LOOK_SECONDS = 0.2
_START, _END, _KILL = b"start", b"end", b"kill"
_PR_SET_PDEATHSIG = 1


class Forking:
    """Starts workers for an app.

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
        self._nursery.join(2 * GRACE_SECONDS)
        self._nursery.kill()
        self._nursery.join()
        # Where a parent ignores its children's ends, nobody can learn that this one has ended.
        with contextlib.suppress(ValueError):
            self._nursery.close()


def _nurse(
    control: Connection, others: Connection, parent: int, app: ClientApp, plan: Plan
) -> None:
    """Fork a worker for each request; end them all when the run ends, or its process does."""
    others.close()
    signal.signal(signal.SIGINT, lambda *_: None)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    workers: dict[int, int] = {}
    died, wake = _wakes_when_a_child_dies()
    grace = 0.0
    try:
        # A program that the server app started may hold the other end of the connection, which
        # is then not seen to close.
        _end_with(parent, signal.SIGTERM)
        while not over.is_set():
            if control in wait([control, died], _LOOK_SECONDS):
                order = control.recv_bytes()
                if order != _START:
                    grace = GRACE_SECONDS if order == _END else 0.0
                    break
                handle = recv_handle(control)
                ends = control.fileno(), died, wake, *workers.values()
                workers[_fork(ends, handle, app, plan)] = handle
            _drain(died)
            _bury(workers)
    except (EOFError, OSError, RuntimeError):
        pass  # the run's process is gone, or was interrupted in the middle of a request
    finally:
        _end(workers, grace)
        if plan.folder is not None:
            # The parent does so too, unless it was killed.
            shutil.rmtree(plan.folder, ignore_errors=True)


def _wakes_when_a_child_dies() -> tuple[int, int]:
    """Return what can be read from when a child of this process has ended, and its other end."""
    died, wake = os.pipe()
    os.set_blocking(died, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return died, wake


def _drain(died: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(died, 4096)


def _fork(ends: Iterable[int], handle: int, app: ClientApp, plan: Plan) -> int:
    nursery = os.getpid()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        _end_with(nursery, signal.SIGKILL)
        # Not by what this returns: since Python 3.12 asyncio has done so already.
        signal.set_wakeup_fd(-1)
        for end in ends:
            os.close(end)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _draw_anew()
        multiprocessing.current_process().daemon = False  # apps may start processes
        with Connection(handle) as connection:
            serve(connection, app, plan)
        status = 0
    except SystemExit:
        pass
    except BaseException:
        logging.getLogger("flwr").exception("a worker")
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        # Not what the parent has registered for its own end.
        os._exit(status)


def _draw_anew() -> None:
    """Seed the global generators of this copy: two workers must not draw the same."""
    if (legacy := sys.modules.get("numpy.random")) is not None:
        legacy.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()


def _end_with(parent: int, how: signal.Signals) -> None:
    """Have this process sent a signal when its parent ends, where the system can do so."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, how)
    if os.getppid() != parent:
        sys.exit(1)


def _bury(workers: dict[int, int], how: int = os.WNOHANG) -> None:
    """Forget workers that have ended, and cut their connections."""
    for worker in [one for one in workers if os.waitpid(one, how)[0]]:
        with socket.socket(fileno=workers.pop(worker)) as end, contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _end(workers: dict[int, int], grace: float) -> None:
    """Wait for workers, and kill those that do not end."""
    end = time.monotonic() + grace
    _bury(workers)
    while workers and time.monotonic() < end:
        time.sleep(0.005)
        _bury(workers)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    _bury(workers, 0)
