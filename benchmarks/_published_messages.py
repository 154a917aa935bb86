"""Rows in the train reply, as published, beside this package's message of their own: bytes.

Both are asked of LeNet's 66,404 weights by a real simulation with SignDS and protected evaluation.
One message is what remains if the evaluate reply's report travels in the train reply.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from flwr.serverapp import Grid, ServerApp

from flower_ldp.clients import LdpMod, ProtectedEvalRelease, SignDSRelease
from flower_ldp.mechanisms import Laplace, SignDS
from flower_ldp.simulation import run_in_process
from flower_ldp.strategies import FixedStep, ProtectedEvalStrategy, SignDSStrategy

WEIGHTS, CLASSES, CLIENTS = 66_404, 62, 4
_POLICY = """
data_id: messages
ledger: ledger.sqlite
mode: simulation
messages:
  train: {signds: {epsilon: 100.0}}
  evaluate: {laplace: {epsilon: 1000.0}}
budgets: {client: {life: {epsilon: 10000.0}}}
"""


def measured() -> dict[str, Any]:
    """Return the bytes that a client receives and sends in a round, in two messages and in one."""
    app, server, found = _app(), ServerApp(), dict[str, Message]()
    strategy = ProtectedEvalStrategy(
        SignDSStrategy(SignDS(100.0, 0.2, 0.6), FixedStep(4.0)), Laplace(1000.0, CLASSES)
    )
    for name in ("configure_train", "configure_evaluate", "aggregate_train", "aggregate_evaluate"):
        _watch(strategy, name, found)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        model = ArrayRecord({"weights": Array(np.zeros(WEIGHTS, np.float32))})
        strategy.start(grid, model, num_rounds=1)

    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder, "policy.yaml")
        policy.write_text(_POLICY, encoding="utf-8")
        os.environ["FLOWER_LDP_POLICY"] = str(policy)
        run_in_process(server, app, CLIENTS, progress=False)
    sizes = {name: len(message_to_proto(one).SerializeToString()) for name, one in found.items()}
    both = found["aggregate_train"]
    for name, record in found["aggregate_evaluate"].content.items():
        both.content[f"rows-{name}"] = record
    joined = len(message_to_proto(both).SerializeToString())
    down, up = sizes["configure_train"], sizes["aggregate_train"]
    return {
        "two": {
            "messages": 4,
            "down": down + sizes["configure_evaluate"],
            "up": up + sizes["aggregate_evaluate"],
        },
        "one": {"messages": 2, "down": down, "up": joined},
    }


def _watch(strategy: Any, name: str, found: dict[str, Message]) -> None:
    call = getattr(strategy, name)

    def watching(*arguments: Any) -> Any:
        if name.startswith("configure"):
            held = list(call(*arguments))
            found[name] = held[0]
            return held
        replies = list(arguments[1])
        found[name] = replies[0]
        return call(arguments[0], replies)

    setattr(strategy, name, watching)


def _app() -> ClientApp:
    app = ClientApp(mods=[LdpMod(train=SignDSRelease(), evaluate=ProtectedEvalRelease())])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        moved = ArrayRecord({"weights": Array(np.linspace(-1, 1, WEIGHTS, dtype=np.float32))})
        return Message(RecordDict({"arrays": moved}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        rows = Array(np.full((1, CLASSES), 1 / CLASSES, np.float32))
        return Message(RecordDict({"arrays": ArrayRecord({"rows": rows})}), reply_to=message)

    return app
