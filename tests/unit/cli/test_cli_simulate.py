"""``flower-ldp simulate``: an app's folder, with the settings that ``flwr run`` would take."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import facts, flower_ldp

PROJECT = """\
[project]
name = "small"
version = "1.0.0"
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "small_app:server"
clientapp = "small_app:client"
[tool.flwr.app.config]
rounds = 1
target = ""
fails = "nowhere"
"""
#: Asks all nodes in each round; writes down what they say of themselves.
APP = """\
import json, os, sys
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client, server = ClientApp(), ServerApp()

@client.train()
def train(message, context):
    if context.run_config["fails"] == "client":
        raise ArithmeticError("of the client")
    state = context.state.config_records.setdefault("calls", ConfigRecord({"n": 0}))
    state["n"] += 1
    found = {**context.node_config, "calls": state["n"]}
    found["process"] = os.getpid()
    found["policy"] = os.environ.get("FLOWER_LDP_POLICY", "")
    return Message(RecordDict({"found": ConfigRecord(found)}), reply_to=message)

@server.main()
def main(grid, context):
    config = context.run_config
    for number in range(1, config["rounds"] + 1):
        nodes = grid.get_node_ids()
        replies = grid.send_and_receive([Message(RecordDict(), n, "train") for n in nodes])
        found = [dict(one.content["found"]) for one in replies if one.has_content()]
        print(f"round {number}: {len(found)} replies", flush=True)
        with open(config["target"], "w") as file:
            json.dump(found, file)
        ends = {"server": fail, "Ctrl-C": interrupt, "exit": sys.exit, "give up": give_up}
        ends.get(config["fails"], int)()

def fail():
    raise ArithmeticError("of the server")

def interrupt():
    raise KeyboardInterrupt

def give_up():
    sys.exit("no data")
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    monkeypatch.delenv("FLOWER_LDP_POLICY", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / "app"
    folder.mkdir()
    text = PROJECT.replace('target = ""', f'target = "{tmp_path / "found.json"}"')
    (folder / "pyproject.toml").write_text(text)
    (folder / "small_app.py").write_text(APP)
    yield folder
    sys.modules.pop("small_app", None)


def found(app: Path) -> list[dict[str, object]]:
    """Return what the nodes said in the last round."""
    answers: list[dict[str, object]] = json.loads((app.parent / "found.json").read_text())
    return answers


def test_the_app_runs_on_the_nodes_that_are_asked_for(app: Path) -> None:
    done = flower_ldp("simulate", app, "--nodes", 3, "--run-config", "rounds=2")
    assert done.code == 0
    assert done.out.splitlines()[:2] == ["round 1: 3 replies", "round 2: 3 replies"]
    assert re.fullmatch(r"ran [\d.]+ s, 3 nodes \(--nodes\)", done.out.splitlines()[2])
    assert [(one["partition-id"], one["num-partitions"], one["calls"]) for one in found(app)] == [
        (number, 3, 2) for number in range(3)
    ]
    assert not (app.parent / "flower").exists()


def test_settings_reach_the_nodes(app: Path) -> None:
    file = app.parent / "run.toml"
    file.write_text("rounds = 3")
    words = ("--run-config", file, "--node-config", "ward=7 name='x y'", "--contexts", "drop")
    owner = app.parent / "policy.yaml"
    owner.write_text(flower_ldp("policy", "sample", "--simulation").out)
    done = flower_ldp("simulate", app, "--nodes", 1, *words, "--policy", owner, "--fast", "--json")
    (node,) = found(app)
    assert (node["ward"], node["name"], node["calls"]) == (7, "x y", 1)
    assert node["policy"] == str(owner)
    assert "FLOWER_LDP_POLICY" not in os.environ
    facts = done.json
    assert (facts["nodes"], facts["nodes_from"], facts["workers"]) == (1, "--nodes", 1)
    assert (facts["strict"], facts["run_config"]["rounds"]) == (False, 3)
    assert "round 3: 1 replies" in done.err
    assert facts["warnings"] == []
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [key for key in facts if f"`{key}`" not in page] == []


def test_faults_come_from_a_seed(app: Path) -> None:
    """So two runs lack the same nodes, and another seed others."""
    lists = []
    for seed in (1, 1, 2):
        faults = ("--faults", f"away=0.5 seed={seed}")
        assert flower_ldp("simulate", app, "--nodes", 30, *faults).code == 0
        lists.append([one["partition-id"] for one in found(app)])
    assert lists[0] == lists[1]
    assert lists[1] != lists[2]
    assert 0 < len(lists[0]) < 30


def test_workers_are_other_processes(app: Path) -> None:
    done = flower_ldp("simulate", app, "--nodes", 4, "--workers", 2, "--json")
    assert done.code == 0
    assert sorted(one["partition-id"] for one in found(app)) == [0, 1, 2, 3]
    processes = {one["process"] for one in found(app)}
    assert len(processes) == done.json["workers"] == 2
    assert os.getpid() not in processes


def test_the_federation_is_that_of_flwr_run(app: Path) -> None:
    both = ("--federation-config", "num-supernodes=4 client-resources-num-cpus=1")
    done = facts("simulate", app, *both)
    assert (done["nodes"], done["nodes_from"]) == (4, "--federation-config")
    assert "client-resources-num-cpus: about Flower's engine" in done["warnings"][0]
    default = facts("simulate", app)
    assert default["nodes"] == 2
    assert "--nodes says it" in default["warnings"][0]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--run-config", "round=2"), "Key 'round' is not present"),
        (("--run-config", "rounds"), "KEY=VALUE"),
        (("--run-config", "/nowhere.toml"), "/nowhere.toml"),
        (("--federation-config", "nodes=2"), "nodes"),
        (("elsewhere",), "no connection 'elsewhere'"),
        (("--node-config", "partition-id=1"), "partition-id is given to each node"),
        (("--node-config", f"size={2**63}"), "size: 9223372036854775808 does not fit into 64 bits"),
        (("--policy", "/nowhere.yaml"), "/nowhere.yaml"),
        (("--faults", "asleep=0.5"), "--faults has away, leaving, lost, seed, slow, slow-seconds"),
        (("--faults", "lost=2"), "lost must be in [0, 1]"),
        (("--faults", "lost='often'"), "--faults: "),
    ],
)
def test_what_cannot_be_used_is_one_line(words: tuple[str, ...], complaint: str, app: Path) -> None:
    done = flower_ldp("simulate", app, *words)
    assert done.code == 1
    assert done.out == ""
    assert complaint in next(line for line in done.err.splitlines() if "error: " in line)
    assert not (app.parent / "found.json").exists()


