"""Whole runs: through Flower's simulation engine, and where that is not the point in a process."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.privacy import Unit
from tests.network.federation import in_a_hurry
from tests.simulation.here import flower_ldp, script

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "signds"


def load_runner() -> ModuleType:
    path = ROOT / "examples" / "_runner.py"
    spec = importlib.util.spec_from_file_location("examples_runner", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_nothing_planted_in_a_client_reaches_the_server(
    tmp_path: Path, simulation_policy: Path
) -> None:
    app = tmp_path / "app"
    shutil.copytree(ROOT / "tests" / "simulation" / "hostile_app", app)
    shutil.copy(ROOT / "LICENSE", app / "LICENSE")
    received = tmp_path / "received.json"
    in_process(app, 10, f'received="{received}"')
    found = json.loads(received.read_text())
    text = "\n".join(found["transcript"])
    assert len(found["transcript"]) == 20
    names = ("num-examples", "loss", "Traceback", "weights")
    for canary in ("canary", "1234.5", "719934208", *names):
        assert canary not in text
    for number in ("1", "2"):
        metrics = found["metrics"][number]
        # three fail, and what three others send is no model: a simulation tells of both
        assert (metrics["accepted"], metrics["rejected"]) == (4, 6)
        assert metrics["rejected-ldp:failed"] == 6
        assert metrics["epsilon-total"] == pytest.approx(21.0 * int(number))
    assert found["norm"] > 0


def test_the_example_runs_from_its_command_in_flowers_engine(tmp_path: Path) -> None:
    output = tmp_path / "outputs"
    command = [sys.executable, str(EXAMPLE / "run.py"), "--clients", "6", "--rounds", "3"]
    command += ["--output", str(output), "--no-baseline", "--engine", "simulation"]
    done = subprocess.run(
        command, env=in_a_hurry(), capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    history = trained(done.stdout, output)
    assert spent(output) == [history[3]["epsilon-total"]] * 6


def test_the_word_in_the_examples_file_decides_on_both_sides(tmp_path: Path) -> None:
    output = tmp_path / "outputs"
    arguments = ["--clients", 6, "--rounds", 3, "--output", output, "--dp-encrypt", "--codeword"]
    done = script(EXAMPLE / "run.py", *arguments, "--workers", 1)
    assert done.code == 0, done.output
    raw, codeword = (
        json.loads((output / f"{name}-history.json").read_text())["rounds"][3]
        for name in ("fedavg", "codeword")
    )
    assert (raw["bytes-up"], codeword["epsilon-total"]) == (14_632, 90.0)
    assert "epsilon-total" not in raw
    with Ledger.open(output / "simulation-ledger.sqlite", read_only=True) as ledger:
        assert {one["unprotected"] for one in ledger.counted().values()} == {3}
    history = trained(done.output, output)
    noised = json.loads((output / "dp-encrypt-history.json").read_text())["rounds"]
    assert (noised[3]["epsilon-total"], noised[3]["bytes-up"]) == (150.0, 3_659)
    assert noised[3]["delta-total"] == pytest.approx(0.03)
    total = history[3]["epsilon-total"] + noised[3]["epsilon-total"]
    assert spent(output) == [total + codeword["epsilon-total"]] * 6


def trained(printed: str, output: Path) -> list[dict[str, Any]]:
    """Check what a run of the example's SignDS leaves; return its rounds."""
    for words in ("total epsilon", "bytes up per client", "r_est", "Each client has spent"):
        assert words in printed
    assert "simulation" in printed
    rounds: list[dict[str, Any]] = json.loads((output / "signds-history.json").read_text())[
        "rounds"
    ]
    assert [row["round"] for row in rounds] == [0, 1, 2, 3]
    assert all(row["accepted"] == 6 for row in rounds[1:])
    assert 0 < rounds[3]["bytes-up"] < 400
    assert (output / "history.png").read_bytes().startswith(b"\x89PNG")
    return rounds


def spent(output: Path) -> list[float]:
    """Return what each client's account holds."""
    with Ledger.open(output / "simulation-ledger.sqlite", read_only=True) as ledger:
        totals = [ledger.totals(account)[Unit.CLIENT] for account in ledger.data_ids()]
    return [amount.spent(Unit.CLIENT).epsilon for amount in totals]


def accuracy_of(printed: str) -> float:
    (accuracy,) = re.findall(r"^final accuracy (\S+)", printed, flags=re.MULTILINE)
    return float(accuracy)


def in_process(app: Path, nodes: int, *settings: str) -> str:
    """Run an app without the engine, from the command line; return what it printed."""
    changes = [word for setting in settings for word in ("--run-config", setting)]
    done = flower_ldp("simulate", app, "--nodes", nodes, *changes)
    assert done.code == 0, done.output
    return done.output


def test_the_existing_app_trains_before_the_change(simulation_policy: Path) -> None:
    app = ROOT / "examples" / "existing_app" / "plain"
    assert accuracy_of(in_process(app, 10, "num-server-rounds=4")) > 0.8


def test_the_existing_app_trains_after_the_change(simulation_policy: Path) -> None:
    app = ROOT / "examples" / "existing_app" / "private"
    # A model that knows nothing scores 0.1; 20 runs gave 0.67 with a deviation of 0.05.
    assert accuracy_of(in_process(app, 50)) > 0.4


def test_where_there_is_no_ray_the_engine_names_its_extra(
    tmp_path: Path, simulation_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    link = load_runner().local_superlink(tmp_path / "flower", simulation_policy)
    with pytest.raises(SystemExit, match="extra 'simulation'"), link:
        pass


def test_a_termination_is_what_ends_a_run_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):
        load_runner()._stop()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--data", "/nowhere/mnist.npz"], "mnist.npz"),
        (["--set", "rounds"], "KEY=VALUE"),
        (["--clients", "1"], "--clients"),
    ],
)
def test_a_wrong_argument_is_a_clear_error(arguments: list[str], complaint: str) -> None:
    done = script(EXAMPLE / "run.py", *arguments)
    assert done.code == 2
    assert complaint in done.text
