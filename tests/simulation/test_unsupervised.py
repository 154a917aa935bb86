"""Training and protected evaluation in one app, from the example's command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.privacy import Unit
from tests.simulation.here import script

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "unsupervised_eval"
CLIENTS, ROUNDS = 8, 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    output = tmp_path_factory.mktemp("unsupervised")
    arguments = ["--clients", CLIENTS, "--rounds", ROUNDS, "--workers", 1]
    arguments += ["--protection", "codebook", "--output", output]
    done = script(EXAMPLE / "run.py", *arguments)
    assert done.code == 0, done.output
    return output, done.output


@pytest.fixture(scope="module")
def server(finished: tuple[Path, str]) -> dict[str, Any]:
    """What the server was told: its own history, written inside the app."""
    return json.loads((finished[0] / "codebook" / "codebook.json").read_text())


def test_the_run_leaves_history_models_and_plot(finished: tuple[Path, str]) -> None:
    output, printed = finished
    assert (output / "unsupervised_eval.png").read_bytes().startswith(b"\x89PNG")
    (history,) = json.loads((output / "history.json").read_text())["runs"]
    assert [row["round"] for row in history["rounds"]] == list(range(ROUNDS + 1))
    for row in history["rounds"][1:]:
        assert row["accepted"] == row["train-accepted"] == CLIENTS
        assert row["score-rows"] == CLIENTS
        assert {"true-loss", "loss", "clustering-accuracy"} <= {*row}
    assert {*history["spearman"]} == {"score", "loss"}
    models = [np.load(output / "codebook" / "models" / f"{n}.npz") for n in range(ROUNDS + 1)]
    assert not np.array_equal(models[0]["encoder.0.weight"], models[-1]["encoder.0.weight"])
    assert "Spearman" in printed
    assert "simulation" in printed


def test_the_ledger_holds_what_the_server_says_it_asked_for(
    finished: tuple[Path, str], server: dict[str, Any]
) -> None:
    path = finished[0] / "codebook" / "simulation-ledger.sqlite"
    with Ledger.open(path, read_only=True) as ledger:
        spent = [ledger.totals(account)[Unit.CLIENT] for account in ledger.data_ids()]
    assert len(spent) == CLIENTS
    last = server["rounds"][-1]
    assert last["train-epsilon-round"] > 0
    assert last["epsilon-evaluation"] > 0
    total = ROUNDS * (last["train-epsilon-round"] + last["epsilon-evaluation"])
    assert server["epsilon-total"] == last["epsilon-total"] == pytest.approx(total)
    for amount in spent:
        assert amount.spent(Unit.CLIENT).epsilon == pytest.approx(total)


def test_nothing_raw_reaches_the_server(server: dict[str, Any]) -> None:
    reported = {name for row in server["rounds"] for name in row}
    assert reported <= {
        *("round", "clustering-accuracy", "accepted", "rejected", "epsilon-total"),
        *("train-accepted", "train-rejected", "train-bytes-up", "train-epsilon-round"),
        *("score", "score-rows", "score-recovery", "score-error", "epsilon-evaluation"),
        *("loss", "loss-noise"),
    }
    for row in server["rounds"][1:]:
        # Eight clients' noise on a loss of bounds 5 and 15: a raw mean has none.
        assert row["loss-noise"] > 1
        assert 0 < row["train-bytes-up"] < 50  # 12,200 are the model


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--protection", "none"], "--protection"),
        (["--set", "rounds"], "KEY=VALUE"),
        (["--data", "/nowhere/mnist.npz"], "mnist.npz"),
    ],
)
def test_a_wrong_argument_is_a_clear_error(arguments: list[str], complaint: str) -> None:
    done = script(EXAMPLE / "run.py", *arguments)
    assert done.code == 2
    assert complaint in done.text
