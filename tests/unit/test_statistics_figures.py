"""docs/statistics.md has the figures of its result file."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_has_the_figures_of_the_file() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "flower_statistics.json").read_text())
    page = (ROOT / "docs" / "statistics.md").read_text(encoding="utf-8")
    lines = [one for one in page.splitlines() if " of " in one and one.startswith("|")]
    table = [one for one in lines if " ± " in one]
    assert len(table) == len(found["summary"]) == 4
    for row, line in zip(found["summary"], table, strict=True):
        digits = 1 if row["unit"] == "points" else 3
        mean, spread = row["worst"]
        assert f"{mean:.{digits}f} ± {spread:.{digits}f} " in line
        assert f"| {row['within']} of {row['runs']} |" in line
        assert line.endswith(f"| {row['lines']} |" if row["lines"] else "| |")
    between = found["summary"][1]["worst_between"][0]
    assert f"were off by {between:.3f}." in page
