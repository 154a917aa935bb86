"""Tables of split learning, of its page and of the benchmarks, say what the result files say."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.fixtures import ROOT

RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
SECTION = BENCHMARKS.partition("\n## `reconstruction.py`")[2].partition("\n## ")[0]
LINES = [line for line in SECTION.splitlines() if line.startswith("| ")]


def rows_of(name: str) -> list[dict[str, Any]]:
    report = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    assert "--held-out" not in report["command"]
    return report["rows"]


def percent(mean: float, deviation: float) -> str:
    return f"{100 * mean:.2f} ± {100 * deviation:.2f} %"


@pytest.mark.parametrize("part", ["pair", "strict", "floor"])
def test_accuracies_are_those_of_the_result_files(part: str) -> None:
    for row in rows_of(f"embedding-{part}.json"):
        assert len(row["accuracies"]) == 3
        cell = percent(row["accuracy"], row["standard-deviation"])
        (line,) = [line for line in LINES if cell in line]
        if "limit" in row:
            assert f"{100 * row['limit']:.2f} %" in line


def test_bits_through_the_gate_are_those_of_the_result_file() -> None:
    (row,) = rows_of("embedding-bits.json")
    for said in (
        percent(row["accuracy"], row["standard-deviation"]),
        f"{row['records-per-second']:,} records",
        f"{row['records-per-second-unsplit']:,} for the same model",
        f"{row['ratio']:.1f} times",
    ):
        assert said in " ".join(SECTION.split())


def test_what_an_attacker_rebuilds_is_that_of_the_result_file() -> None:
    for row in rows_of("reconstruction.json"):
        assert len(row["ssim-seeds"]) == 3
        cells = f"| {row['ssim']:.3f} ± {row['ssim-deviation']:.3f} | {row['mse']:.4f} |"
        (line,) = [line for line in LINES if cells in line]
        if "accuracy" in row and "releases" not in row["setting"]:
            assert percent(row["accuracy"], row["accuracy-deviation"]) in line
        if "limit" in row:
            assert f"{100 * row['limit']:.2f} %" in line


def test_every_accuracy_reaches_what_was_aimed_at() -> None:
    rows = rows_of("embedding-pair.json")
    for epsilon, aim in ((8, 0.945), (4, 0.80)):
        found = [row["accuracy"] for row in rows if row["epsilon-parties"][0] == epsilon]
        assert max(found) >= aim
    assert min(row["accuracy"] for row in rows_of("embedding-strict.json")) >= 0.94
    assert rows_of("embedding-bits.json")[0]["accuracy"] >= 0.965


def test_the_page_has_rows_of_the_whole_table() -> None:
    table = PAGE.partition("\n## Results")[2].partition("\n\n!")[0]
    rows = [line.split(" | ") for line in table.splitlines() if re.search(r"\d % \|$", line)]
    assert len(rows) > 5
    for _, epsilon, covers, accuracy in rows:
        cells = f" {epsilon} | {covers}"
        assert [line for line in LINES if cells in line and accuracy.strip("| ") in line], accuracy
