"""The tutorials: their stored outputs are whole, and the notebooks still print such.

One of them is executed, in turn by commit; all with the variable ``TUTORIALS=all``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.network.federation import in_a_hurry

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "tutorials"
#: Each tutorial, and the modules of extras that it needs beside matplotlib and scikit-learn.
TUTORIALS: dict[str, tuple[str, ...]] = {
    "01_first_training": (),
    "02_choosing": (),
    "03_existing_apps": (),
    "04_part_of_a_model": ("torch",),
    "05_protected_evaluation": (),
    "06_private_labels": ("dp_accounting", "opacus", "torch"),
    "07_two_hospitals": ("torch",),
    "08_data_owner": (),
    "09_five_hospitals": ("scipy", "torch"),
    "10_three_sites": (),
    "11_statistics": (),
    "12_a_shuffler": ("cryptography.hazmat.primitives.hpke",),
}
LARGEST = 400_000  # bytes
#: Paths of the machine that executed it.
MACHINE = re.compile(r"/(home|root|tmp|Users|work|usr)/")


def commits() -> int:
    """Count the commits; none where git is not."""
    try:
        command = ["git", "rev-list", "--count", "HEAD"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(done.stdout)


def this_time() -> list[str]:
    names = list(TUTORIALS)
    return names if os.environ.get("TUTORIALS") == "all" else [names[commits() % len(names)]]


def check_of(name: str) -> Callable[[str], None]:
    module = import_module(f"tests.simulation.tutorials.check_{name[:2]}")
    check: Callable[[str], None] = module.check
    return check


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def outputs(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [output for cell in notebook["cells"] for output in cell.get("outputs", ())]


def printed(notebook: dict[str, Any]) -> str:
    """Return what was printed; an error is none, and neither is a warning."""
    for output in outputs(notebook):
        assert output["output_type"] != "error", output
        assert output.get("name") != "stderr", output
    return "".join("".join(output.get("text", ())) for output in outputs(notebook))


def pictures(notebook: dict[str, Any]) -> list[str]:
    """Take the pictures out of a notebook."""
    found = [output.get("data", {}).pop("image/png", None) for output in outputs(notebook)]
    return [picture for picture in found if picture]


def test_every_notebook_is_in_the_table() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(TUTORIALS)


@pytest.mark.parametrize("name", TUTORIALS)
def test_the_stored_outputs_are_whole_and_name_no_machine(name: str) -> None:
    path = FOLDER / f"{name}.ipynb"
    assert path.stat().st_size < LARGEST
    notebook = read(path)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    check_of(name)(printed(notebook))
    assert pictures(notebook)
    assert not MACHINE.search(json.dumps(notebook))


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_check_can_fail(name: str) -> None:
    with pytest.raises(AssertionError):
        check_of(name)("")


@pytest.mark.parametrize("name", this_time())
def test_it_runs(name: str, tmp_path: Path) -> None:
    for module in ("ipykernel", "matplotlib", "nbconvert", "sklearn", *TUTORIALS[name]):
        pytest.importorskip(module)
    environment = {key: value for key, value in in_a_hurry().items() if key != "MNIST_NPZ"}
    target = tmp_path / "executed.ipynb"
    beside = sorted(path.name for path in FOLDER.iterdir())
    command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute"]
    command += ["--ExecutePreprocessor.timeout=600", "--output", str(target)]
    done = subprocess.run(
        [*command, str(FOLDER / f"{name}.ipynb")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    notebook = read(target)
    check_of(name)(printed(notebook))
    assert pictures(notebook)
    assert sorted(path.name for path in FOLDER.iterdir()) == beside, "it left a file"
