"""The benchmarks of split learning run, on images small in number, and say what they measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("skimage")
pytest.importorskip("opacus")
pytest.importorskip("matplotlib")

import numpy as np
from sklearn.datasets import load_digits

from tests.simulation.here import script

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scikit-learn's digits in MNIST's layout."""
    found = load_digits()
    large = np.kron(found.images / 16 * 255, np.ones((3, 3)))
    padded = np.pad(large, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    target = found.target.astype(np.uint8)
    path = tmp_path_factory.mktemp("images") / "digits.npz"
    np.savez(
        path,
        x_train=padded[:320],
        y_train=target[:320],
        x_test=padded[320:420],
        y_test=target[320:420],
    )
    return path


def run(name: str, *arguments: object) -> None:
    done = script(BENCHMARKS / name, *arguments)
    assert done.code == 0, done.output


def rows_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["rows"]


@pytest.fixture(scope="module")
def accuracy(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("accuracy")
    run("embedding.py", images, "--seeds", 1, "--output", folder)
    return folder


@pytest.mark.parametrize("part", ["codes", "pair", "strict", "floor", "bits"])
def test_each_part_writes_rows_with_what_the_epsilon_covers(accuracy: Path, part: str) -> None:
    rows = rows_of(accuracy / f"embedding-{part}.json")
    assert rows
    for row in rows:
        assert row["claim"]
        assert 0 <= row["accuracy"] <= 1
    if part in ("codes", "pair"):
        best = rows[0]
        assert best["epsilon-parties"][0] == 8.0
        assert best["accuracy"] > 0.6


def test_the_strict_part_states_both_relations(accuracy: Path) -> None:
    removed, replaced = rows_of(accuracy / "embedding-strict.json")
    assert removed["epsilon-training-add-or-remove-one"] == pytest.approx(2.0, abs=0.01)
    assert removed["epsilon-training-replace-one"] > 2.5
    assert replaced["epsilon-training-replace-one"] == 2.0
    assert replaced["epsilon-record-replace-one"] == 8.0
    assert replaced["noise-multiplier"] > removed["noise-multiplier"]


def test_the_attack_sees_more_where_less_is_hidden(images: Path, tmp_path: Path) -> None:
    result, pictures = tmp_path / "result.json", tmp_path / "pictures.png"
    run(
        "reconstruction.py",
        *(images, "--pixels", "--seeds", 1, "--images", 100),
        *("--output", result, "--pictures", pictures),
    )
    error = {row["setting"]: row["mse"] for row in rows_of(result)}
    assert error["float"] < error["bits, label 1"]
    assert error["bits, no noise"] < error["mean image"]
    assert error["bits, label 0"] > 0.9 * error["mean image"]
    assert error["float"] < error["codes, epsilon 8"] < error["mean image"]
    assert pictures.read_bytes().startswith(b"\x89PNG")


def test_attacks_on_split_models_measure_each_setting(images: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    run(
        "split_attacks.py",
        *(images, "--seeds", 1, "--records", 300, "--images", 1, "--steps", 40),
        *("--output", result),
    )
    found = json.loads(result.read_text())
    assert len(found["inversion"]) == 11
    assert len(found["known-labels"]) == 8
    true, randomized = found["gradients"][:2]
    assert true["best"]["mean"] > 0.9
    assert randomized["best"]["mean"] < 0.5
