"""Split learning in Flower's two engines: virtual nodes, and SuperNodes with their own data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.privacy import Unit

RUN = Path(__file__).resolve().parents[2] / "examples" / "split_digits" / "run.py"


def run(*arguments: str, timeout: float = 900) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.parametrize(
    ("engine", "block_size", "accounts"),
    # Virtual nodes share a ledger. SuperNodes start a process for each message: few blocks.
    [("process", 750, 3), ("simulation", 750, 6), ("nodes", 1_500, 2)],
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
    found = json.loads(result.read_text())
    assert found["epsilon-record"] == 8.0
    # each party alone names about 0.8 of the digits, a guess 0.1
    assert found["history"][-1]["accuracy-test"] > 0.85
    assert "conditional on the bottom model" in done.stdout
    for path in (tmp_path / "parties").glob("owner*/ledger.sqlite"):
        with Ledger.open(path) as ledger:
            ledger.verify()
            spent = {name: ledger.totals(name) for name in ledger.data_ids()}
            assert len(spent) == accounts
            for totals in spent.values():
                assert totals[Unit.EXAMPLE].epsilon_text == "8"


def test_bits_are_paid_for_in_every_epoch_and_a_second_run_goes_on(tmp_path: Path) -> None:
    losses = []
    for number in (1, 2):
        done = run(
            *("--folder", str(tmp_path), "--set", "mode=bits", "--set", "epochs=2"),
            *("--set", "width=16", "--set", "block-size=500"),
            *("--output", str(tmp_path / "result.json")),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "epsilon of a training record, at each party: 128 in this run" in done.stdout
        history = json.loads((tmp_path / "result.json").read_text())["history"]
        losses += [row["loss"] for row in history]
        with Ledger.open(tmp_path / "owner-left" / "ledger.sqlite") as ledger:
            spent = {name: ledger.totals(name)[Unit.EXAMPLE] for name in ledger.data_ids()}
        train = {amount.epsilon_text for name, amount in spent.items() if "/train/" in name}
        assert train == {str(number * 128)}
    assert losses == sorted(losses, reverse=True)
    (tmp_path / "top.pt").unlink()
    (tmp_path / "top.pt.previous").unlink()
    same = ("--set", "mode=bits", "--set", "width=16", "--set", "block-size=500")
    done = run("--folder", str(tmp_path), *same)
    assert done.returncode != 0
    assert "party left: its bottom is at step" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["--set", "width"], "KEY=VALUE"), (["--data", "/nowhere/mnist.npz"], "mnist.npz")],
)
def test_a_wrong_argument_is_a_clear_error(arguments: list[str], text: str) -> None:
    done = run(*arguments, timeout=120)
    assert done.returncode != 0
    assert text in done.stderr + done.stdout
