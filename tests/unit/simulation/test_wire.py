"""What is sent is what the server app sent, in Flower's own bytes, and one model is kept once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.serverapp import Grid

from flower_ldp.simulation import flower_api
from tests.unit.simulation.apps import asked, client, messages, numbers, partition

FULL = RecordDict(
    {
        "arrays": ArrayRecord([np.arange(6.0).reshape(2, 3), np.float32([1])]),
        "config": ConfigRecord({"a": True, "b": [1, 2], "c": b"bytes", "d": "text", "e": 0.5}),
        "metrics": MetricRecord({"n": 1, "list": [0.5, 1.5]}),
    }
)


@pytest.mark.parametrize("content", [FULL, RecordDict()], ids=["full", "empty"])
def test_a_letter_is_what_flower_would_write(content: RecordDict) -> None:
    with flower_api.server_identity(7):
        message = Message(content, 1_000_000, "train", group_id="a group")
    letter = flower_api.outgoing(message, "a name", 7, flower_api.MessageEncoder())
    assert flower_api.to_bytes(letter) == message_to_proto(message).SerializeToString()
    read = flower_api.from_bytes(flower_api.to_bytes(letter))
    assert read.metadata == message.metadata
    assert read.content == message.content


def test_a_model_is_written_once_and_known_again_by_what_it_holds() -> None:
    sealer = flower_api.MessageEncoder()
    model = ArrayRecord([np.zeros(3)])

    def sealed(record: ArrayRecord) -> object:
        return sealer.parts(RecordDict({"arrays": record}))[0]

    first = sealed(model)
    assert sealed(model) is first
    assert sealed(ArrayRecord(dict(model.items()))) is first
    model["0"] = Array(np.ones(3))
    changed = sealed(model)
    assert changed != first
    model["0"].shape = (1, 3)
    assert sealed(model) not in (first, changed)
    for number in range(10):
        sealed(ArrayRecord([np.full(3, number)]))
    assert len(sealer._models) == 4


@pytest.mark.parametrize(("workers", "strict"), [(1, True), (2, True), (1, False), (2, False)])
def test_what_the_server_does_after_sending_changes_no_message(workers: int, strict: bool) -> None:
    def read(message: Message, _: Context) -> float:
        rate = message.content["config"]["rate"]  # type: ignore[index]
        return float(rate) + float(message.content["arrays"]["0"].numpy()[0])  # type: ignore

    def ask(grid: Grid) -> dict[int, float | str]:
        names: list[str] = []
        config, model = ConfigRecord(), ArrayRecord()
        for number, node in enumerate(grid.get_node_ids()):
            config["rate"], model["0"] = number / 10, Array(np.full(1, number))
            content = RecordDict({"config": config, "arrays": model})
            names += grid.push_messages([Message(content, node, "train")])
        config["rate"] = 99.0
        model.clear()
        found: dict[int, float | str] = {}
        while len(found) < 3:
            found |= numbers(grid.pull_messages(names))
        return found

    found = asked(client(read), ask, 3, workers=workers, strict=strict)
    assert found == pytest.approx({0: 0.0, 1: 1.1, 2: 2.2})


@pytest.mark.parametrize("strict", [True, False])
def test_a_message_can_be_sent_again(strict: bool) -> None:
    def ask(grid: Grid) -> int:
        sent = messages(grid.get_node_ids())
        names = [*grid.push_messages(sent), *grid.push_messages(sent)]
        return len(list(grid.pull_messages(names)))

    assert asked(client(lambda message, context: 0), ask, 3, strict=strict) == 6


def test_nothing_is_sent_where_one_of_the_messages_cannot_be() -> None:
    worked: list[int] = []

    def ask(grid: Grid) -> int:
        good, bad = messages([*grid.get_node_ids()] * 2)
        bad.metadata.group_id = 3  # type: ignore[assignment]
        with pytest.raises(TypeError):
            grid.push_messages([good, bad])
        content = RecordDict({"m": MetricRecord({"n": 2**70})})
        with pytest.raises(ValueError, match="Value out of range"):
            grid.push_messages([good, Message(content, 1_000_000, "train")])
        with pytest.raises(ValueError, match="Value out of range"):
            grid.push_messages([good, Message(RecordDict(), -5, "train")])
        (sent,) = messages(grid.get_node_ids())
        grid.push_messages([sent])
        assert len(list(grid.pull_messages([sent.metadata.message_id]))) == 1
        with pytest.raises(ValueError, match="no message of this run's server"):
            grid.push_messages([good, Message(RecordDict(), reply_to=sent)])
        return len(list(grid.send_and_receive([good])))

    assert asked(client(lambda message, context: worked.append(1) or 0), ask, 1) == 1
    assert worked == [1, 1]


def test_runs_at_the_same_time_and_within_a_run_keep_their_messages_apart() -> None:
    def rounds(grid: Grid) -> list[dict[int, float | str]]:
        nodes = list(grid.get_node_ids())
        return [numbers(grid.send_and_receive(messages(nodes))) for _ in range(3)]

    inner = client(lambda message, context: partition(context))

    def outer(_: Message, context: Context) -> float:
        time.sleep(0.001)
        return float(asked(inner, rounds, 2)[-1][1]) + partition(context)

    def run(_: int) -> object:
        return asked(client(outer), rounds, 2)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(run, range(8))) == [[{0: 1, 1: 2}] * 3] * 8
    assert flower_api.TaskIdentity is None or flower_api.TaskIdentity._run_id is None


def test_a_client_that_changes_what_it_got_changes_nobody_elses() -> None:
    config = ConfigRecord({"stage": "first", "list": [1]})
    content = RecordDict({"config": config, "arrays": ArrayRecord([np.ones(2)])})
    kept: list[RecordDict] = []

    def taken(message: Message, _: Context) -> float:
        config = message.content.config_records.pop("config")
        found = float(str(config.pop("stage")) == "first") + len(config["list"])  # type: ignore[arg-type]
        config["list"].append(2)  # type: ignore[union-attr]
        message.content.array_records["arrays"]["0"].shape = (1, 2)
        kept.append(message.content)
        return found

    def ask(grid: Grid) -> dict[int, float | str]:
        sent = [Message(content, node, "train") for node in grid.get_node_ids()]
        found = numbers(grid.send_and_receive(sent))
        assert content.array_records["arrays"]["0"].shape == (2,)
        return found

    assert set(asked(client(taken), ask, 3, strict=False).values()) == {2.0}
    assert len({id(content) for content in kept}) == len(kept)
