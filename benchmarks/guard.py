"""What the guarded node costs: one message through a SuperNode's connection, with and without.

One message is fetched, its objects are handed to the app's store, and the app's reply (the
trained LeNet-5, 61,706 weights) is sent, in the way in which Flower's SuperNode does it, over
a connection in memory: no network on either side. With the guard that includes reading the
policy, charging the ledger and sealing the report on disk, the SignDS report itself, and the
passing of every object through the guard. With and without alternate.

The app's process, which Flower starts anew for each message, costs far more than either: the
least that it costs, the import of Flower's own code, is measured too, and the ratio that
counts holds it on both sides. Ratios are of processor time, which other work on the machine
changes little.

    python benchmarks/guard.py --output benchmarks/results/guard.json
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _environment import write_report
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, Metadata, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.node.flower_api import Channel, object_ids
from flower_ldp.node.guard import Guard
from flower_ldp.node.startup import named_gate
from flower_ldp.wire.proposal import PROPOSAL_KEY, UpdateProposal

#: LeNet-5, as in the example.
SHAPES = ((6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 400), (120,), (84, 120), (84,), (10, 84))
POLICY = """
data_id: benchmark
ledger: ledger.sqlite
mode: deployment
messages: {train: {signds: {epsilon: 100.0}, magrr: {epsilon: 1.0}}}
budgets: {client: {life: {epsilon: 1000000.0}}}
"""


class Memory:
    """The SuperLink's end of a connection: hands out one message, counts what is sent."""

    def __init__(self) -> None:
        self.message: Message | None = None
        self.objects: dict[str, bytes] = {}
        self.bytes_sent = 0

    def channel(self) -> Channel:
        """Return the node's end."""
        return Channel(
            2,
            self._receive,
            lambda message, object_tree, clientapp_runtime: (object_ids(object_tree), "session"),
            lambda run_id: None,
            lambda fab_hash, run_id: None,
            lambda run_id, object_id: self.objects[object_id],
            self._push,
            lambda run_id, object_id: None,
        )

    def offer(self, message: Message) -> None:
        """Hand out this message from now on."""
        message.metadata.__dict__["_message_id"] = message.object_id
        self.message = message
        self.objects = {k: one.deflate() for k, one in get_all_nested_objects(message).items()}
        self.bytes_sent = 0

    def _receive(self) -> tuple[Message, Any] | None:
        return None if self.message is None else (self.message, get_object_tree(self.message))

    def _push(self, run_id: int, session_id: str, object_id: str, contents: bytes) -> None:
        self.bytes_sent += len(contents)


def model(rng: np.random.Generator) -> ArrayRecord:
    """Return random weights; what they are does not change the time."""
    return ArrayRecord(
        {
            str(number): Array(rng.normal(size=shape).astype(np.float32))
            for number, shape in enumerate(SHAPES)
        }
    )


def train_message(number: int, arrays: ArrayRecord) -> Message:
    """Return what the SignDS strategy sends."""
    proposal = UpdateProposal(SignDSRound(SignDS(100.0, 0.2), 1.0, 1e-3))
    content = RecordDict({"arrays": arrays, PROPOSAL_KEY: ConfigRecord({**proposal.to_fields()})})
    message: Message = Message(  # type: ignore[call-overload]  # its overloads lack metadata
        content=content,
        metadata=Metadata(
            run_id=1,
            message_id="",
            src_node_id=1,
            dst_node_id=2,
            reply_to_message_id="",
            group_id=str(number),
            created_at=time.time(),
            ttl=3_600.0,
            message_type=MessageType.TRAIN,
        ),
    )
    return message


