"""A run in one process: the apps see what they would over a network, and errors stay errors."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_ldp.errors import ConfigError
from flower_ldp.simulation import load_folder, run_in_process
from tests.fixtures import record
from tests.unit.simulation.apps import (
    ask_all,
    asked,
    client,
    count_calls,
    counting,
    messages,
    partition,
)

MODEL = record({"w": np.zeros(3, dtype=np.float32)})


@pytest.mark.parametrize("strict", [True, False])
def test_fedavg_gets_the_weighted_mean_of_all_partitions(strict: bool) -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        part, calls = partition(context), count_calls(message, context)
        model = message.content.array_records["arrays"]["w"].numpy()
        arrays = record({"w": model + np.float32(part + 0.1 * calls)})
        metrics = MetricRecord({"num-examples": part + 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    def ask(grid: Grid) -> Any:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
        return strategy.start(grid, MODEL, num_rounds=2).arrays["w"].numpy()

    # In each round (1 * 0 + 2 * 1 + 3 * 2) / 6 and a tenth of the number of calls.
    expected = np.full(3, 2 * 8 / 6 + 0.1 + 0.2)
    assert asked(app, ask, 3, strict=strict) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("contexts", "calls"), [("memory", 3), ("drop", 1)])
def test_state_is_each_nodes_own_and_dropped_where_it_is_not_to_be_kept(
    contexts: str, calls: int
) -> None:
    def ask(grid: Grid) -> dict[int, float | str]:
        return [ask_all(grid) for _ in range(3)][-1]

    assert asked(counting, ask, 3, contexts=contexts) == {0: calls, 1: calls, 2: calls}


def test_what_an_app_does_to_a_message_stays_with_it() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        message.content.array_records["arrays"].clear()
        message.metadata.group_id = "another"
        context.node_config["partition-id"] = 77
        return Message(RecordDict({"c": ConfigRecord({})}), reply_to=message)

    def ask(grid: Grid) -> tuple[list[str], int]:
        content = RecordDict({"arrays": MODEL})
        sent = [Message(content, node, "train") for node in grid.get_node_ids()]
        asked_for = [one.metadata.reply_to_message_id for one in grid.send_and_receive(sent)]
        assert asked_for == [one.metadata.message_id for one in sent]
        return [one.metadata.group_id for one in sent], len(sent[0].content["arrays"])

    assert asked(app, ask, 3) == ([""] * 3, 1)


def test_what_no_wire_takes_fails_as_it_would_over_a_network() -> None:
    app = client(lambda message, context: 2**70)
    assert asked(app, ask_all, 2) == {0: "error 2", 1: "error 2"}
    assert asked(app, ask_all, 2, strict=False) == {0: 2**70, 1: 2**70}


def test_a_time_limit_leaves_the_rest_for_later() -> None:
    def ask(grid: Grid) -> tuple[int, int, int]:
        sent = messages(grid.get_node_ids())
        in_time = list(grid.send_and_receive(sent, timeout=0.01))
        names = [one.metadata.message_id for one in sent]
        late = list(grid.pull_messages(names))
        return len(in_time), len(late), len(list(grid.pull_messages(names)))

    assert asked(client(lambda message, context: time.sleep(0.05) or 0), ask, 3) == (1, 2, 0)


def test_a_message_past_its_time_to_live_is_an_error_and_unknown_nodes_are_gone() -> None:
    def ask(grid: Grid) -> list[int]:
        (node, *_) = grid.get_node_ids()
        old = Message(RecordDict(), node, "train", ttl=1e-9)
        nobody = Message(RecordDict(), 5, "train")
        return [one.error.code for one in grid.send_and_receive([old, nobody])]

    assert asked(counting, ask, 3) == [3, 5]


def test_wrong_arguments_are_refused_by_name() -> None:
    server, app = ServerApp(), ClientApp()
    for name, arguments in (
        ("server_app", (app, app, 1)),
        ("client_app", (server, server, 1)),
        ("num_nodes", (server, app, 0)),
    ):
        with pytest.raises((TypeError, ValueError), match=name):
            run_in_process(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"pyproject\.toml"):
        load_folder("/nowhere")
