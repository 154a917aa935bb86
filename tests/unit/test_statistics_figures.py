"""docs/statistics.md has the figures of its result file."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "statistics.md").read_text(encoding="utf-8")


def test_the_page_has_the_figures_of_the_file() -> None:
    found = json.loads((RESULTS / "flower_statistics.json").read_text())
    lines = [one for one in PAGE.splitlines() if " of " in one and one.startswith("|")]
    table = [one for one in lines if " ± " in one]
    assert len(table) == 4
    for row, line in zip(found["summary"], table, strict=False):
        digits = 1 if row["unit"] == "points" else 3
        mean, spread = row["worst"]
        assert f"{mean:.{digits}f} ± {spread:.{digits}f} " in line
        assert f"| {row['within']} of {row['runs']} |" in line
        assert line.endswith(f"| {row['lines']} |" if row["lines"] else "| |")
    curve, *rest = (row for row in found["summary"] if "worst_between" in row)
    assert f"{curve['worst_between'][0]:.3f} off on the worst day" in PAGE
    assert len(rest) == 8
    for silent, noisy in zip(rest[::2], rest[1::2], strict=True):
        days = noisy["app"].split()[-2]
        cells = [silent["worst_between"][0], noisy["worst"][0], noisy["worst_between"][0]]
        assert f"| {days} | {' | '.join(f'{one:.3f}' for one in cells)} |" in PAGE


def test_the_page_has_the_errors_of_quantiles() -> None:
    rows = json.loads((RESULTS / "quantiles.json").read_text())["rows"]
    for intervals in (16, 64, 100, 256, 1_000):
        own = [row for row in rows if (row["intervals"], row["rows"]) == (intervals, 2_000)]
        cells = " | ".join(f"{row['flat']:.1f}, {row['blocks']:.1f}" for row in own)
        assert f"| {intervals:,} | {cells} |" in PAGE
    gain = [row["blocks"] / row["flat"] for row in rows if row["intervals"] >= 256]
    assert (f"{min(gain):.1f}", f"{max(gain):.1f}") == ("0.3", "0.9")
    peak = {row["intervals"]: row for row in rows if (row["law"], row["rows"]) == ("bell", 500)}
    assert (round(peak[16]["flat"]), round(peak[256]["blocks"])) == (8, 14)