def test_a_folder_without_an_app_is_named(app: Path) -> None:
    text = PROJECT.replace('clientapp = "small_app:client"', 'agentapp = "small_app:client"')
    (app / "pyproject.toml").write_text(text)
    done = flower_ldp("simulate", app, "--nodes", 1)
    assert (done.code, "names no clientapp" in done.err) == (1, True)
    (app / "pyproject.toml").unlink()
    assert flower_ldp("simulate", app, "--nodes", 1).code == 1


FEDAVG = """\
import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flower_ldp.clients import LdpMod, SignDSRelease
from flower_ldp.mechanisms import SignDS
from flower_ldp.strategies import SignDSStrategy

client, server = ClientApp(mods=[LdpMod(train=SignDSRelease())]), ServerApp()

@client.train()
def train(message, context):
    return Message(message.content, reply_to=message)

@server.main()
def main(grid, context):
    if context.run_config["target"] == "fedavg":
        strategy = FedAvg(fraction_evaluate=0.0)
    else:
        strategy = SignDSStrategy(SignDS(epsilon=4.0), fraction_evaluate=0.0)
    strategy.start(grid, ArrayRecord([np.zeros(2000, np.float32)]), num_rounds=1)
"""


def test_too_few_nodes_are_an_error_at_once(app: Path) -> None:
    (app / "small_app.py").write_text(FEDAVG)
    for target in ("fedavg", "signds"):
        done = flower_ldp("simulate", app, "--nodes", 1, "-c", f"target='{target}'")
        assert done.code == 1
        (line,) = [line for line in done.err.splitlines() if line.startswith("error: ")]
        assert line.startswith("error: the app waits for 2 nodes, and this run has 1 for good")


@pytest.mark.parametrize(("target", "code"), [("fedavg", "proposal"), ("signds", "policy")])
def test_a_run_of_refusals_is_one_line_that_names_the_option(
    target: str, code: str, app: Path
) -> None:
    (app / "small_app.py").write_text(FEDAVG)
    done = flower_ldp("simulate", app, "--nodes", 2, "-c", f"target='{target}'", "--json")
    assert done.code == 1
    (problem,) = done.json["problems"]
    assert f"ldp:refused:{code} 2 times" in problem
    assert ("--policy FILE" in problem) == (code == "policy")
    assert "SuperLink" not in done.err
    assert "Traceback" not in done.err


