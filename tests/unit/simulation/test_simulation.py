"""A run in one process: the apps see what they would over a network, and errors stay errors."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_ldp.errors import ConfigError
from flower_ldp.simulation import load_folder, run_in_process
from flower_ldp.strategies.deadlines import send_and_receive

MODEL = ArrayRecord({"w": Array(np.zeros(3, dtype=np.float32))})


def client() -> ClientApp:
    """Add the partition's number and the number of calls to the model."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        calls = context.state.config_records.setdefault("calls", ConfigRecord({"n": 0}))
        calls["n"] = int(calls["n"]) + 1  # type: ignore[arg-type]
        part = int(context.node_config["partition-id"])
        model = message.content.array_records["arrays"]["w"].numpy()
        model = model + np.float32(part + 0.1 * int(calls["n"]))  # type: ignore[arg-type]
        content = RecordDict(
            {
                "arrays": ArrayRecord({"w": Array(model)}),
                "metrics": MetricRecord({"num-examples": part + 1}),
            }
        )
        return Message(content, reply_to=message)

    return app


def asked(client_app: ClientApp, ask: Any, nodes: int = 3, **options: Any) -> Any:
    """Run a server app that asks, and return what that gave."""
    found: list[Any] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        found.append(ask(grid, context))

    run_in_process(app, client_app, nodes, **options)
    return found[0]


def messages(grid: Grid, content: RecordDict | None = None) -> list[Message]:
    content = RecordDict({"arrays": MODEL}) if content is None else content
    return [Message(content, node, "train") for node in grid.get_node_ids()]


@pytest.mark.parametrize("strict", [True, False])
def test_fedavg_gets_the_weighted_mean_of_all_partitions(strict: bool) -> None:
    def ask(grid: Grid, _: Context) -> Any:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
        return strategy.start(grid, MODEL, num_rounds=2).arrays["w"].numpy()

    # In each round (1 * 0 + 2 * 1 + 3 * 2) / 6 and a tenth of the number of calls.
    expected = np.full(3, 2 * 8 / 6 + 0.1 + 0.2)
    assert asked(client(), ask, strict=strict) == pytest.approx(expected, rel=1e-6)


def test_state_is_each_nodes_own_and_dropped_where_it_is_not_to_be_kept() -> None:
    def ask(grid: Grid, _: Context) -> list[float]:
        for _ in range(3):
            replies = list(grid.send_and_receive(messages(grid)))
        return [float(one.content.array_records["arrays"]["w"].numpy()[0]) for one in replies]

    assert asked(client(), ask) == pytest.approx([0.3, 1.3, 2.3])
    assert asked(client(), ask, contexts="drop") == pytest.approx([0.1, 1.1, 2.1])


def test_what_an_app_does_to_a_message_stays_with_it() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        message.content.array_records["arrays"].clear()
        message.metadata.group_id = "another"
        context.node_config["partition-id"] = 77
        return Message(RecordDict({"c": ConfigRecord({})}), reply_to=message)

    def ask(grid: Grid, _: Context) -> tuple[list[str], int]:
        sent = messages(grid)
        replies = list(grid.send_and_receive(sent))
        assert [one.metadata.reply_to_message_id for one in replies] == [
            one.metadata.message_id for one in sent
        ]
        return [one.metadata.group_id for one in sent], len(sent[0].content["arrays"])

    assert asked(app, ask) == ([""] * 3, 1)


def test_an_app_that_raises_is_an_error_reply_and_the_others_answer() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 1:
            raise ZeroDivisionError("of partition 1")
        return Message(RecordDict(), reply_to=message)

    def ask(grid: Grid, _: Context) -> list[str]:
        replies = grid.send_and_receive(messages(grid))
        return [one.error.reason if one.has_error() else "" for one in replies]

    first, second, third = asked(app, ask)
    assert (first, third) == ("", "")
    assert "ZeroDivisionError" in second
    assert "of partition 1" in second


def test_what_no_wire_takes_fails_as_it_would_over_a_network() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"m": MetricRecord({"n": 2**70})}), reply_to=message)

    def ask(grid: Grid, _: Context) -> list[bool]:
        return [one.has_error() for one in grid.send_and_receive(messages(grid))]

    assert asked(app, ask) == [True] * 3
    assert asked(app, ask, strict=False) == [False] * 3


def test_a_time_limit_leaves_the_rest_for_later() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, _: Context) -> Message:
        time.sleep(0.05)
        return Message(RecordDict(), reply_to=message)

    def ask(grid: Grid, _: Context) -> tuple[int, int, int]:
        sent = messages(grid)
        in_time = list(grid.send_and_receive(sent, timeout=0.01))
        names = [one.metadata.message_id for one in sent]
        late = list(grid.pull_messages(names))
        return len(in_time), len(late), len(list(grid.pull_messages(names)))

    assert asked(app, ask) == (1, 2, 0)


def test_a_message_past_its_time_to_live_is_an_error_and_unknown_nodes_are_gone() -> None:
    def ask(grid: Grid, _: Context) -> list[int]:
        (node, *_) = grid.get_node_ids()
        old = Message(RecordDict({"arrays": MODEL}), node, "train", ttl=1e-9)
        nobody = Message(RecordDict({"arrays": MODEL}), 5, "train")
        return [one.error.code for one in grid.send_and_receive([old, nobody])]

    assert asked(client(), ask) == [3, 5]


def test_this_packages_strategies_collect_from_it() -> None:
    def ask(grid: Grid, _: Context) -> int:
        return len(send_and_receive(grid, messages(grid), timeout=60.0))

    assert asked(client(), ask, nodes=100) == 100


def test_wrong_arguments_are_refused_by_name() -> None:
    server, app = ServerApp(), client()
    with pytest.raises(TypeError, match="server_app"):
        run_in_process(app, app, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="client_app"):
        run_in_process(server, server, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_nodes"):
        run_in_process(server, app, 0)
    with pytest.raises(ConfigError, match=r"pyproject\.toml"):
        load_folder("/nowhere")


PROJECT = """
[project]
name = "app"
version = "1.0.0"

[tool.flwr.app]
publisher = "nobody"

"""


def test_an_app_of_a_name_that_another_folder_has_taken_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    project = '[tool.flwr.app.components]\nserverapp = "same_name:server"\n'
    project += 'clientapp = "same_name:client"\n'
    code = "from flwr.clientapp import ClientApp\nfrom flwr.serverapp import ServerApp\n"
    for name in ("plain", "private"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "pyproject.toml").write_text(PROJECT + project)
        body = f"{code}server, client = ServerApp(), ClientApp()\nname = {name!r}\n"
        (folder / "same_name.py").write_text(body)
    first = load_folder(tmp_path / "plain")
    assert load_folder(tmp_path / "plain").client is first.client
    # It would be the plain app, without a word.
    with pytest.raises(ConfigError, match=r"same_name was loaded before, from .*plain"):
        load_folder(tmp_path / "private")
    del sys.modules["same_name"]
