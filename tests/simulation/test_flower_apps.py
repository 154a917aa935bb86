"""Apps of Flower's own repository give the same numbers in one process as in Flower's engine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("scipy")
pytest.importorskip("sklearn")
pytest.importorskip("torch")

from tests.network.agreement import differences, rejected, sizes, statistics
from tests.network.federation import in_a_hurry
from tests.network.sites import make_app
from tests.simulation.flower_apps import APPS, OURS, Compared, differing, run

ROOT = Path(__file__).resolve().parents[2]
#: Global models of each: the first, and one for each round.
MODELS = {
    "quickstart-numpy": 4,
    "quickstart-sklearn": 4,
    "quickstart-pytorch": 3,
    "my-awesome-app": 3,
    "fl-dp-sa": 4,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what a start of Ray and the runs without it left."""
    folder = tmp_path_factory.mktemp("runs")
    policy = shutil.copy(ROOT / "configs" / "simulation_policy.yaml", folder)
    command = [sys.executable, "-m", "tests.simulation.flower_apps"]
    command += ["--laws", str(make_app(folder, "known_client"))]
    environment = {**in_a_hurry(), "FLOWER_LDP_POLICY": str(policy)}
    with (folder / "found.jsonl").open("w") as found, (folder / "log").open("w") as log:
        done = subprocess.run(
            command, stdout=found, stderr=log, env=environment, cwd=ROOT, timeout=500, check=False
        )
    assert done.returncode == 0, (folder / "log").read_text()[-8_000:]
    return folder


@pytest.fixture(scope="module")
def compared(runs: Path) -> dict[str, Any]:
    """What all five differ in."""
    lines = (runs / "found.jsonl").read_text().splitlines()
    return {one["app"]: one for one in map(json.loads, filter(_is_found, lines))}


def _is_found(line: str) -> bool:
    return line.startswith('{"app"')


@pytest.mark.parametrize("app", APPS, ids=lambda app: app.folder)
def test_an_app_of_flowers_gives_the_same_bits_in_all_engines(
    app: Compared, compared: dict[str, Any]
) -> None:
    found = compared[app.folder]
    assert found["different"] == {way: [] for way in OURS}
    assert found["models"] == MODELS[app.folder]
    # each node's replies were compared too, and what it keeps
    for part in range(app.nodes):
        assert any(key.startswith(f"from {part}: train") for key in found["compared"])
        assert f"kept by {part}" in found["compared"]


@pytest.mark.parametrize("way", OURS)
def test_a_run_without_an_engine_draws_from_the_laws_that_flowers_engine_draws_from(
    way: str, runs: Path
) -> None:
    read = {one: json.loads((runs / f"{one}.json").read_text()) for one in ("ray", way)}
    ours, theirs = (read[one]["exchanges"] for one in (way, "ray"))
    # What is no matter of chance is the same.
    assert sizes(ours) == sizes(theirs)
    assert [len(reports) for _, reports in sizes(ours)] == [3] * 7
    assert sorted(map(str, read[way]["spent"].values())) == sorted(
        map(str, read["ray"]["spent"].values())
    )
    # What is follows the exact laws in both, and differs by no more than they allow.
    laws = [statistics(one) for one in (ours, theirs)]
    assert [rejected(one) for one in laws] == [{}, {}]
    assert rejected(differences(*laws)) == {}


def test_another_seed_gives_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the app leaves its model where it runs
    first, again, other = (run(APPS[0], "strict", seed) for seed in (1, 1, 2))
    assert differing(first, again) == []
    assert "to 0: evaluate: arrays" in differing(first, other)
