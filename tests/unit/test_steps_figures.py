"""What the pages say of steps without tuning is what was measured.

``python -m tests.unit.test_steps_figures`` writes the measured rows into the table.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "steps.md"
TABLE = ROOT / "benchmarks" / "README.md"
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "steps.json").read_text())
CELLS: list[dict[str, Any]] = RESULTS["summary"]
HEAD = (
    "| app | total ε | best tuned length | `AgreedLength()` | behind | length 0.5 |",
    "|---|---|---|---|---|---|",
)
#: Points.
GOAL = 3.0


def percent(cell: dict[str, Any], rule: str) -> str:
    return f"{100 * cell[f'{rule}_mean']:.1f} ± {100 * cell[f'{rule}_deviation']:.1f}"


def row(cell: dict[str, Any]) -> str:
    shown = [
        f"`{cell['app']}`",
        str(cell["epsilon"]),
        f"{percent(cell, 'tuned')} ({cell['tuned_length']:g})",
        percent(cell, "agreed"),
        f"{cell['gap_points']:.1f} ± {cell['gap_error_points']:.1f}",
        f"{100 * cell['sample_mean']:.1f}",
    ]
    return f"| {' | '.join(shown)} |"


def table() -> str:
    return "\n".join([*HEAD, *map(row, CELLS)])


def test_the_table_is_that_of_the_results() -> None:
    text = TABLE.read_text(encoding="utf-8")
    (shown,) = re.findall(r"<!-- steps -->\n\n(.*?)\n\n<!-- end -->", text, flags=re.DOTALL)
    assert shown == table(), "run python -m tests.unit.test_steps_figures"


def test_every_app_is_there_at_every_total() -> None:
    apps = list(dict.fromkeys(cell["app"] for cell in CELLS))
    assert [(cell["app"], cell["epsilon"]) for cell in CELLS] == [
        (app, epsilon) for app in apps for epsilon in (8, 30, 100)
    ]
    assert len(apps) == 8


def test_what_is_within_the_goal_is_said() -> None:
    within = [cell for cell in CELLS if cell["gap_points"] <= GOAL]
    said = f"**{len(within)} of the {len(CELLS)} cells are within {GOAL:g} points.**"
    assert said in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell['app']}-{cell['epsilon']}")
def test_a_mean_is_that_of_the_runs(cell: dict[str, Any]) -> None:
    named = f"{cell['app']}, epsilon {cell['epsilon']:g}"
    for rule, runs in (
        ("tuned", f"length {cell['tuned_length']:g}"),
        ("agreed", "agreed"),
        ("sample", "length 0.5"),
    ):
        found = list(RESULTS["runs"][f"{named}, {runs}, test"].values())
        assert len(found) == cell["seeds"]
        assert sum(found) / len(found) == pytest.approx(cell[f"{rule}_mean"], abs=1e-4)


def main() -> None:
    text = TABLE.read_text(encoding="utf-8")
    written = f"<!-- steps -->\n\n{table()}\n\n<!-- end -->"
    found = re.sub(r"<!-- steps -->.*?<!-- end -->", lambda _: written, text, flags=re.DOTALL)
    TABLE.write_text(found, encoding="utf-8")


if __name__ == "__main__":
    main()
