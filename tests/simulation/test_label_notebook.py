"""The notebook of private labels: it runs on the digits, and its stored outputs are whole."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.network.federation import in_a_hurry

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "label_dp.ipynb"


def printed(notebook: dict[str, Any]) -> str:
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output["output_type"] == "error"]
    return "".join("".join(output.get("text", ())) for output in outputs)


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, pattern
    return float(found[1])


def check(text: str) -> None:
    """What must be seen whatever the data are."""
    assert number(r"whole orders.* (\S+)\n", text) == pytest.approx(1.0188, abs=1e-4)
    replaced = number(r"\n +epsilon (\S+) \(one example replaced", text)
    assert replaced == pytest.approx(0.885, abs=2e-3)
    assert "k = 2" in text
    assert "the same the second time: True" in text
    # RR at epsilon 1 flips 76.8 %: 1,437 digits stay within five deviations of it
    assert number(r"flipped: (\S+)%; the same", text) == pytest.approx(76.8, abs=5.6)
    charges = re.findall(r"^images/0: (.*)$", text, flags=re.MULTILINE)
    # what is about an example is about its label too
    example, both = "epsilon 1, delta 1e-05 per example", "epsilon 2, delta 1e-05 per label"
    first = [example, "epsilon 1, delta 1e-05 per label"]
    assert sorted(charges) == sorted([*first, example, both, example, both])


def test_the_stored_outputs_are_of_mnist_and_name_no_machine() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    text = printed(notebook)
    assert "60,000 examples" in text
    check(text)
    assert not re.search(r"/(home|root|tmp|Users|work|usr)/", text)


def test_the_notebook_runs_on_the_digits(tmp_path: Path) -> None:
    pytest.importorskip("nbconvert")
    pytest.importorskip("ipykernel")
    environment = {name: value for name, value in in_a_hurry().items() if name != "MNIST_NPZ"}
    target = tmp_path / "executed.ipynb"
    command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute"]
    command += ["--ExecutePreprocessor.timeout=600", "--output", str(target), str(NOTEBOOK)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    text = printed(json.loads(target.read_text(encoding="utf-8")))
    assert "1,437 examples" in text
    check(text)