def handle(channel: Channel, reply: RecordDict) -> tuple[float, float, float]:
    """Take one message through a node.

    Returns
    -------
    before, after, cpu : float
        Seconds before and after the app, and processor seconds of both.
    """
    start, cpu_start = time.perf_counter(), time.process_time()
    received = channel.receive()
    if received is None:
        raise RuntimeError("the message was refused")
    message, tree = received
    kept = {name: channel.pull_object(1, name) for name in object_ids(tree)}
    channel.confirm_message_received(1, message.metadata.message_id)
    before, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    if not kept:
        raise RuntimeError("the message has no objects")
    answer = Message(reply, reply_to=message)
    answer.metadata.__dict__["_message_id"] = answer.object_id
    tree = get_object_tree(answer)
    objects = {name: one.deflate() for name, one in get_all_nested_objects(answer).items()}
    start, cpu_start = time.perf_counter(), time.process_time()
    wanted, session = channel.send(answer, tree, 1.0)
    for name in wanted:
        channel.push_object(1, session, name, objects[name])
    return before, time.perf_counter() - start, cpu + time.process_time() - cpu_start


def app_start_cpu_seconds(repeats: int) -> float:
    """Return the least processor time that Flower's process for one message takes to start."""
    seconds = []
    for _ in range(repeats):
        before = os.times()
        command = [sys.executable, "-c", "import flwr.supernode.runtime.run_clientapp"]
        subprocess.run(command, check=True)
        after = os.times()
        seconds.append(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
    return min(seconds)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Time messages with and without the guard, in alternation."""
    (folder / "policy.yaml").write_text(POLICY)
    Ledger.open(folder / "ledger.sqlite", create=True).close()
    memory = Memory()
    gate = named_gate("privatize")
    config: Any = {"ldp-policy": str(folder / "policy.yaml")}
    channels = {
        "with_guard": Guard(memory.channel(), gate, config).channel(),
        "without_guard": memory.channel(),
    }
    rng = np.random.default_rng(1)
    arrays, reply = model(rng), RecordDict({"arrays": model(rng)})
    seconds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in channels}
    sent: dict[str, int] = {}
    for number in range(options.warm_up + options.repeats):
        for name in list(channels)[:: 1 if number % 2 else -1]:
            memory.offer(train_message(number, arrays))
            found = handle(channels[name], reply)
            sent[name] = memory.bytes_sent
            if number >= options.warm_up:
                seconds[name].append(found)
    medians = {
        name: {
            "before_the_app": statistics.median(one[0] for one in values),
            "after_the_app": statistics.median(one[1] for one in values),
            "cpu": statistics.median(one[2] for one in values),
        }
        for name, values in seconds.items()
    }
    start = app_start_cpu_seconds(options.starts)
    with_guard, without = (medians[name]["cpu"] for name in ("with_guard", "without_guard"))
    return {
        "repeats": options.repeats,
        "median_seconds": medians,
        "least_app_start_cpu_seconds": start,
        "bytes_sent": sent,
        "cpu_ratio_of_the_connection": with_guard / without,
        "cpu_ratio_with_the_app_start": (start + with_guard) / (start + without),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=200, help="messages with and without")
    parser.add_argument("--warm-up", type=int, default=5, help="messages not counted")
    parser.add_argument("--starts", type=int, default=5, help="app processes")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    if min(options.repeats, options.starts) < 1:
        parser.error("--repeats and --starts must be at least 1")
    with tempfile.TemporaryDirectory() as name:
        result = measure(options, Path(name))
    for name, medians in result["median_seconds"].items():
        print(
            f"{name:<14} before the app {1e3 * medians['before_the_app']:.2f} ms, "
            f"after {1e3 * medians['after_the_app']:.2f} ms, "
            f"processor {1e3 * medians['cpu']:.2f} ms, "
            f"{result['bytes_sent'][name]} bytes sent"
        )
    print(
        f"processor time: ratio {result['cpu_ratio_of_the_connection']:.1f} of the connection "
        f"alone, {result['cpu_ratio_with_the_app_start']:.3f} with the least start of an app's "
        f"process ({result['least_app_start_cpu_seconds']:.2f} s)"
    )
    if options.output is not None:
        write_report(options.output, "benchmarks/guard.py", arguments, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
