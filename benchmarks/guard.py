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

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import _options as options
import numpy as np
import typer
from _environment import report
from _messages import End, asked_by_signds, signds_proposal
from _runs import say
from _timing import Taken, alternated, clocked
from flwr.app import Array, ArrayRecord, Message, RecordDict

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.node.flower_api import Channel, object_ids, pack
from flower_ldp.node.guard import Guard
from flower_ldp.node.startup import named_gate

#: LeNet-5, as in the example.
SHAPES = ((6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 400), (120,), (84, 120), (84,), (10, 84))
POLICY = """
data_id: benchmark
ledger: ledger.sqlite
mode: deployment
messages: {train: {signds: {epsilon: 100.0}, magrr: {epsilon: 1.0}}}
budgets: {client: {life: {epsilon: 1000000.0}}}
"""


class Memory(End):
    """Hands out one message, counts what is sent."""

    bytes_sent = 0

    def offer(self, message: Message) -> None:
        """Hand out this message from now on."""
        self.message, self.bytes_sent = message, 0
        _, self.objects = pack(message)

    def push(self, run_id: int, session_id: str, object_id: str, contents: bytes) -> None:
        """Count."""
        self.bytes_sent += len(contents)


def model(rng: np.random.Generator) -> ArrayRecord:
    """Return random weights; what they are does not change the time."""
    return ArrayRecord(
        {
            str(number): Array(rng.normal(size=shape).astype(np.float32))
            for number, shape in enumerate(SHAPES)
        }
    )


def handle(channel: Channel, reply: RecordDict) -> tuple[Taken, Taken]:
    """Take one message through a node; return how long it took before and after the app."""
    kept: list[Message] = []

    def fetch() -> None:
        received = channel.receive()
        if received is None:
            raise RuntimeError("the message was refused")
        message, tree = received
        if not [channel.pull_object(1, name) for name in object_ids(tree)]:
            raise RuntimeError("the message has no objects")
        channel.confirm_message_received(1, message.metadata.message_id)
        kept.append(message)

    def send() -> None:
        wanted, session = channel.send(answer, tree, 1.0)
        for name in wanted:
            channel.push_object(1, session, name, objects[name])

    before = clocked(fetch)()
    answer = Message(reply, reply_to=kept[0])
    tree, objects = pack(answer)
    return before, clocked(send)()


def app_start_cpu_seconds(repeats: int) -> float:
    """Return the least processor time that Flower's process for one message takes to start."""
    seconds = []
    for _ in range(repeats):
        before = os.times()
        command = [sys.executable, "-c", "import flwr.supernode.runtime.run_clientapp"]
        subprocess.run(command, check=True)
        after = os.times()
        seconds.append(sum(after[2:4]) - sum(before[2:4]))
    return min(seconds)


def measure(repeats: int, starts: int, folder: Path) -> dict[str, Any]:
    """Time messages with and without the guard, in alternation."""
    (folder / "policy.yaml").write_text(POLICY)
    Ledger.open(folder / "ledger.sqlite", create=True).close()
    memory, gate = Memory(), named_gate("privatize")
    config: Any = {"ldp-policy": str(folder / "policy.yaml")}
    rng, proposal = np.random.default_rng(1), signds_proposal(100.0)
    sent, reply = RecordDict({"arrays": model(rng)}), RecordDict({"arrays": model(rng)})
    bytes_sent: dict[str, int] = {}

    def handling(name: str, channel: Channel) -> Callable[[], tuple[Taken, Taken]]:
        numbers = itertools.count()

        def one() -> tuple[Taken, Taken]:
            memory.offer(asked_by_signds(sent, proposal, next(numbers)))
            found = handle(channel, reply)
            bytes_sent[name] = memory.bytes_sent
            return found

        return one

    guard = Guard(memory.channel(), gate, config).channel()
    channels = {"with_guard": guard, "without_guard": memory.channel()}
    calls = {name: handling(name, channel) for name, channel in channels.items()}
    medians = {
        name: {
            "before_the_app": statistics.median(before.wall for before, _ in pairs),
            "after_the_app": statistics.median(after.wall for _, after in pairs),
            "cpu": statistics.median(before.cpu + after.cpu for before, after in pairs),
        }
        for name, pairs in alternated(calls, repeats, warm_up=5).items()
    }
    start = app_start_cpu_seconds(starts)
    with_guard, without = (medians[name]["cpu"] for name in channels)
    return {
        "repeats": repeats,
        "median_seconds": medians,
        "least_app_start_cpu_seconds": start,
        "bytes_sent": bytes_sent,
        "cpu_ratio_of_the_connection": with_guard / without,
        "cpu_ratio_with_the_app_start": (start + with_guard) / (start + without),
    }


def main(
    repeats: options.Repeats = 200,
    starts: Annotated[int, typer.Option(min=1, help="App processes.")] = 5,
    output: options.Report = None,
) -> None:
    """Time messages, and the start of an app's process."""
    with tempfile.TemporaryDirectory() as name:
        result = measure(repeats, starts, Path(name))
    say(result)
    report(output, result)


if __name__ == "__main__":
    typer.run(main)
