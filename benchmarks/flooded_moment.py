"""Whether an app can move the fixed moment of an answer by what it sends to its own node.

A guarded node with Flower's runtime API on a port answers messages at a fixed moment. The app of
each message does nothing, or floods the API from twelve connections: pushes of objects of 7 MB that
Flower takes apart or hashes, replies of 7 MB and of 250 kB of names, and its heartbeats. Which of
both is drawn for each message; the app's process is the same. The SuperLink's end is another
process, which stamps the last object of each answer.

The attacker guesses from the time of an answer which of both the app did: by the best threshold, in
either direction, on one half of the answers, judged on the other half. A half is right by chance.
``--open`` has the node work on calls around the moment too.

    python benchmarks/flooded_moment.py --output benchmarks/results/flooded_moment.json
"""

from __future__ import annotations

import http.client
import multiprocessing
import random
import socket
import tempfile
import threading
import time
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import _options as options
import numpy as np
import typer
import uvicorn
from _environment import report
from _messages import End, signds_proposal, train_message
from _runs import say
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import message_pb2, runtime_pb2
from flwr.supercore.constant import TASK_TOKEN_HEADER, TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunStatus
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import RELEASES, LdpMod
from flower_ldp.node import runtime_api as calls_module
from flower_ldp.node.flower_api import object_ids, pack
from flower_ldp.node.guard import Guard
from flower_ldp.node.report_mac import MacAuthorizer
from flower_ldp.node.runtime_api import AppCalls
from flower_ldp.wire.proposal import PROPOSAL_KEY

RUN, NODE = 3, 7
FAB = sha256(b"content").hexdigest()
MEGABYTES = 7
CONNECTIONS = 12
POLICY = """
data_id: benchmark
ledger: ledger.sqlite
mode: deployment
messages: {{train: {{signds: {{epsilon: 1.0}}}}}}
budgets: {{client: {{life: {{epsilon: 1000000.0}}}}}}
answer_after: {{train: {after}}}
"""


def far_end(pipe: Connection) -> None:
    """Stamp the last object of each answer, in a process of its own: one round trip a call."""
    while True:
        last = pipe.recv()
        if last is None:
            return
        pipe.send(time.monotonic() if last else 0.0)


class Link(End):
    """Tells another process of each answer."""

    node = NODE

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe
        self._left = 0
        self.arrived: float | None = None

    def receive(self) -> tuple[Message, Any] | None:
        """Hand out the message once."""
        message, self.message = self.message, None
        if message is None:
            return None
        tree, self.objects = pack(message)
        return message, tree

    def send(self, message: Message, object_tree: Any, run_time: float) -> tuple[set[str], str]:
        """Take an answer."""
        self._call(last=False)
        names, session = super().send(message, object_tree, run_time)
        self._left = len(names)
        return names, session

    def push(self, run_id: int, session_id: str, object_id: str, contents: bytes) -> None:
        """Take an object of it."""
        self._left -= 1
        stamp = self._call(last=self._left == 0)
        if self._left == 0:
            self.arrived = stamp

    def _call(self, *, last: bool) -> float:
        self._pipe.send(last)
        found: float = self._pipe.recv()
        return found


def app(port: int, pipe: Connection) -> None:
    """Take each message as an app does, and say so; flood until told otherwise, or do nothing."""
    while True:
        token = pipe.recv()
        if token is None:
            return
        announced = _announced(port, token)
        pipe.send(True)
        if pipe.recv():
            bodies = _bodies(*announced)
            over = threading.Event()
            threads = [
                threading.Thread(target=_flood, args=(port, token, bodies, over), daemon=True)
                for _ in range(CONNECTIONS)
            ]
            for thread in threads:
                thread.start()
            pipe.recv()
            over.set()
            for thread in threads:
                thread.join(5)
        else:
            pipe.recv()


def _post(port: int, token: str, name: str, body: bytes) -> bytes:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    headers = {"content-type": "application/protobuf", TASK_TOKEN_HEADER: token}
    client.request("POST", f"/v1/runtime/{name}", body, headers)
    answer = client.getresponse().read()
    client.close()
    return answer


