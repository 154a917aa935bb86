"""A worker process answers messages until nobody sends any more; here is one that begins afresh.

A fresh process imports what it needs, on every system; a forked one is in
:mod:`flower_ldp.simulation.forking`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pkgutil
import signal
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import ModuleType

from flwr.clientapp import ClientApp

from flower_ldp.simulation.contexts import Plan
from flower_ldp.simulation.nodes import Nodes

#: The first thing that a worker sends: it has the app.
READY = b"ready"


def serve(connection: Connection, app: ClientApp, plan: Plan) -> None:
    """Answer each message that comes, until the other end is closed."""
    # Ctrl-C is the parent's, which ends its workers. A handler, since programs that an app
    # starts would inherit that a signal is ignored.
    signal.signal(signal.SIGINT, lambda *_: None)
    nodes = Nodes(app, plan)
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(READY)
        while True:
            connection.send_bytes(nodes.answer_bytes(connection.recv_bytes()))


@dataclass(frozen=True)
class AppName:
    """Where a fresh process finds an app: a module, and the app's name at its top level."""

    module: str
    name: str

    @classmethod
    def of(cls, app: ClientApp) -> AppName:
        """Return where an app is, among the modules that are loaded.

        Raises
        ------
        ValueError
            If no module has it at its top level.
        """
        for module in list(sys.modules.values()):
            if not isinstance(module, ModuleType):
                continue
            for name, value in list(vars(module).items()):
                if value is app:
                    return cls(module.__name__, name)
        raise ValueError(
            "a worker that is spawned loads the client app anew, so the app has to be at the top "
            "level of a module; this one is not"
        )

    def load(self) -> ClientApp:
        """Import the module, and return the app.

        Raises
        ------
        TypeError
            If what is there is no app.
        """
        app = pkgutil.resolve_name(f"{self.module}:{self.name}")
        if not isinstance(app, ClientApp):
            raise TypeError(f"{self.module}:{self.name} is a {type(app).__name__}, no ClientApp")
        return app


def serve_by_name(connection: Connection, name: AppName, plan: Plan) -> None:
    """Load an app in a process that was spawned, and serve."""
    multiprocessing.current_process().daemon = False  # apps may start processes
    threading.Thread(target=_end_with_parent, daemon=True).start()
    serve(connection, name.load(), plan)


def _end_with_parent() -> None:
    """End this process when its parent ends, whatever the app does."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


#: How long a worker that has nothing to do may take to end.
GRACE_SECONDS = 1.0


class Spawning:
    """Starts workers for an app.

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
        self._name = AppName.of(app)
        self._plan = plan
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[SpawnProcess] = []

    def start(self) -> Connection:
        """Start a worker; return the connection to it."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=serve_by_name, args=(theirs, self._name, self._plan), daemon=True
        )
        process.start()
        theirs.close()
        self._processes = [one for one in self._processes if one.is_alive()] + [process]
        return ours

    def close(self, *, at_once: bool) -> None:
        """End the workers; those that have nothing to do may end by themselves first."""
        for process in self._processes:
            process.join(0 if at_once else GRACE_SECONDS)
            process.kill()
            process.join()
            with contextlib.suppress(ValueError):
                process.close()
