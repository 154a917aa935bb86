"""Apps of Flower's own repository give the same numbers in one process as in Flower's engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("sklearn")
pytest.importorskip("torch")

from tests.simulation.flower_apps import APPS, Compared, differences, run

#: Global models of each: the first, and one for each round.
MODELS = {
    "quickstart-numpy": 4,
    "quickstart-sklearn": 4,
    "quickstart-pytorch": 3,
    "my-awesome-app": 3,
    "fl-dp-sa": 4,
}


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    """What all five differ in, found in one start of Ray."""
    command = [sys.executable, "-m", "tests.simulation.flower_apps"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {one["app"]: one for one in lines}


@pytest.mark.parametrize("app", APPS, ids=lambda app: app.folder)
def test_an_app_of_flowers_gives_the_same_bits_in_all_engines(
    app: Compared, compared: dict[str, Any]
) -> None:
    found = compared[app.folder]
    assert found["different"] == {way: [] for way in app.ours}
    assert found["models"] == MODELS[app.folder]
    # each node's replies were compared too, and what it keeps
    for part in range(app.nodes):
        assert any(key.startswith(f"from {part}: train") for key in found["compared"])
        assert f"kept by {part}" in found["compared"]


def test_another_seed_gives_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the app leaves its model where it runs
    first, again, other = (run(APPS[0], "strict", seed) for seed in (1, 1, 2))
    assert differences(first, again) == []
    assert "to 0: evaluate: arrays" in differences(first, other)
