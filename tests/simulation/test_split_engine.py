"""Split learning in Flower's two engines: virtual nodes, and SuperNodes with their own data."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from sklearn.datasets import load_digits

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.privacy import Unit
from tests.network.federation import in_a_hurry
from tests.simulation.here import script

RUN = Path(__file__).resolve().parents[2] / "examples" / "split-digits" / "run.py"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits in MNIST's layout: a process that reads them does not import scikit-learn."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    x, y = (found.images[order] * (255 / 16)).astype(np.float32), found.target[order]
    path = tmp_path_factory.mktemp("images") / "digits.npz"
    np.savez(path, x_train=x[:600], y_train=y[:600], x_test=x[600:700], y_test=y[600:700])
    return path


def run(*arguments: object) -> str:
    """Run the command in a process of its own; return what it printed."""
    command = [sys.executable, str(RUN), *map(str, arguments)]
    done = subprocess.run(
        command, env=in_a_hurry(), capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
    # a guess names 0.1 of the digits
    assert found["history"][-1]["accuracy-test"] > 0.65
    assert "conditional on the bottom model" in printed
    assert f"labels: epsilon 4 per label, in all; charged to {holder}" in printed


def check_ledgers(folder: Path, blocks: int, holder: str = "digits-labels") -> None:
    """Check that each label was paid for once, and at both parties each record, in its block."""
    accounts = spent(folder)
    assert accounts.pop(holder) == {Unit.LABEL: "4"}
    assert len(accounts) == 2 * blocks
    assert {totals[Unit.EXAMPLE] for totals in accounts.values()} == {"8"}


def test_virtual_nodes_release_codes_once_and_they_name_most_digits(
    images: Path, tmp_path: Path
) -> None:
    """They share a ledger, with the server too. Two blocks to train on, and one to test."""
    result, folder = tmp_path / "result.json", tmp_path / "parties"
    printed = run(
        *("--engine", "simulation", "--output", result, "--folder", folder),
        *("--set", "block-size=300", "--data", images),
    )
    check(printed, result, "digits-both/node-1")
    check_ledgers(folder, 3, "digits-both/node-1")


def test_supernodes_release_codes_once_and_a_second_run_costs_nothing(
    images: Path, tmp_path: Path
) -> None:
    """The second is in another process, which knows nothing but the folder.

    SuperNodes start a process for each message: all records of a table are in one block.
    """
    result, folder = tmp_path / "result.json", tmp_path / "parties"
    same = ("--set", "block-size=600", "--data", images, "--folder", folder, "--output", result)
    check(run("--engine", "nodes", *same), result, "digits-labels")
    check_ledgers(folder, 2)
    first = json.loads(result.read_text())
    result.unlink()
    second = script(RUN, *same)
    assert second.code == 0, second.output
    check(second.output, result, "digits-labels")
    assert json.loads(result.read_text()) == first  # the same codes, and labels
    check_ledgers(folder, 2)


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


def test_bits_are_paid_for_in_every_epoch_and_a_second_run_goes_on(
    images: Path, tmp_path: Path
) -> None:
    losses = []
    for number in (1, 2):
        done = script(
            RUN,
            *("--folder", tmp_path, "--set", "mode=bits", "--set", "epochs=2"),
            *("--set", "width=16", "--set", "block-size=200", "--data", images),
            *("--output", tmp_path / "result.json"),
        )
        assert done.code == 0, done.output
        assert "epsilon of a training record, at each party: at most 128 in this run" in done.output
        history = json.loads((tmp_path / "result.json").read_text())["history"]
        losses += [row["loss"] for row in history]
        train = {a[Unit.EXAMPLE] for name, a in spent(tmp_path).items() if "/train/" in name}
        assert train == {str(number * 128)}
    assert losses == sorted(losses, reverse=True)
    for top in tmp_path.glob("top-16.pt*"):
        top.unlink()
    same = ("--set", "mode=bits", "--set", "width=16", "--set", "block-size=200")
    done = script(RUN, "--folder", tmp_path, *same, "--data", images)
    assert done.code not in (0, None)
    assert "party left: its bottom is at step" in done.text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["--set", "width"], "KEY=VALUE"), (["--data", "/nowhere/mnist.npz"], "mnist.npz")],
)
def test_a_wrong_argument_is_a_clear_error(arguments: list[str], text: str) -> None:
    done = script(RUN, *arguments)
    assert done.code == 2
    assert text in done.text
