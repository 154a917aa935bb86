"""Contexts between two messages: as the app left them, and no room for what it did not touch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message
from flwr.serverapp import Grid

from flower_ldp.simulation.nodes import FIRST_NODE, Folder, Keeping, Nodes, Plan
from tests.unit.simulation.apps import asked, client, counting, messages, numbers


def nodes(
    folder: Path | None = None, as_bytes: bool = True, keeping: Keeping = "memory", **config: Any
) -> Nodes:
    place = None if folder is None else str(folder)
    return Nodes(counting, Plan(1, 5, {"rate": 0.5}, config, as_bytes, keeping, place))


def some_nodes(folder: Path) -> list[Nodes]:
    return [nodes(), nodes(as_bytes=False), nodes(folder)]


def test_a_context_comes_back_as_the_app_left_it(tmp_path: Path) -> None:
    for kept in some_nodes(tmp_path):
        context = kept.take(FIRST_NODE + 3)
        assert context.node_config == {"partition-id": 3, "num-partitions": 5}
        assert context.run_config == {"rate": 0.5}
        context.state["calls"] = ConfigRecord({"n": 1})
        kept.keep(FIRST_NODE + 3, context)
        again = kept.take(FIRST_NODE + 3)
        assert again.state == context.state
        assert again.node_config == context.node_config
        assert again.run_config == context.run_config
        assert not len(kept.take(FIRST_NODE).state)
        # Nothing is left of a state that the app takes back.
        del again.state["calls"]
        kept.keep(FIRST_NODE + 3, again)
        assert not len(kept.take(FIRST_NODE + 3).state)


@pytest.mark.parametrize("config", [{}, {"partition-id": 77}])
def test_a_node_configuration_that_the_app_changed_stays_changed(
    config: dict[str, bool | float | int | str], tmp_path: Path
) -> None:
    for kept in some_nodes(tmp_path):
        context = kept.take(FIRST_NODE)
        context.node_config = dict(config)
        kept.keep(FIRST_NODE, context)
        assert kept.take(FIRST_NODE).node_config == config
        assert kept.take(FIRST_NODE + 1).node_config["partition-id"] == 1


def test_what_the_app_left_alone_takes_no_room(tmp_path: Path) -> None:
    for kept in some_nodes(tmp_path):
        kept.keep(FIRST_NODE, kept.take(FIRST_NODE))
        assert kept.kept == {} or isinstance(kept.kept, Folder)
    assert not list(tmp_path.iterdir())
    dropped = nodes(keeping="drop")
    context = dropped.take(FIRST_NODE)
    context.state["calls"] = ConfigRecord({"n": 1})
    dropped.keep(FIRST_NODE, context)
    assert not len(dropped.take(FIRST_NODE).state)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder[7] = b"one"
    folder[7] = b"two"
    assert folder.get(7) == b"two"
    assert folder.get(8) is None
    assert [one.name for one in tmp_path.iterdir()] == ["7"]


@pytest.mark.parametrize("strict", [True, False])
def test_a_changed_run_configuration_is_an_error_as_in_flower_and_gone_with_its_message(
    strict: bool,
) -> None:
    def change_once(message: Message, context: Context) -> float:
        context.state["something"] = ConfigRecord({"n": 1})
        rate = float(context.run_config["rate"])
        if message.metadata.group_id == "change":
            context.run_config["rate"] = 2.0
        return rate

    def ask(grid: Grid) -> list[Message]:
        sent = messages([*grid.get_node_ids()] * 3)
        sent[1].metadata.group_id = "change"
        return [reply for one in sent for reply in grid.send_and_receive([one])]

    options = {"run_config": {"rate": 0.5}, "strict": strict}
    first, changed, last = asked(client(change_once), ask, 1, **options)
    assert (changed.error.code, "run_config" in changed.error.reason) == (2, True)
    assert numbers([first]) == numbers([last]) == {0: 0.5}


def test_a_configuration_that_flower_cannot_write_is_refused_before_the_run() -> None:
    with pytest.raises(ValueError, match="Accepted types"):
        nodes(a_list=[1])
