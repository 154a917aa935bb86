"""Messages of 1 MiB that Flower would build to gigabytes: each object is named very often.

What is built is counted as Flower builds it, in the node's process and in the server app's.
"""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto import message_pb2, runtime_pb2
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid.http_grid import HttpGrid

from flower_ldp.clients.reports import trained_model
from flower_ldp.errors import WireError
from flower_ldp.strategies.deadlines import send_and_receive
from flower_ldp.wire.layout import ModelLayout
from flower_ldp.wire.message_size import check_size
from tests.fixtures import message, metadata, record

pytest.importorskip("fcntl")
from tests.unit.node import test_guard as guard

MIB = 1 << 20
#: The most that may be allocated for one of them: without the count it is 1 GiB.
MOST = 96 * MIB

Objects = dict[str, bytes]


def packed(one: Message) -> tuple[str, Objects]:
    tree, objects = guard.packed(one)
    return tree.object_id, objects


def put(objects: Objects, content: bytes) -> str:
    name = sha256(content).hexdigest()
    objects[name] = content
    return name


def built(objects: Objects, kind: str, below: list[str], body: bytes) -> str:
    """Add an object as Flower writes it."""
    return put(objects, f"{kind} {','.join(below)} {len(body)}".encode() + b"\0" + body)


def array(objects: Objects, chunk: bytes, times: int) -> str:
    said = {"dtype": "float32", "shape": [1], "stype": "numpy.ndarray"}
    body = json.dumps({**said, "arraychunk_ids": [0] * times}).encode()
    return built(objects, "Array", [built(objects, "ArrayChunk", [], chunk)], body)


def listing(objects: Objects, kind: str, one: str, names: int) -> str:
    body = json.dumps({f"{n}": one for n in range(names)}).encode()
    return built(objects, kind, [one], body)


def repeated_chunk(objects: Objects) -> str:
    one = listing(objects, "ArrayRecord", array(objects, bytes(MIB), 1024), 1)
    return listing(objects, "RecordDict", one, 1)


def repeated_array(objects: Objects) -> str:
    one = listing(objects, "ArrayRecord", array(objects, bytes(MIB), 1), 1024)
    return listing(objects, "RecordDict", one, 1)


