"""A whole Flower run in this process: the server app, and the client app once for each node."""

from __future__ import annotations

import contextlib
import os
import tempfile

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from flower_ldp.simulation import flower
from flower_ldp.simulation.answering import Answering, Inline
from flower_ldp.simulation.bar import watching
from flower_ldp.simulation.contexts import Keeping
from flower_ldp.simulation.faults import Faults
from flower_ldp.simulation.grid import InProcessGrid
from flower_ldp.simulation.link import Steady
from flower_ldp.simulation.plan import Config, Plan
from flower_ldp.simulation.progress import Watcher
from flower_ldp.simulation.unreliable import PULL_SECONDS, Unreliable


def run_in_process(
    server_app: ServerApp,
    client_app: ClientApp,
    num_nodes: int,
    *,
    run_config: Config | None = None,
    node_config: Config | None = None,
    strict: bool = True,
    contexts: Keeping = "memory",
    faults: Faults | None = None,
    progress: bool | Watcher | None = None,
) -> Context:
    """Run an unmodified Flower app without an engine, in this process and thread.

    Clients answer one after another, in the order in which the server sent its messages: with
    apps that draw from seeded generators a run repeats itself. A breakpoint in either app works.
    Ray and real SuperNodes stay what a run is measured on; this is for developing and testing.

    The client app is one object for all nodes, where Flower loads it anew for each message: what
    an app or a mod keeps outside ``context.state`` is shared here.

    Parameters
    ----------
    server_app, client_app : ServerApp and ClientApp
        As in the app's modules.
    num_nodes : int
        How many nodes; each has its number in ``context.node_config["partition-id"]``.
    run_config : mapping, optional
        ``context.run_config`` of both apps.
    node_config : mapping, optional
        Of every node, as ``ldp-policy``.
    strict : bool
        Whether messages and contexts go through Flower's own bytes, as over a network, and the
        first of each type to each node through the network's objects too.
    contexts : {"memory", "disk", "drop"}
        Where a node's context is between two messages: in memory, in a temporary folder that
        goes with the run, or nowhere, for nodes that are asked once. It takes room if the app
        left something in it.
    faults : Faults, optional
        Nodes that go and come, slow nodes and lost replies. Time limits and times to live then
        pass by a clock that jumps over waiting, see
        :class:`~flower_ldp.simulation.unreliable.Unreliable`.
    progress : bool or Watcher, optional
        Whether a bar shows rounds, clients that have answered and the seconds left: by default if
        the error output is a terminal. True prints lines where it is none. Or somebody else to be
        told of messages and replies.

    Returns
    -------
    Context
        The server app's, as the app left it.

    Raises
    ------
    TypeError, ValueError
        If an app is none, or there is no node.
    Exception
        What the server app raises.
    """
    if not isinstance(server_app, ServerApp):
        raise TypeError(f"server_app must be a ServerApp, got {type(server_app).__name__}")
    if not isinstance(client_app, ClientApp):
        raise TypeError(f"client_app must be a ClientApp, got {type(client_app).__name__}")
    run_id = int.from_bytes(os.urandom(8), "big") >> 1 | 1  # Flower's are random too
    config = dict(run_config or {})
    context = Context(
        run_id=run_id,
        node_id=flower.SERVER,
        node_config={},
        state=RecordDict(),
        run_config=dict(config),
    )
    with contextlib.ExitStack() as stack:
        folder = None
        if contexts == "disk":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="flower-ldp-"))
        plan = Plan(run_id, num_nodes, config, dict(node_config or {}), strict, contexts, folder)
        answering = stack.enter_context(contextlib.closing(Inline(plan.nodes(client_app).answer)))
        stack.enter_context(flower.server_identity(run_id))
        watcher = stack.enter_context(watching(progress, _rounds(config)))
        server_app(_grid(answering, plan, faults, watcher), context)
    return context


def _grid(
    answering: Answering, plan: Plan, faults: Faults | None, watcher: Watcher | None
) -> InProcessGrid:
    if faults is None:
        link = Steady(plan.ids)
        return InProcessGrid(answering, plan.run_id, link, seal=plan.strict, watcher=watcher)
    faulty = Unreliable(answering, plan.ids, faults)
    return InProcessGrid(
        faulty, plan.run_id, faulty, seal=plan.strict, pull_seconds=PULL_SECONDS, watcher=watcher
    )


def _rounds(run_config: Config) -> int | None:
    """Return the number of rounds, where the app has it under the name of Flower's templates."""
    rounds = run_config.get("num-server-rounds")
    return rounds if isinstance(rounds, int) and rounds > 0 else None
