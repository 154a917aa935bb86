"""The example of a split language model: its text, its model, and runs from its command."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flower_ldp.split import EmbeddingDP
from tests.network.federation import in_a_hurry
from tests.simulation.here import script

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "split-lm"
PROSE = b"It was the best of times, it was the worst of times. "


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))


def config(tmp_path: Path, **changes: object) -> dict[str, Any]:
    path = tmp_path / "text.txt"
    path.write_bytes(PROSE * 40)
    given: dict[str, Any] = {
        **{"text": str(path), "eval-text": "", "context": 8, "width": 16, "layers": 1},
        **{"train-windows": 0, "eval-windows": 0, "seed": 1, "block-size": 32},
    }
    return {**given, **changes}


def test_labels_are_the_bytes_after_those_of_a_window(tmp_path: Path) -> None:
    from split_lm import text

    found = text.windows(config(tmp_path))
    whole, cut = PROSE * 40, len(PROSE) * 36
    for table, part in (("train", whole[:cut]), ("test", whole[cut:])):
        tokens, following = found[table].tokens, found[table].following
        assert tokens.shape == following.shape == ((len(part) - 1) // 8, 8)
        assert tokens.tobytes() == part[: tokens.size]
        assert following.astype(np.uint8).tobytes() == part[1 : tokens.size + 1]
    assert len(text.windows(config(tmp_path, **{"train-windows": 5}))["train"].tokens) == 5
    both = text.windows(config(tmp_path, **{"eval-text": str(tmp_path / "text.txt")}))
    assert len(both["train"].tokens) == len(both["test"].tokens)


def test_the_unigram_loss_is_the_entropy_of_what_is_equally_frequent(tmp_path: Path) -> None:
    from split_lm import text

    tokens = np.tile(np.arange(256, dtype=np.uint8), (4, 1))
    half = text.Windows(tokens[:, :64], tokens[:, :64].astype(np.int64))
    all_ = text.Windows(tokens, tokens.astype(np.int64))
    assert text.unigram_loss({"train": all_, "test": half}) == pytest.approx(math.log(256))
    # 64 of 256 bytes were seen four times, and one is added to each: 5 of 512
    assert text.unigram_loss({"train": half, "test": half}) == pytest.approx(math.log(512 / 5))


def test_no_text_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from split_lm import text

    assert len(text.read(text.BUILT_IN)) > 100_000
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ValueError, match="no help texts"):
        text.read(text.BUILT_IN)
    with pytest.raises(ValueError, match="table 'test' has 212 bytes; a window needs 301"):
        text.windows(config(tmp_path, context=300))


@pytest.mark.parametrize("training", [True, False])
def test_no_place_sees_what_is_behind_it(training: bool, tmp_path: Path) -> None:
    from split_lm import model

    settings = config(tmp_path)
    top = model.top(settings).train(training)
    bottom = model.bottom(settings)
    tokens = torch.randint(0, 256, (3, 8), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[:, 5] += 1
    with torch.no_grad():
        bits = EmbeddingDP(None)(bottom(tokens)), EmbeddingDP(None)(bottom(other.float()))
        one, two = (top(rows) for rows in bits)
    assert one.shape == (3, 256, 8)
    assert torch.allclose(one[:, :, :5], two[:, :, :5], atol=1e-5)
    assert not torch.allclose(one[:, :, 5:], two[:, :, 5:], atol=1e-3)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE / "run.py"), *arguments]
    return subprocess.run(
        command, env=in_a_hurry(), capture_output=True, text=True, timeout=900, check=False
    )


def result(output: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    found = json.loads((output / "result.json").read_text())
    return found, {one["run"]: one for one in found["runs"]}


def test_a_model_learns_through_noise_what_random_bits_do_not_teach(tmp_path: Path) -> None:
    done = script(EXAMPLE / "run.py", "--quick", "--output", tmp_path)
    assert done.code == 0, done.output
    found, runs = result(tmp_path)
    assert list(runs) == ["float", "quantized", "random bits", "label 5"]
    for one in runs.values():
        assert len(one["losses"]) == 100
        assert one["losses"][0] > 5  # 256 equally likely bytes: 5.5
        # falls in all of them, the control too
        assert np.mean(one["losses"][-20:]) < 3.6
    above = {name: one["held-out"] - found["unigram"] for name, one in runs.items()}
    # seen: -0.47, -0.48, 0.00, -0.39
    assert max(above["float"], above["quantized"], above["label 5"]) < -0.2
    assert -0.05 < above["random bits"] < 0.15
    # a window has 32 tokens of 32 bits; test windows are released once as well
    assert runs["label 5"]["epsilon-record"] == 32 * 32 * 5 / 2
    assert runs["label 5"]["ledger"] == {"train": 2560.0, "test": 2560.0}
    assert "epsilon 2560 per record and release" in done.output
    assert "conditional on the bottom model" in done.output
    assert "step 100 loss" in done.output
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_gradients_reach_a_supernode(tmp_path: Path) -> None:
    """One step only: SuperNodes handle each message in a new process, which costs seconds."""
    (tmp_path / "text.txt").write_bytes(PROSE * 40)
    done = run(
        *("--engine", "nodes", "--text", str(tmp_path / "text.txt"), "--output", str(tmp_path)),
        *("--quick", "--set", "context=8", "--set", "block-size=200", "--set", "width=16"),
        *("--set", "train-windows=200", "--set", "log-every=1", "--eps", "2"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found, runs = result(tmp_path)
    assert runs["label 2"]["ledger"] == {"train": 128.0, "test": 128.0}
    assert len(runs["label 2"]["losses"]) == 1
    assert found["config"]["text"] == "text.txt"
    assert str(tmp_path) not in found["command"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--eps", "0"], "no policy releases"),
        (["--eps", "2", "--eps", "2"], "each once"),
        (["--set", "epochs=0"], "epochs"),
        (["--set", "width=wide"], "width=wide"),
        (["--set", "context=1000000"], "a window needs 1000001"),
        (["--text", "/nowhere/text.txt"], "there is no file /nowhere/text.txt"),
        (["--eval-text", "/nowhere/text.txt"], "there is no file /nowhere/text.txt"),
    ],
)
def test_a_wrong_argument_is_a_clear_error(arguments: list[str], complaint: str) -> None:
    done = script(EXAMPLE / "run.py", *arguments)
    assert done.code == 2
    assert complaint in done.text