def _announced(port: int, token: str) -> tuple[str, Message, dict[str, bytes]]:
    """Take the message and say what the reply's objects are."""
    _post(port, token, "pull-task-input", b"")
    found = runtime_pb2.PullAppMessagesResponse.FromString(_post(port, token, "pull-messages", b""))
    asked = message_from_proto(found.messages_list[0])
    reply = Message(RecordDict({"r": ConfigRecord({"n": 1})}), reply_to=asked)
    tree, objects = pack(reply)
    said = runtime_pb2.PushAppMessagesResponse.FromString(
        _post(port, token, "push-messages", _reply(reply, tree))
    )
    return said.session_id, reply, objects


def _reply(reply: Message, tree: Any) -> bytes:
    asked = runtime_pb2.PushAppMessagesRequest(messages_list=[message_to_proto(reply)])
    asked.messages_list[0].metadata.message_id = tree.object_id
    asked.message_object_trees.append(tree)
    found: bytes = asked.SerializeToString()
    return found


def _bodies(session: str, reply: Message, objects: dict[str, bytes]) -> list[tuple[str, bytes]]:
    """Return what is sent again and again: all of it costs the node as much as it lets it."""
    found = []
    for size in (MEGABYTES * 1_000_000, MEGABYTES * 1_000_000, 250_000):
        tree = message_pb2.ObjectTree(object_id="f" * 64)
        tree.children.extend(
            message_pb2.ObjectTree(object_id=f"{n:064x}") for n in range(size // 70)
        )
        found.append(("push-messages", _reply(reply, tree)))
    size = MEGABYTES * 1_000_000
    (name,) = (one for one, content in objects.items() if content.startswith(b"ConfigRecord"))
    for content in (b"Array " + b"ab," * (size // 3) + b" 0\0", b"ConfigRecord  0\0" + bytes(size)):
        for said in (name, sha256(content).hexdigest()):
            one = message_pb2.PushObjectRequest(
                run_id=RUN, session_id=session, object_id=said, object_content=content
            )
            found.append(("push-object", one.SerializeToString()))
    found.append(("send-task-heartbeat", b""))
    return found


def _flood(port: int, token: str, bodies: list[tuple[str, bytes]], over: threading.Event) -> None:
    number = random.randrange(len(bodies))
    while not over.is_set():
        number = (number + 1) % len(bodies)
        name, body = bodies[number]
        head = (
            f"POST /v1/runtime/{name} HTTP/1.1\r\nhost: node\r\ncontent-type: application/protobuf"
            f"\r\n{TASK_TOKEN_HEADER}: {token}\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=2) as one:
                one.sendall(head + body)
                one.recv(1000)
        except OSError:
            continue


class Node:
    """A guarded node, its runtime API on a port, and one app's process."""

    def __init__(self, folder: Path, after: float) -> None:
        (folder / "policy.yaml").write_text(POLICY.format(after=after))
        Ledger.open(folder / "ledger.sqlite", create=True).close()
        factory = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
        self.state: Any = factory.state()
        self.state.set_node_id(NODE)
        self.state.store_fab(Fab(FAB, b"content", {}))
        status = RunStatus("running", "", "")
        run = Run(
            RUN, "f", "1", FAB, {}, "", "", "", "", status, "", "", None, 0, 0, 0.0, series_id=RUN
        )
        self.state.store_run(run)
        self.state.set_run_series_context(RUN, Context(RUN, NODE, {}, RecordDict(), {}))
        here, there = multiprocessing.Pipe()
        multiprocessing.Process(target=far_end, args=(there,), daemon=True).start()
        self.link = Link(here)
        self.calls = AppCalls()
        gate = LdpMod(train=RELEASES["train"], authorizer=MacAuthorizer())
        config: Any = {"ldp-policy": str(folder / "policy.yaml")}
        guard = Guard(
            self.link.channel(),
            gate,
            config,
            hides=True,
            calls=self.calls,
            answer_after=lambda _: after,
        )
        self.channel = guard.channel()
        api = create_app(factory, None)
        server = uvicorn.Server(
            uvicorn.Config(self.calls.around(api), "127.0.0.1", 0, log_level="error")
        )
        threading.Thread(target=server.run, daemon=True).start()
        while not server.started:
            time.sleep(0.05)
        port = server.servers[0].sockets[0].getsockname()[1]
        self.app, there = multiprocessing.Pipe()
        multiprocessing.Process(target=app, args=(port, there), daemon=True).start()

    def answered(self, number: int, *, floods: bool) -> float:
        """Return the seconds from when a message is fetched to when its answer is there."""
        self.link.arrived, self.link.message = None, _message(number)
        since = time.monotonic()
        received = self.channel.receive()
        if received is None:
            raise RuntimeError("the message was refused")
        message, tree = received
        task = self.state.create_task(task_type=TaskType.CLIENT_APP, run_id=RUN, fab_hash=FAB)
        self.state.object_store.preregister(RUN, tree)
        self.state.store_message(message)
        for name in object_ids(tree):
            self.state.object_store.put(name, self.channel.pull_object(RUN, name))
        self.app.send(self.state.claim_task(task))
        self.app.recv()
        self.app.send(floods)
        while self.link.arrived is None:
            time.sleep(0.02)
        self.app.send(True)
        found: float = self.link.arrived - since
        self._drop(task, message)
        return found

    def _drop(self, task: int, message: Message) -> None:
        self.state.finish_task(task, sub_status="failed", details="")
        self.state.delete_sessions_in_run(RUN)
        self.state.get_messages_legacy(is_reply=True)
        self.state.object_store.delete_objects_in_run(RUN)
        time.sleep(0.05)


def _message(number: int) -> Message:
    model = ArrayRecord({"w": Array(np.zeros((100, 600), np.float32))})
    content = RecordDict({"arrays": model, PROPOSAL_KEY: signds_proposal(1.0, None, None)})
    return train_message(content, number, target=NODE, run=RUN)


def guessed(times: dict[bool, list[float]], seed: int = 0) -> dict[str, float]:
    """Return the share of right guesses on one half, by the best threshold on the other."""
    rng = np.random.default_rng(seed)
    halves: tuple[list[tuple[float, bool]], list[tuple[float, bool]]] = ([], [])
    for floods, found in times.items():
        for place, which in enumerate(rng.permutation(len(found))):
            halves[place % 2].append((found[which], floods))
    shares = {}
    for name, (first, second) in {"first": halves, "second": halves[::-1]}.items():
        best = (0.0, 0.0, True)
        for threshold, _ in first:
            for later in (True, False):
                best = max(best, (_right(first, threshold, later), threshold, later))
        shares[name] = _right(second, best[1], best[2])
    return shares


def _right(found: list[tuple[float, bool]], threshold: float, later: bool) -> float:
    right = [((when > threshold) == floods) is later for when, floods in found]
    return float(np.mean(right))


def run(answers: int, after: float) -> dict[str, Any]:
    times: dict[bool, list[float]] = {True: [], False: []}
    order = [True, False] * answers
    random.Random(1).shuffle(order)
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder), after)
        node.answered(0, floods=False)
        for number, floods in enumerate(order, 1):
            times[floods].append(node.answered(number, floods=floods))
            if number % 50 == 0:
                print(f"{number} of {len(order)}", flush=True)
    late = {
        name: {
            f"{share} %": round(float(np.percentile(times[floods], share)) - after, 5)
            for share in (0, 5, 25, 50, 75, 95, 100)
        }
        for name, floods in (("idle", False), ("flooding", True))
    }
    asked = {"answers_each": answers, "answer_after": after}
    return {**asked, "seconds_late": late, "right_guesses": guessed(times)}


def main(
    answers: Annotated[int, typer.Option(min=2, help="Of each kind.")] = 500,
    after: Annotated[float, typer.Option(help="Seconds until an answer leaves.")] = 0.5,
    is_open: Annotated[
        bool, typer.Option("--open", help="Let the node work around the moment too.")
    ] = False,
    output: options.Report = None,
) -> None:
    """Time answers of a node that is flooded or not, and guess which it was."""
    if is_open:
        calls_module.QUIET, calls_module._LONGEST_QUIET = -3600.0, 0.0
    found = run(answers, after)
    say(found)
    report(output, found)


if __name__ == "__main__":
    typer.run(main)
