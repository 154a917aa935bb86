"""A whole Flower run in this process: the server app, and the client app once for each node."""

import contextlib
import os
import tempfile
from collections import Counter

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from flower_ldp.parameter_bounds import check_in, must_be
from flower_ldp.simulation import flower_api
from flower_ldp.simulation.faults import Faults, Unreliable
from flower_ldp.simulation.grid import SLICE_SECONDS, Answering, Inline, InProcessGrid, Link
from flower_ldp.simulation.nodes import Config, Keeping, Nodes, Plan
from flower_ldp.simulation.progress import Watcher, watching
from flower_ldp.simulation.workers import Pool, Start, starter


def run_in_process(
    server_app: ServerApp,
    client_app: ClientApp,
    num_nodes: int,
    *,
    run_config: Config | None = None,
    node_config: Config | None = None,
    strict: bool = True,
    contexts: Keeping = "memory",
    workers: int = 1,
    start: Start | None = None,
    faults: Faults | None = None,
    progress: bool | Watcher | None = None,
    outcomes: Counter[str] | None = None,
) -> Context:
    """Run an unmodified Flower app without an engine, in this process (docs/simulation.md).

    With one worker, clients answer one after another in the thread that asks. More workers are
    processes: replies come in any order, and a client app that ends its process is an error reply.
    One client app object serves all nodes of a worker: state outside ``context.state`` is shared.
    Ctrl-C ends the run and its workers.

    Parameters
    ----------
    server_app, client_app : ServerApp and ClientApp
        As in the app's modules.
    num_nodes : int
        Each node has its number in ``context.node_config["partition-id"]``.
    run_config, node_config : mapping, optional
        ``context.run_config`` of both apps; and of every node, as ``ldp-policy``.
    strict : bool
        Whether messages and contexts pass through Flower's bytes, as over a network, and the first
        of each type to each node through the network's objects too.
    contexts : {"memory", "disk", "drop"}
        Place of a node's context between two messages: in memory, in a temporary folder, or
        nowhere.
    workers : int
        Number of messages that are answered at a time; 1 is this process.
    start : {"fork", "spawn"}, optional
        A forked worker is a copy of this process (default on Linux). A spawned one imports the
        client app, which must be at the top level of a module, and the calling program needs ``if
        __name__ == "__main__"``.
    faults : Faults, optional
        Absent and slow nodes and lost replies, by a simulated clock.
    progress : bool or Watcher, optional
        A bar, by default at a terminal. True prints lines elsewhere.
    outcomes : Counter of str, optional
        Counts replies: refusals by their code, all others under "".

    Returns
    -------
    Context
        The server app's, as the app left it.

    Raises
    ------
    TypeError, ValueError
        If an app is none, there is no node or no worker, or a choice is unknown.
    ConfigError
        If Flower's sampling waits for more nodes than there are.
    RuntimeError
        If a worker does not begin.
    Exception
        From the server app.
    """
    must_be("server_app", server_app, ServerApp, "a ServerApp")
    must_be("client_app", client_app, ClientApp, "a ClientApp")
    check_in("[1, inf)", "num_nodes", num_nodes, int)
    check_in("[1, inf)", "workers", workers, int)
    if contexts not in ("memory", "disk", "drop"):
        raise ValueError(f"contexts must be memory, disk or drop, got {contexts!r}")
    run_id = int.from_bytes(os.urandom(8), "big") >> 1 | 1  # Flower's are random too
    config = dict(run_config or {})
    outcomes = Counter() if outcomes is None else outcomes
    context = Context(run_id, flower_api.SERVER, {}, RecordDict(), dict(config))
    with contextlib.ExitStack() as stack:
        folder = None
        if contexts == "disk":
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="flower-ldp-", ignore_cleanup_errors=True)
            )
        of_nodes = dict(node_config or {})
        plan = Plan(run_id, num_nodes, config, of_nodes, strict, contexts, folder, faults is None)
        working: Inline | Pool = (
            Inline(Nodes(client_app, plan).answer)
            if workers == 1
            else Pool(workers, starter(start, client_app, plan))
        )
        stack.callback(working.close)
        stack.enter_context(flower_api.server_identity(run_id))
        watcher = stack.enter_context(watching(progress, _rounds(config)))
        link = Link(plan.ids, None if workers == 1 else SLICE_SECONDS)
        asked: Answering = working
        if faults is not None:
            asked = link = Unreliable(working, plan.ids, faults)
        seal = strict or workers > 1
        grid = InProcessGrid(asked, run_id, link, outcomes=outcomes, seal=seal, watcher=watcher)
        server_app(grid, context)
    return context


def _rounds(run_config: Config) -> int | None:
    rounds = run_config.get("num-server-rounds")
    return rounds if isinstance(rounds, int) and rounds > 0 else None
