"""The baseline of the SignDS paper: its folder is as Flower wants one, its figures are measured.

That its rules run is tested in ``tests/unit/combines/test_apps.py``, where torch is loaded.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import yaml

from flower_ldp.mechanisms import SignDS
from tests.unit.test_page_figures import percent, results

APP = Path(__file__).resolve().parents[2] / "examples" / "signdsfl"
PAGE = (APP / "README.md").read_text(encoding="utf-8")
ROWS = ("ours", "published", "published, fixed step")


def test_the_folder_is_that_of_a_baseline() -> None:
    # As Flower's baselines/dev/test-baseline-structure.sh asks for, in a package of the same name.
    names = ("client_app", "dataset", "model", "server_app", "strategy", "utils")
    assert all((APP / APP.name / f"{name}.py").is_file() for name in names)
    front = yaml.safe_load(PAGE.split("---\n")[1])
    assert set(front) == {"title", "url", "labels", "dataset"}
    assert 4 <= len(front["labels"]) <= 10
    for part in ("About this baseline", "Experimental setup", "Environment setup"):
        assert f"\n## {part}\n" in PAGE


def test_the_figures_of_the_page() -> None:
    found = results("mnist")
    iid, uneven = (found[f"lenet-{kind}-epsilon-100"] for kind in ("iid", "dirichlet"))
    assert f"{percent(iid)} %, three seeds" in PAGE
    assert len(iid["accuracy_by_seed"]) == 3
    assert f"Dirichlet shares {percent(uneven).split()[0]} %" in " ".join(PAGE.split())
    assert f"{iid['bytes_up_per_client_and_round']:g} bytes" in " ".join(PAGE.split())
    plan = SignDS(epsilon=100.0, k=0.01).plan(66_404)
    assert f"{plan.dim_out} at d = 66,404, k = 0.01" in PAGE


def test_the_runs_on_digits() -> None:
    runs = results("signdsfl")["runs"]
    assert {(one["row"], one["seed"]) for one in runs} == {
        (row, seed) for row in ROWS for seed in range(1, 6)
    }
    for one in runs:
        assert (len(one["accuracy_by_round"]), one["rejected_reports"]) == (31, 0)
        assert f"| {one['row']} | {one['epsilon_per_round']:g} |" in PAGE
        assert f"{one['payload_bytes']:g} bytes" in PAGE
    curves = [one["accuracy_by_round"] for one in runs if one["row"] == "published"]
    worst = max(before - after for curve in curves for before, after in pairwise(curve))
    assert f"lost up to {100 * worst:.0f} points in one round" in " ".join(PAGE.split())
