"""Split learning in Flower's two engines: virtual nodes, and SuperNodes with their own data."""

from __future__ import annotations

import importlib.util
import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.privacy import Unit
from tests.network.federation import in_a_hurry

RUN = Path(__file__).resolve().parents[2] / "examples" / "split_digits" / "run.py"


def run(*arguments: str, timeout: float = 900) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), *arguments]
    return subprocess.run(
        command, env=in_a_hurry(), capture_output=True, text=True, timeout=timeout, check=False
    )


def here(*arguments: str) -> Result:
    """Run the command in this process, which has torch already; the app itself is loaded anew."""
    for name in [name for name in sys.modules if name.partition(".")[0] == RUN.parent.name]:
        del sys.modules[name]
    app = typer.Typer()
    app.command()(load_run().main)
    log, ending = logging.getLogger("flwr"), signal.getsignal(signal.SIGTERM)
    level = log.level
    try:
        return CliRunner().invoke(app, arguments)
    finally:  # the command sets both, and would have ended
        log.setLevel(level)
        signal.signal(signal.SIGTERM, ending)


def load_run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("split_digits_run", RUN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def spent(folder: Path) -> dict[str, dict[Unit, str]]:
    """Epsilon of every account of all ledgers."""
    found = {}
    for path in folder.glob("owner*/ledger.sqlite"):
        with Ledger.open(path) as ledger:
            ledger.verify()
            for name in ledger.data_ids():
                totals = ledger.totals(name).items()
                found[name] = {unit: amount.epsilon_text for unit, amount in totals}
    return found


def check(printed: str, result: Path, holder: str) -> None:
    """Check what a run with codes prints and writes."""
    found = json.loads(result.read_text())
    assert found["epsilon-record"] == 8.0
    # each party alone names about 0.8 of the digits, a guess 0.1
    assert found["history"][-1]["accuracy-test"] > 0.85
    assert "conditional on the bottom model" in printed
    assert f"labels: epsilon 4 per label, in all; charged to {holder}" in printed


@pytest.mark.parametrize(
    ("engine", "block_size", "accounts"),
    # Virtual nodes and the server share a ledger. SuperNodes start a process for each message.
    [("simulation", 750, 6), ("nodes", 1_500, 4)],
)
def test_codes_are_released_once_and_name_most_digits(
    engine: str, block_size: int, accounts: int, tmp_path: Path
) -> None:
    result = tmp_path / "result.json"
    done = run(
        *("--engine", engine, "--output", str(result), "--folder", str(tmp_path / "parties")),
        *("--set", f"block-size={block_size}"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    holder = "digits-both/node-1" if engine == "simulation" else "digits-labels"
    check(done.stdout, result, holder)
    paid = spent(tmp_path / "parties")
    assert paid.pop(holder) == {Unit.LABEL: "4"}
    assert len(paid) == accounts
    assert {totals[Unit.EXAMPLE] for totals in paid.values()} == {"8"}


def test_a_second_run_tells_the_same_labels_and_costs_nothing(tmp_path: Path) -> None:
    """Of parties in one process: the first run is what the other engines' runs are."""
    result = tmp_path / "result.json"
    after = []
    same = ("--folder", str(tmp_path), "--set", "block-size=750", "--output", str(result))
    first = here(*same)
    assert first.exit_code == 0, first.output
    check(first.output, result, "digits-labels")
    after.append(spent(tmp_path))
    second = run(*same)  # in a process of its own, which knows nothing but the folder
    assert second.returncode == 0, second.stdout + second.stderr
    after.append(spent(tmp_path))
    assert after[0] == after[1]
    assert after[1].pop("digits-labels") == {Unit.LABEL: "4"}
    assert len(after[1]) == 6
    assert {totals[Unit.EXAMPLE] for totals in after[1].values()} == {"8"}


def test_without_a_folder_what_was_paid_for_is_kept_for_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = load_run().STATE
    assert state == RUN.parents[2] / "outputs" / "split_digits"
    assert not state.is_relative_to(RUN.parent)  # which is sent to every node
    module = load_run()
    monkeypatch.setattr(module, "STATE", tmp_path)
    places: list[Path] = []
    monkeypatch.setattr(type(module.PARTIES), "in_process", lambda *given: places.append(given[-1]))
    for data in ("digits", "digits", str(RUN)):
        module.main(data=data)
    assert places == [tmp_path / "digits", tmp_path / "digits", tmp_path / "run"]


def test_bits_are_paid_for_in_every_epoch_and_a_second_run_goes_on(tmp_path: Path) -> None:
    losses = []
    for number in (1, 2):
        done = here(
            *("--folder", str(tmp_path), "--set", "mode=bits", "--set", "epochs=2"),
            *("--set", "width=16", "--set", "block-size=500"),
            *("--output", str(tmp_path / "result.json")),
        )
        assert done.exit_code == 0, done.output
        assert "epsilon of a training record, at each party: at most 128 in this run" in done.output
        history = json.loads((tmp_path / "result.json").read_text())["history"]
        losses += [row["loss"] for row in history]
        train = {a[Unit.EXAMPLE] for name, a in spent(tmp_path).items() if "/train/" in name}
        assert train == {str(number * 128)}
    assert losses == sorted(losses, reverse=True)
    for top in tmp_path.glob("top-16.pt*"):
        top.unlink()
    same = ("--set", "mode=bits", "--set", "width=16", "--set", "block-size=500")
    done = here("--folder", str(tmp_path), *same)
    assert done.exit_code != 0
    assert "party left: its bottom is at step" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["--set", "width"], "KEY=VALUE"), (["--data", "/nowhere/mnist.npz"], "mnist.npz")],
)
def test_a_wrong_argument_is_a_clear_error(arguments: list[str], text: str) -> None:
    done = run(*arguments, timeout=120)
    assert done.returncode != 0
    assert text in done.stderr + done.stdout
