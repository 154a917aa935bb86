"""Client apps for tests of the engine, and a server app that asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from flower_ldp.simulation import run_in_process


def client(does: Callable[[Message, Context], Any]) -> ClientApp:
    """Return an app that does something, and replies the number that this gave."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = does(message, context)
        return Message(RecordDict({"m": MetricRecord({"n": number})}), reply_to=message)

    return app


def count_calls(_: Message, context: Context) -> int:
    """Return how often this node was called, which its state knows."""
    calls = context.state.config_records.setdefault("calls", ConfigRecord({"n": 0}))
    calls["n"] = int(calls["n"]) + 1  # type: ignore[arg-type]
    return int(calls["n"])


def partition(context: Context) -> int:
    return int(context.node_config["partition-id"])


#: At the top level of a module, as a worker that is spawned needs it.
counting = client(count_calls)


def asked(client_app: ClientApp, ask: Callable[[Grid], Any], nodes: int, **options: Any) -> Any:
    """Run a server app that asks, and return what that gave."""
    found: list[Any] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        del context
        found.append(ask(grid))

    run_in_process(app, client_app, nodes, **options)
    return found[0]


def messages(nodes: Iterable[int]) -> list[Message]:
    return [Message(RecordDict(), node, "train") for node in nodes]


def ask_all(grid: Grid) -> dict[int, float | str]:
    """Ask all nodes once, and return their numbers."""
    return numbers(grid.send_and_receive(messages(grid.get_node_ids())))


def numbers(replies: Iterable[Message]) -> dict[int, float | str]:
    """Return the number of each node's reply by partition, or the code of its error."""
    return {
        one.metadata.src_node_id - 1_000_000: (
            f"error {one.error.code}" if one.has_error() else one.content["m"]["n"]  # type: ignore[misc]
        )
        for one in replies
    }