def all_of_them(objects: Objects) -> str:
    one = listing(objects, "ArrayRecord", array(objects, bytes(MIB // 2), 16), 16)
    return listing(objects, "RecordDict", one, 16)


def bomb_of(objects: Objects) -> str:
    return array(objects, bytes(MIB), 1024)


def listed_by_a_record(objects: Objects) -> str:
    """Flower builds what a head lists, though nothing names it."""
    return built(objects, "RecordDict", [bomb_of(objects)], b"{}")


def listed_by_a_configuration(objects: Objects) -> str:
    return listing(
        objects, "RecordDict", built(objects, "ConfigRecord", [bomb_of(objects)], b""), 1
    )


def listed_by_a_chunk(objects: Objects) -> str:
    chunk = built(objects, "ArrayChunk", [bomb_of(objects)], b"x")
    said = {"dtype": "float32", "shape": [1], "stype": "numpy.ndarray", "arraychunk_ids": [0]}
    one = built(objects, "Array", [chunk], json.dumps(said).encode())
    return listing(objects, "RecordDict", listing(objects, "ArrayRecord", one, 1), 1)


def many_fields(objects: Objects) -> str:
    record = ConfigRecord({f"{number:x}": number for number in range(100_000)})
    one = put(objects, record.deflate())
    return listing(objects, "RecordDict", one, 1)


BOMBS = [
    repeated_chunk,
    repeated_array,
    all_of_them,
    listed_by_a_record,
    listed_by_a_configuration,
    listed_by_a_chunk,
    many_fields,
]


def armed(one: Message, bomb: Callable[[Objects], str]) -> tuple[str, Objects]:
    """Return a message's objects, with the bomb in the place of its content."""
    objects: Objects = {}
    body = message_to_proto(one)
    body.ClearField("content")
    content = bomb(objects)
    return built(objects, "Message", [content], body.SerializeToString()), objects


@contextmanager
def measured() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def tree_of(name: str, objects: Objects) -> Any:
    head = objects[name].partition(b"\0")[0].decode().split(" ")[1]
    below = [tree_of(one, objects) for one in head.split(",") if one]
    return message_pb2.ObjectTree(object_id=name, children=below)


def test_flower_builds_what_is_named() -> None:
    """The control: what the other tests send is a message for Flower."""
    name, objects = armed(guard.ask(), lambda found: repeated_small(found))
    found = inflate_object_from_contents(name, dict(objects))
    assert isinstance(found, Message)
    assert sum(map(len, objects.values())) < 20_000
    assert found.content.array_records["0"].count_bytes() > 64 * 1000 * 1000
    with pytest.raises(WireError, match="the message takes"):
        check_size(name, objects, MIB)


def test_a_list_that_is_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps far more for a number than the two bytes that it is written by."""
    objects: Objects = {}
    name = built(objects, "Message", [array(objects, b"", 4 * MIB)], b"")
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(WireError, match="the message takes"):
        check_size(name, objects, MIB)


@pytest.mark.parametrize("size", [0, 5, 200, 3_000_000])
def test_a_report_counts_as_its_bytes(size: int) -> None:
    name, objects = packed(message(RecordDict({"r": ConfigRecord({"payload": bytes(size)})})))
    assert check_size(name, objects, MIB) < 20_000 + size


def test_what_is_no_message_is_refused() -> None:
    objects: Objects = {}
    name = put(objects, ConfigRecord({"a": 1}).deflate())
    with pytest.raises(WireError, match="no message"):
        check_size(name, objects, MIB)


def repeated_small(objects: Objects) -> str:
    one = listing(objects, "ArrayRecord", array(objects, bytes(1000), 1000), 65)
    return listing(objects, "RecordDict", one, 1)


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_reply_takes_no_more_of_the_node_than_the_model(
    bomb: Callable[[Objects], str], tmp_path: Path
) -> None:
    link, channel = guard.node(tmp_path)
    link.waiting.append(guard.ask())
    received = channel.receive()
    assert received is not None
    name, objects = armed(Message(RecordDict(), reply_to=received[0]), bomb)
    answer = Message(RecordDict(), reply_to=received[0])
    with measured():
        wanted, session = channel.send(answer, tree_of(name, objects), 1.0)
        for one in wanted:
            channel.push_object(3, session, one, objects[one])
    assert len(guard.payload(link.sent[0])) == guard.LENGTH
    assert guard.counted(tmp_path) == {"failed": 1}


@pytest.mark.parametrize("bomb", BOMBS[:-1])
def test_a_message_of_the_superlinks_is_not_built(
    bomb: Callable[[Objects], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link, _ = guard.node(tmp_path)
    name, objects = armed(guard.ask(), bomb)
    link.objects.update(objects)
    announced = guard.ask()
    link_receive: Any = lambda: (announced, tree_of(name, objects))  # noqa: E731
    far = link.channel()._replace(receive=link_receive)
    config: Any = {"ldp-policy": str(tmp_path / "policy.yaml")}
    gate: Any = None
    with measured():
        assert guard.Guard(far, gate, config).channel().receive() is None
    assert re.search("the message takes [0-9]+ bytes|an object lists others", caplog.text)
    assert guard.entries(tmp_path) == 0


class Replies:
    """The server app's end of a SuperLink: replies as objects, each handed out once."""

    def __init__(self, replies: list[tuple[str, Objects]]) -> None:
        self.objects = {one: content for _, held in replies for one, content in held.items()}
        self.trees = [tree_of(name, held) for name, held in replies]

    def PushMessages(self, _: Any) -> Any:  # noqa: N802
        names = [f"m-{n}" for n in range(len(self.trees))]
        return runtime_pb2.PushAppMessagesResponse(message_ids=names)

    def PullMessages(self, asked: Any) -> Any:  # noqa: N802
        found = runtime_pb2.PullAppMessagesResponse()
        for name in asked.message_ids:
            tree = self.trees[int(name.partition("-")[2])]
            found.messages_list.append(message_pb2.Message())
            found.messages_list[-1].metadata.message_id = tree.object_id
            found.message_object_trees.append(tree)
        return found

    def PullObject(self, asked: Any) -> Any:  # noqa: N802
        content = self.objects[asked.object_id]
        return message_pb2.PullObjectResponse(
            object_found=True, object_available=True, object_content=content
        )

    def ConfirmMessageReceived(self, _: Any) -> None:  # noqa: N802
        pass


def replied(number: int) -> Message:
    about = metadata(number, reply=True)
    about.__dict__["_reply_to_message_id"] = f"m-{number}"
    make: Any = Message
    return make(content=RecordDict({"r": ConfigRecord({"n": number})}), metadata=about)  # type: ignore[no-any-return]


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_reply_that_is_too_much_for_the_server_is_an_error_and_the_others_come(
    bomb: Callable[[Objects], str],
) -> None:
    grid: Any = HttpGrid(token="token")
    grid._run = SimpleNamespace(run_id=3)
    broken, objects = packed(replied(2))
    objects[broken] = b"Message  4\0\xff\xff\xff\xff"
    grid._client = Replies([packed(replied(0)), armed(replied(1), bomb), (broken, objects)])
    sent = ConfigRecord({"n": 1, "text": "", "bytes": b"", "list": []})
    asked = [message(RecordDict({"a": sent}), node=n) for n in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "push_messages", lambda _: ["m-0", "m-1", "m-2"], raising=False)
        with measured():
            found = send_and_receive(grid, asked, timeout=1.0)
    by_name = {one.metadata.reply_to_message_id: one for one in found}
    assert set(by_name) == {"m-0", "m-1", ""}
    assert by_name["m-0"].content["r"] == ConfigRecord({"n": 0})
    assert (by_name["m-1"].metadata.src_node_id, by_name["m-1"].has_error()) == (1, True)
    assert "cannot be read" in by_name["m-1"].error.reason


def test_names_are_compared_before_an_array_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Array] = []
    monkeypatch.setattr(Array, "numpy", lambda self: opened.append(self))
    one = Array(np.zeros(3, np.float32))
    layout = ModelLayout.of({"w": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match="arrays missing"):
        trained_model(RecordDict({"a": ArrayRecord({f"w{n}": one for n in range(9)})}), layout)
    assert opened == []


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"a": record({"w": np.zeros((1300, 1100), np.float32)})}),
        RecordDict({"a": record({f"{n}": np.ones(64, np.float32) for n in range(300)})}),
        RecordDict({"m": MetricRecord({"loss": 0.5, "all": [1] * 50}), "c": ConfigRecord()}),
        RecordDict({"r": ConfigRecord({"payload": bytes(2 * MIB)})}),
    ],
    ids=["empty", "chunks", "equal arrays", "records", "report"],
)
def test_honest_messages_are_counted_for_no_less_than_they_take(content: RecordDict) -> None:
    name, objects = packed(message(content))
    taken = sum(one.count_bytes() for one in content.values())
    size = check_size(name, objects, max(taken, MIB))
    assert size >= taken
