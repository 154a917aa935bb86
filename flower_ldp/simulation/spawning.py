"""Workers that begin as fresh processes, which import what they need: on every system."""

from __future__ import annotations

import contextlib
import multiprocessing
from multiprocessing.context import SpawnProcess

from flwr.clientapp import ClientApp

from flower_ldp.simulation.plan import Plan
from flower_ldp.simulation.serving import AppName, Line, serve_by_name

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

    def start(self) -> Line:
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
