"""An app of a folder, made comparable: the same run in two engines gives the same numbers.

Flower's engine gives its nodes identities by chance and takes their replies as they come, and apps
draw from generators that nobody seeds. So around an app, whose own code is what it is,

* the server asks each node once for its partition, lists the nodes in that order, and takes the
  replies to a call in that order too, because a sum of floats depends on its order;
* before each message the generators of Python, numpy and torch are seeded by the node's partition,
  the message's type and its round, and once at the server's start; after it they are as before,
  because in one process the server shares them;
* all arrays and metrics that cross the grid are noted, and what each node kept of its own.

The same wrapping is used in both engines.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

Config = Mapping[str, bool | float | int | str]
#: What crossed the grid: arrays and metrics by direction, type, round and partition.
Notes = dict[str, Any]
PARTITION = "asked-for-partition"


def seeded_client(app: ClientApp, config: Config, seed: int) -> ClientApp:
    """Return a client app that calls another with seeds, and tells its partition."""
    outer = ClientApp()

    def seeded(message: Message, context: Context) -> Message:
        # run_simulation knows no run configuration
        own = Context(
            run_id=context.run_id,
            node_id=context.node_id,
            node_config=context.node_config,
            state=context.state,
            run_config=dict(config),
        )
        partition = context.node_config["partition-id"]
        with _seeds(seed, message.metadata.message_type, _round_of(message), partition):
            return app(message, own)

    def tell(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        told = ConfigRecord({"partition": partition, "kept": repr(_kept(context.state))})
        return Message(RecordDict({PARTITION: told}), reply_to=message)

    outer.train()(seeded)
    outer.evaluate()(seeded)
    outer.query()(tell)
    return outer


def seeded_server(app: ServerApp, config: Config, seed: int, nodes: int, notes: Notes) -> ServerApp:
    """Return a server app that calls another with seeds and nodes in order, and takes notes."""
    outer = ServerApp()

    @outer.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < nodes:  # Flower's come one after another
            time.sleep(0.01)
        order = {node: told["partition"] for node, told in _asked(grid).items()}
        _order(grid, dict(sorted(order.items(), key=lambda one: one[1])), notes)
        context.run_config = dict(config)
        with _seeds(seed, "server"):
            app(grid, context)
        for told in _asked(grid).values():
            notes[f"kept by {told['partition']}"] = told["kept"]
        for name, arrays in context.state.array_records.items():
            notes[f"left: {name}"] = [_arrays(arrays)]

    return outer


@contextlib.contextmanager
def _seeds(*names: Any) -> Iterator[None]:
    """Seed all generators meanwhile, by names."""
    legacy = np.random.get_state()  # noqa: NPY002 - the apps draw from it
    before = random.getstate(), legacy, torch.get_rng_state()
    seed = zlib.crc32(repr(names).encode())
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


def _asked(grid: Grid) -> dict[int, ConfigRecord]:
    messages = [
        Message(RecordDict(), node, MessageType.QUERY, group_id=PARTITION)
        for node in grid.get_node_ids()
    ]
    return {
        reply.metadata.src_node_id: reply.content.config_records[PARTITION]
        for reply in grid.send_and_receive(messages)
    }


def _order(grid: Any, partitions: dict[int, int], notes: Notes) -> None:
    """Let a grid list nodes, and return replies, in the order of partitions; note them."""
    send_and_receive = grid.send_and_receive

    def ordered(messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        sent = list(messages)
        for message in sent:
            _note(notes, "to", partitions[message.metadata.dst_node_id], message)
        found = send_and_receive(sent, timeout=timeout)
        replies = sorted(found, key=lambda reply: partitions[reply.metadata.src_node_id])
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
            _note(notes, "from", partitions[reply.metadata.src_node_id], reply)
        return replies

    grid.get_node_ids, grid.send_and_receive = lambda: list(partitions), ordered


def _note(notes: Notes, direction: str, partition: int, message: Message) -> None:
    where = message.metadata
    if where.group_id == PARTITION:
        return
    key = f"{direction} {partition}: {where.message_type}"
    for name, record in message.content.items():
        if isinstance(record, ArrayRecord):
            notes.setdefault(f"{key}: {name}", []).append(_arrays(record))
        elif isinstance(record, MetricRecord):
            notes.setdefault(f"{key}: {name}", []).append(repr(dict(record)))


def _round_of(message: Message) -> str:
    """Return the round; old servers say it in the message's group."""
    found = [one.get("server-round") for one in message.content.config_records.values()]
    return str(next(filter(None, found), message.metadata.group_id))


def _arrays(record: ArrayRecord) -> list[str]:
    return [
        f"{name} {one.dtype} {tuple(one.shape)} {hashlib.sha256(one.data).hexdigest()}"
        for name, one in record.items()
    ]


def _kept(state: RecordDict) -> list[tuple[str, str, Any]]:
    """Return the figures that a node keeps; keys of secure aggregation are not seeded."""
    return [
        (name, key, value)
        for name, record in state.config_records.items()
        for key, value in record.items()
        if isinstance(value, list) and all(isinstance(one, float) for one in value)
    ]
