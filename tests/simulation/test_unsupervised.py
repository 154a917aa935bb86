"""Training and protected evaluation in one app, from the example's command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.policy import load_policy
from flower_ldp.privacy import Unit
from tests.simulation.here import script

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "unsupervised-eval"
# Nobody is asked twice: in each round four clients train, and four others are evaluated.
CLIENTS, ROUNDS, AT_A_TIME = 24, 3, 4
PROTECTIONS = ("laplace", "codebook")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Both runs in one process: the clients of the second are new ones, under their own policy."""
    output = tmp_path_factory.mktemp("unsupervised")
    arguments = ["--clients", CLIENTS, "--rounds", ROUNDS, "--workers", 1, "--output", output]
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
    runs = json.loads((output / "history.json").read_text())["runs"]
    assert [run["config"]["protection"] for run in runs] == [*PROTECTIONS]
    for history in runs:
        assert [row["round"] for row in history["rounds"]] == list(range(ROUNDS + 1))
        for row in history["rounds"][1:]:
            assert row["accepted"] == row["train-accepted"] == AT_A_TIME
            assert row["score-rows"] == AT_A_TIME
            assert {"true-loss", "loss", "clustering-accuracy"} <= {*row}
        assert {*history["spearman"]} == {*history["error"]} == {"score", "loss"}
    models = [np.load(output / "codebook" / "models" / f"{n}.npz") for n in range(ROUNDS + 1)]
    assert not np.array_equal(models[0]["encoder.0.weight"], models[-1]["encoder.0.weight"])
    for title in ("Laplace", "Codebook"):
        assert f"{title}: epsilon 8 of each client in all" in " ".join(printed.split())
    assert "Spearman" in printed
    assert "simulation" in printed


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_every_client_has_answered_once_and_spent_8_by_its_own_ledger(
    finished: tuple[Path, str], protection: str
) -> None:
    folder = finished[0] / protection
    with Ledger.open(folder / "simulation-ledger.sqlite", read_only=True) as ledger:
        spent = [ledger.totals(account)[Unit.CLIENT] for account in ledger.data_ids()]
    # In each round as many trained and as many others were evaluated: all have been asked.
    assert len(spent) == CLIENTS
    for amount in spent:
        assert amount.spent(Unit.CLIENT).epsilon == 8.0
    server = json.loads((folder / f"{protection}.json").read_text())
    last = server["rounds"][-1]
    assert last["train-epsilon-round"] == last["epsilon-evaluation"] == 8.0
    assert server["epsilon-total"] == last["epsilon-total"] == 8.0


def test_the_owners_policy_allows_8_in_a_life_and_no_second_answer() -> None:
    policy = load_policy(EXAMPLE / "simulation_policy.yaml")
    (budget,) = policy.budgets.values()
    assert budget.life is not None
    assert budget.life.epsilon == 8.0
    assert policy.releases.life == 1


def test_nothing_raw_reaches_the_server(server: dict[str, Any]) -> None:
    reported = {name for row in server["rounds"] for name in row}
    assert reported <= {
        *("round", "clustering-accuracy", "accepted", "rejected", "epsilon-total"),
        *("train-accepted", "train-rejected", "train-bytes-up", "train-epsilon-round"),
        *("score", "score-rows", "score-recovery", "score-error", "epsilon-evaluation"),
        *("loss", "loss-noise"),
    }
    for row in server["rounds"][1:]:
        # Four clients' noise on a loss of bounds 5 and 15: a raw mean has none.
        assert row["loss-noise"] > 1
        assert 0 < row["train-bytes-up"] < 50  # 12,200 are the model


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--protection", "none"], "--protection"),
        (["--set", "rounds"], "KEY=VALUE"),
        (["--clients", "79"], "--clients must be at least 80"),
        (["--data", "/nowhere/mnist.npz"], "mnist.npz"),
    ],
)
def test_a_wrong_argument_is_a_clear_error(arguments: list[str], complaint: str) -> None:
    done = script(EXAMPLE / "run.py", *arguments)
    assert done.code == 2
    assert complaint in done.text
