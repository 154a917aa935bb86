"""Rounds of strategies without a run: nodes that are only there, and replies that nobody sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from flower_ldp.clients import LdpMod, ProtectedEvalRelease, Release
from flower_ldp.mechanisms import RandomSource
from flower_ldp.simulation import run_in_process
from flower_ldp.wire.layout import without_part
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY, UpdateProposal
from tests.fixtures import message, parsed, record

Arrays = Mapping[str, Any]


class FakeGrid:
    """So many nodes, from 100 on; nothing can be sent to them."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def get_node_ids(self) -> list[int]:
        return list(range(100, 100 + self.nodes))


def ask(strategy: Strategy, model: Arrays, server_round: int = 1, nodes: int = 6) -> list[Message]:
    grid: Any = FakeGrid(nodes)
    return list(strategy.configure_train(server_round, record(model), ConfigRecord(), grid))


def ask_evaluation(strategy: Strategy, model: Arrays) -> list[Message]:
    grid: Any = FakeGrid(6)
    return list(strategy.configure_evaluate(1, record(model), ConfigRecord(), grid))


def proposed(sent: Message) -> UpdateProposal[Any]:
    fields, _ = without_part(sent.content.config_records[PROPOSAL_KEY])
    return parsed(fields)


def reply(payload: object, node: int) -> Message:
    content = RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: payload})})  # type: ignore[dict-item]
    return message(content, node=node, reply=True)


def answer(sent: Message, update: np.ndarray, source: RandomSource) -> Message:
    """Return what an honest gate makes of an update."""
    mechanism, entries = proposed(sent).mechanism, len(update)
    drawn = mechanism.randomize(update, source, entries)
    return reply(mechanism.encode(drawn, entries), sent.metadata.dst_node_id)


def aggregated(
    strategy: Strategy, replies: Iterable[Message], server_round: int = 1
) -> tuple[dict[str, np.ndarray], MetricRecord]:
    """Return the model after a round that moves it, and what was counted."""
    arrays, metrics = strategy.aggregate_train(server_round, replies)
    assert arrays is not None
    assert metrics is not None
    return {name: one.numpy() for name, one in arrays.items()}, metrics


def unmoved(strategy: Strategy, replies: Iterable[Message], server_round: int = 1) -> MetricRecord:
    """Return what was counted in a round after which the model stays."""
    arrays, metrics = strategy.aggregate_train(server_round, replies)
    assert arrays is None
    assert metrics is not None
    return metrics


def change(after: Arrays, before: Arrays, *names: str) -> np.ndarray:
    """Return by how much arrays moved, one after another."""
    return np.concatenate([(after[name] - before[name]).ravel() for name in names])


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def run(
    strategy: Strategy,
    release: Release,
    model: Arrays,
    trained: Arrays,
    *,
    num_rounds: int = 2,
    nodes: int = 4,
) -> Any:
    """Return the result of a run of clients whose app replies these arrays."""
    gate = LdpMod(train=release, evaluate=ProtectedEvalRelease())
    server, client, found = ServerApp(), ClientApp(mods=[gate]), []

    @client.train()
    def train(sent: Message, _: Context) -> Message:
        assert set(sent.content.array_records["arrays"]) == set(model)  # the model is whole
        metrics = MetricRecord({"loss": 1.5})
        return Message(RecordDict({"a": record(trained), "m": metrics}), reply_to=sent)

    @client.evaluate()
    def evaluate(sent: Message, _: Context) -> Message:
        rows = record({"p": np.full((3, 4), 0.25, dtype=np.float32)})
        return Message(RecordDict({"p": rows}), reply_to=sent)

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        found.append(strategy.start(grid, record(model), num_rounds=num_rounds))

    run_in_process(server, client, nodes)
    return found[0]
