"""A worker process: it answers messages until nobody sends any more."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pkgutil
import signal
import sys
import threading
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

from flwr.clientapp import ClientApp

from flower_ldp.simulation.plan import Plan


class Line(Protocol):
    """A connection to a process, of the kind that this system has."""

    def send_bytes(self, data: bytes, /) -> None:
        """Send bytes as a whole."""

    def recv_bytes(self) -> bytes:
        """Wait for bytes, and return them."""

    def close(self) -> None:
        """Close this end."""


#: The first thing that a worker sends: it has the app.
READY = b"ready"


def serve(connection: Line, app: ClientApp, plan: Plan) -> None:
    """Answer each message that comes, until the other end is closed."""
    # Ctrl-C is the parent's, which ends its workers. A handler, since programs that an app
    # starts would inherit that a signal is ignored.
    signal.signal(signal.SIGINT, lambda *_: None)
    nodes = plan.nodes(app)
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


def serve_by_name(connection: Line, name: AppName, plan: Plan) -> None:
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
