"""Training and protected evaluation in one app, from a folder as Flower would run it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.simulation.test_engine import ROOT, in_process

ROUNDS, EVALUATION = 4, {"laplace": 20 * 100.0 + 100.0, "codebook": 20 * 20.0 + 100.0}


@pytest.mark.parametrize("mechanism", EVALUATION)
def test_training_and_private_evaluation_run_in_one_app(
    mechanism: str, tmp_path: Path, simulation_policy: Path
) -> None:
    app, received = tmp_path / "app", tmp_path / "received.json"
    shutil.copytree(ROOT / "tests" / "simulation" / "eval_app", app)
    shutil.copy(ROOT / "LICENSE", app / "LICENSE")
    config = {
        "received": f'"{received}"',
        "mechanism": f'"{mechanism}"',
        "num-server-rounds": str(ROUNDS),
    }
    in_process(app, 10, *(f"{key}={value}" for key, value in config.items()))
    found = json.loads(received.read_text())
    text = "\n".join(found["transcript"])
    assert len(found["transcript"]) == 8 * ROUNDS
    for canary in ("canary", "1234.5", "719934208", "num-examples", "loss", "Traceback", "rows"):
        assert canary not in text
    private, true = found["private"], found["true"]
    # eight of ten clients are asked, and one of the ten always fails
    assert private["accepted"] + private["rejected"] == 8
    assert private["accepted"] >= 7
    assert private["score-rows"] == 20 * private["accepted"]
    assert private["loss"] == pytest.approx(true["loss"], abs=0.5)
    # the score is that of 140 or 160 of 1,197 rows, with noise
    assert private["score"] == pytest.approx(true["score"], abs=0.2)
    assert true["accuracy"] > 0.3
    assert found["epsilon"] <= ROUNDS * (20.0 + EVALUATION[mechanism])
    assert private["epsilon-evaluation"] == EVALUATION[mechanism]
