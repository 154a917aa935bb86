"""``flower-ldp simulate``: an app's folder, with the settings that ``flwr run`` would take."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import Done, facts, flower_ldp, refused
from tests.fixtures import ROOT

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


def run(app: Path, *words: object, traceback: bool = False) -> Done:
    return flower_ldp("simulate", app, "--nodes", 2, *words, traceback=traceback)


def test_the_app_runs_on_the_nodes_that_are_asked_for(app: Path) -> None:
    done = run(app, "--nodes", 3, "--run-config", "rounds=2")
    assert done.code == 0
    first, second, last = done.out.splitlines()[:3]
    assert (first, second) == ("round 1: 3 replies", "round 2: 3 replies")
    assert re.fullmatch(r"ran [\d.]+ s, 3 nodes \(--nodes\)", last)
    said = [(one["partition-id"], one["num-partitions"], one["calls"]) for one in found(app)]
    assert said == [(number, 3, 2) for number in range(3)]
    assert not (app.parent / "flower").exists()


@pytest.fixture
def owner(tmp_path: Path) -> Path:
    """Return a policy for simulations."""
    path = tmp_path / "policy.yaml"
    path.write_text(flower_ldp("policy", "sample", "--simulation").out)
    return path


def test_settings_reach_the_nodes(app: Path, owner: Path) -> None:
    file = app.parent / "run.toml"
    file.write_text("rounds = 3")
    words = ("--run-config", file, "--node-config", "ward=7 name='x y'", "--contexts", "drop")
    done = run(app, "--nodes", 1, *words, "--policy", owner, "--fast", "--json")
    (node,) = found(app)
    assert (node["ward"], node["name"], node["calls"]) == (7, "x y", 1)
    assert node["policy"] == str(owner)
    assert "FLOWER_LDP_POLICY" not in os.environ
    told = done.json
    assert (told["nodes"], told["nodes_from"], told["workers"]) == (1, "--nodes", 1)
    assert (told["strict"], told["run_config"]["rounds"]) == (False, 3)
    assert "round 3: 1 replies" in done.err
    assert told["warnings"] == []
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [key for key in told if f"`{key}`" not in page] == []


def test_faults_come_from_a_seed(app: Path) -> None:
    """So two runs lack the same nodes, and another seed others."""
    lists = []
    for seed in (1, 1, 2):
        assert run(app, "--nodes", 30, "--faults", f"away=0.5 seed={seed}").code == 0
        lists.append([one["partition-id"] for one in found(app)])
    assert lists[0] == lists[1] != lists[2]
    assert 0 < len(lists[0]) < 30


def test_workers_are_other_processes(app: Path) -> None:
    told = facts("simulate", app, "--nodes", 4, "--workers", 2)
    assert sorted(one["partition-id"] for one in found(app)) == [0, 1, 2, 3]
    processes = {one["process"] for one in found(app)}
    assert len(processes) == told["workers"] == 2
    assert os.getpid() not in processes


def test_the_federation_is_that_of_flwr_run(app: Path) -> None:
    both = "num-supernodes=4 client-resources-num-cpus=1"
    told = facts("simulate", app, "--federation-config", both)
    assert (told["nodes"], told["nodes_from"]) == (4, "--federation-config")
    assert "client-resources-num-cpus: about Flower's engine" in told["warnings"][0]
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
    said = refused("simulate", app, *words).splitlines()
    assert complaint in next(line for line in said if "error: " in line)
    assert not (app.parent / "found.json").exists()


def test_a_folder_without_an_app_is_named(app: Path) -> None:
    text = PROJECT.replace('clientapp = "small_app:client"', 'agentapp = "small_app:client"')
    (app / "pyproject.toml").write_text(text)
    assert "names no clientapp" in refused("simulate", app)
    (app / "pyproject.toml").unlink()
    assert run(app).code == 1


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


@pytest.mark.parametrize("target", ["fedavg", "signds"])
def test_too_few_nodes_are_an_error_at_once(target: str, app: Path) -> None:
    (app / "small_app.py").write_text(FEDAVG)
    done = run(app, "--nodes", 1, "-c", f"target='{target}'")
    assert done.code == 1
    (line,) = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: the app waits for 2 nodes, and this run has 1 for good")


@pytest.mark.parametrize(("target", "code"), [("fedavg", "proposal"), ("signds", "policy")])
def test_a_run_of_refusals_names_the_option(target: str, code: str, app: Path) -> None:
    (app / "small_app.py").write_text(FEDAVG)
    done = run(app, "-c", f"target='{target}'", "--json")
    assert done.code == 1
    (problem,) = done.json["problems"]
    assert f"ldp:refused:{code} 2 times" in problem
    assert ("--policy FILE" in problem) == (code == "policy")
    assert "SuperLink" not in done.err


def test_the_options_policy_is_used(
    app: Path, owner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (app / "small_app.py").write_text(FEDAVG)
    monkeypatch.setenv("FLOWER_LDP_POLICY", "/nowhere/policy.yaml")
    monkeypatch.setattr("flower_ldp.policy.files._at_start", "/nowhere/policy.yaml")
    assert facts("simulate", app, "--nodes", 2, "--policy", owner)["problems"] == []
    assert os.environ["FLOWER_LDP_POLICY"] == "/nowhere/policy.yaml"


def test_what_the_server_app_raises_is_told_with_its_traceback(app: Path) -> None:
    done = run(app, "-c", "fails='server'", "--json", traceback=True)
    assert done.json["problems"] == ["the server app failed: ArithmeticError: of the server"]
    assert 'raise ArithmeticError("of the server")' in done.err
    assert "cli/simulate.py" not in done.err


@pytest.mark.parametrize(
    ("way", "problems"), [("exit", []), ("give up", ["the app ended the run: no data"])]
)
def test_an_app_may_end_the_run(way: str, problems: list[str], app: Path) -> None:
    assert run(app, "-c", f"fails='{way}'", "--json").json["problems"] == problems
    assert len(found(app)) == 2


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("client = server = 1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_an_app_that_does_not_load_is_told(code: str, error: str, app: Path) -> None:
    (app / "small_app.py").write_text(f"{code}\n")
    done = run(app, "--json", traceback=True)
    assert (done.code, done.json["problems"]) == (1, [f"the app cannot be loaded: {error}"])
    assert code in done.err


def test_what_is_no_app_is_named(app: Path) -> None:
    (app / "small_app.py").write_text("client = server = 7")
    done = run(app)
    assert done.code == 1
    assert "must be a ServerApp and a ClientApp, got int and int" in done.err


@pytest.mark.parametrize("workers", [1, 2])
def test_programs_that_the_app_starts_write_to_no_json(
    workers: int, app: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = "    state = context"
    code = APP.replace(place, f"    os.system('echo a program')\n{place}")
    (app / "small_app.py").write_text(code)
    assert run(app, "--workers", workers, "--json").json["ok"]
    os.system("echo after")
    out, err = capfd.readouterr()
    assert out == "after\n"
    assert err.count("a program") == 2


def test_what_a_client_raises_is_its_reply(app: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert run(app, "-c", "fails='client'").code == 0
    assert found(app) == []
    assert "of the client" in caplog.text


def test_ctrl_c_ends_with_one_line(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> object:
        raise KeyboardInterrupt

    done = run(app, "-c", "fails='Ctrl-C'")
    assert len(found(app)) == 2
    # And while Flower is imported.
    monkeypatch.setattr("flower_ldp.cli.main.import_module", interrupted)
    for one in (done, run(app)):
        assert one.code == 130
        assert one.err.splitlines()[-1] == "stopped by Ctrl-C; what was written by then is kept"
