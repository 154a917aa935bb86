"""``flower-ldp adopt`` on the examples before the change: what it writes trains."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from tests.cli import facts, process

EXAMPLES = Path(__file__).parents[2] / "examples"


def accuracy(folder: Path, nodes: int) -> float:
    """Run an app by the policy that was written; return its last accuracy."""
    command = (sys.executable, "-m", "flower_ldp", "simulate", folder, "--nodes", nodes)
    done = process(*command, "--policy", folder / "policy.yaml")
    assert done.returncode == 0, done.stderr
    (found,) = re.findall(r"final accuracy ([0-9.]+)", done.stdout)
    return float(found)


def test_codewords_need_no_code_by_hand(tmp_path: Path) -> None:
    app = tmp_path / "app"
    shutil.copytree(EXAMPLES / "existing_app" / "plain", app)
    found = facts("adopt", app, "--clients", 100, "--params", 650, "--write")
    # Its dependencies are on one line.
    assert (found["route"], len(found["by_hand"])) == ("codeword", 1)
    assert found["by_hand"][0]["place"] == "pyproject.toml"
    assert found["written"] == [
        "quickstart/client_app.py",
        "quickstart/server_app.py",
        "policy.yaml",
    ]
    assert accuracy(app, 100) > 0.4  # chance is 0.1


def test_dpsgd_trains_with_the_printed_lines_and_a_public_row(tmp_path: Path) -> None:
    app = tmp_path / "app"
    shutil.copytree(EXAMPLES / "few_sites" / "plain", app)
    words = ("--clients", 5, "--examples", 91, "--epsilon", 5, "--write")
    by_hand = facts("adopt", app, *words)["by_hand"][0]
    assert by_hand["place"] == "sites/client_app.py:17"
    first, call = by_hand["text"].split("\n", 1)
    assert first == "in place of `task.fit(model, rows)`"
    client = app / "sites" / "client_app.py"
    call = call.replace("like=...", "like=(torch.zeros(30), torch.tensor(0))")
    client.write_text(client.read_text().replace("    task.fit(model, rows)", call))
    # The private example, whose rate is larger, has a mean of 0.935 and a deviation of 0.013.
    assert accuracy(app, 5) > 0.85