def test_the_option_s_policy_takes_the_place_of_an_exported_one(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (app / "small_app.py").write_text(FEDAVG)
    monkeypatch.setenv("FLOWER_LDP_POLICY", "/nowhere/policy.yaml")
    monkeypatch.setattr("flower_ldp.policy.files._at_start", "/nowhere/policy.yaml")
    owner = app.parent / "policy.yaml"
    owner.write_text(flower_ldp("policy", "sample", "--simulation").out)
    done = flower_ldp("simulate", app, "--nodes", 2, "--policy", owner, "--json")
    assert done.json["problems"] == []
    assert os.environ["FLOWER_LDP_POLICY"] == "/nowhere/policy.yaml"


def test_what_the_server_app_raises_is_told_with_its_traceback(app: Path) -> None:
    words = ("--nodes", 1, "-c", "fails='server'", "--json")
    done = flower_ldp("simulate", app, *words, traceback=True)
    assert done.json["problems"] == ["the server app failed: ArithmeticError: of the server"]
    assert 'raise ArithmeticError("of the server")' in done.err
    assert "cli/simulate.py" not in done.err


@pytest.mark.parametrize(
    ("way", "problem"), [("exit", None), ("give up", "the app ended the run: no data")]
)
def test_an_app_may_end_the_run(way: str, problem: str | None, app: Path) -> None:
    done = flower_ldp("simulate", app, "--nodes", 1, "-c", f"fails='{way}'", "--json")
    assert done.json["problems"] == ([problem] if problem else [])
    assert len(found(app)) == 1


def test_an_app_that_does_not_load_is_told_with_its_traceback(app: Path) -> None:
    (app / "small_app.py").write_text("client = server = 1 / 0\n")
    done = flower_ldp("simulate", app, "--nodes", 1, traceback=True)
    assert done.code == 1
    assert "error: the app cannot be loaded: ZeroDivisionError" in done.err
    assert "client = server = 1 / 0" in done.err


@pytest.mark.parametrize("code", [0, 3])
def test_an_app_that_ends_the_program_while_it_is_imported_is_a_problem(
    code: int, app: Path
) -> None:
    (app / "small_app.py").write_text(f"raise SystemExit({code})")
    done = flower_ldp("simulate", app, "--nodes", 2, "--json", traceback=True)
    assert done.code == 1
    assert done.json["problems"] == [f"the app cannot be loaded: SystemExit: {code}"]


def test_what_is_no_app_is_named(app: Path) -> None:
    (app / "small_app.py").write_text("client = server = 7")
    done = flower_ldp("simulate", app, "--nodes", 2)
    assert done.code == 1
    assert "must be a ServerApp and a ClientApp, got int and int" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("workers", [1, 2])
def test_programs_that_the_app_starts_write_to_no_json(
    workers: int, app: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = APP.replace(
        "    state = context", "    os.system('echo a program')\n    state = context"
    )
    (app / "small_app.py").write_text(code)
    done = flower_ldp("simulate", app, "--nodes", 2, "--workers", workers, "--json")
    assert done.json["ok"]
    os.system("echo after")
    out, err = capfd.readouterr()
    assert out == "after\n"
    assert err.count("a program") == 2


def test_what_a_client_raises_is_its_reply(app: Path, caplog: pytest.LogCaptureFixture) -> None:
    done = flower_ldp("simulate", app, "--nodes", 2, "-c", "fails='client'")
    assert (done.code, found(app)) == (0, [])
    assert "of the client" in caplog.text


def test_ctrl_c_while_flower_is_imported_ends_alike(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loading(name: str) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("flower_ldp.cli.main.import_module", loading)
    done = flower_ldp("simulate", app, "--nodes", 2)
    assert done.code == 130
    assert "stopped by Ctrl-C" in done.err


def test_ctrl_c_ends_with_one_line_and_its_own_code(app: Path) -> None:
    done = flower_ldp("simulate", app, "--nodes", 2, "-c", "fails='Ctrl-C'")
    assert done.code == 130
    assert done.err.splitlines()[-1] == "stopped by Ctrl-C; what was written by then is kept"
    assert len(found(app)) == 2
