"""The figures of five hospitals on the page are those of the benchmarks' results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: Of each row of the page, the results file and the row in it.
ROWS = {
    "FedAvg": ("hospital_rivals", "FedAvg"),
    "**DP-SGD through the gate**": ("hospitals", "cancer, 1"),
    "FL4Health, instance level": ("hospital_rivals", "FL4Health"),
    "Flower's `LocalDpMod` as told": ("hospital_rivals", "LocalDpMod as told"),
    "Flower's `LocalDpMod`": ("hospital_rivals", "LocalDpMod"),
    "Flower's central DP": ("hospital_rivals", "central DP"),
    "SignDS": ("hospital_rivals", "SignDS"),
    "codewords": ("hospital_rivals", "codewords"),
}


def result(file: str, row: str) -> dict[str, Any]:
    text = (ROOT / "benchmarks" / "results" / f"{file}.json").read_text(encoding="utf-8")
    [found] = [one for one in json.loads(text)["summary"] if one["row"] == row]
    assert isinstance(found, dict)
    return found


def test_the_page_has_the_results() -> None:
    page = (ROOT / "docs" / "dpsgd_release.md").read_text(encoding="utf-8")
    table = page.split("| way | ε is stated per |")[1].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert [row[0] for row in rows] == [*ROWS]
    for name, _, stated, true, accuracy in rows:
        found = result(*ROWS[name])
        mean, spread = (100 * found[f"accuracy_{of}"] for of in ("mean", "standard_deviation"))
        assert accuracy.strip("*") == f"{mean:.1f} ± {spread:.1f} %", name
        epsilon = found.get("epsilon_true", found.get("epsilon_patient"))
        assert true.split()[0] == ("none" if epsilon is None else f"{epsilon:.2f}")
        if "epsilon_stated" in found:
            assert stated == f"{found['epsilon_stated']:.0f}"
        assert found["seeds"] == 5
        assert found.get("verdict", "hopeless") == "hopeless"


def test_the_page_has_the_accuracy_at_each_epsilon() -> None:
    page = (ROOT / "docs" / "dpsgd_release.md").read_text(encoding="utf-8")
    table = page.split("| data, patients a site |")[1].split("\n\n")[0].splitlines()[2:]
    kinds = {"MNIST": "mnist", "CIFAR-10": "cifar", "breast cancer": "cancer"}
    for line, (begins, kind) in zip(table, kinds.items(), strict=True):
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        assert name.startswith(begins)
        for epsilon, cell in zip((1, 2, 4), cells, strict=True):
            found = result("hospitals", f"{kind}, {epsilon}")
            mean, spread = (100 * found[f"accuracy_{of}"] for of in ("mean", "standard_deviation"))
            assert cell == f"{mean:.1f} ± {spread:.1f} %"
            assert found["epsilon_patient"] == epsilon
