"""A whole Flower run in this process: the server app, and the client app once for each node."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from flower_ldp.simulation import flower
from flower_ldp.simulation.answering import Answering, Inline
from flower_ldp.simulation.faults import Faults
from flower_ldp.simulation.grid import InProcessGrid
from flower_ldp.simulation.link import Steady
from flower_ldp.simulation.nodes import Nodes
from flower_ldp.simulation.unreliable import PULL_SECONDS, Unreliable

Config = Mapping[str, bool | float | int | str]


def run_in_process(
    server_app: ServerApp,
    client_app: ClientApp,
    num_nodes: int,
    *,
    run_config: Config | None = None,
    node_config: Config | None = None,
    strict: bool = True,
    keep_contexts: bool = True,
    faults: Faults | None = None,
    done: Callable[[int], None] | None = None,
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
    keep_contexts : bool
        Whether a node's ``context.state`` is kept for its next message.
    faults : Faults, optional
        Nodes that go and come, slow nodes and lost replies. Time limits and times to live then
        pass by a clock that jumps over waiting, see
        :class:`~flower_ldp.simulation.unreliable.Unreliable`.
    done : callable, optional
        Is called after each answer with the number of messages that wait.

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
    run_id = int.from_bytes(os.urandom(8), "big") >> 1 | 1  # Flower's are random too
    config = dict(run_config or {})
    nodes = Nodes(
        client_app, num_nodes, run_id, config, dict(node_config or {}), strict, keep_contexts
    )
    context = Context(
        run_id=run_id,
        node_id=flower.SERVER,
        node_config={},
        state=RecordDict(),
        run_config=dict(config),
    )
    answering = Inline(nodes.answer)
    with flower.server_identity(run_id), contextlib.closing(answering):
        server_app(_grid(answering, nodes, faults, done), context)
    return context


def _grid(
    answering: Answering, nodes: Nodes, faults: Faults | None, done: Callable[[int], None] | None
) -> InProcessGrid:
    if faults is None:
        return InProcessGrid(answering, nodes.run_id, Steady(nodes.ids), done=done)
    link = Unreliable(answering, nodes.ids, faults)
    return InProcessGrid(link, nodes.run_id, link, pull_seconds=PULL_SECONDS, done=done)
