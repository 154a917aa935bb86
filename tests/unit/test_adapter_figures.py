"""The figures of adapters on the page are those of the benchmark's results."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.test_hospital_figures import ROOT, rows_after

RESULTS = json.loads((ROOT / "benchmarks/results/adapters.json").read_text(encoding="utf-8"))
WAYS = {
    "public model, new head of zeros": "start",
    "head alone, without noise": "head, plain",
    "adapters and head, without noise": "adapters, plain",
    "head alone, (8, 1e-5) a person": "head, 8",
    "**adapters and head, (8, 1e-5) a person**": "adapters, 8",
}
PAGE = "docs/adapters.md"


def the(**wanted: Any) -> dict[str, Any]:
    [found] = (one for one in RESULTS["runs"] if wanted.items() <= one.items())
    assert isinstance(found, dict)
    return found


def test_accuracies_and_shares_are_those_of_the_runs() -> None:
    found = {one["way"]: one for one in RESULTS["summary"]}
    rows = rows_after("| way | accuracy |", PAGE)
    assert [row[0] for row in rows] == list(WAYS)
    for name, accuracy, share in rows:
        one = found[WAYS[name]]
        spread = "" if one["deviation"] is None else f" ± {100 * one['deviation']:.1f}"
        assert accuracy == f"{100 * one['accuracy']:.1f}{spread} %"
        assert share == f"{100 * one['share_of_gain']:.0f} %"
        assert one["seeds"] == (1 if one["deviation"] is None else 3)


def test_costs_are_those_measured() -> None:
    cost = the(cost_of="a step")
    rows = rows_after("| a step of 24 images |", PAGE)
    assert len(rows) == len(cost["bytes"])
    for way, (_, time, memory) in zip(cost["bytes"], rows, strict=True):
        assert time == f"{cost['milliseconds'][way]['median']:.0f} ms"
        assert memory == f"{cost['bytes'][way] / 1e6:.0f} MB"


def test_the_arithmetic_of_text_is_the_results() -> None:
    text, page = the(cost_of="a window of text"), (ROOT / PAGE).read_text(encoding="utf-8")
    for words in (
        f"{text['weights'] / 1e6:.0f} million weights",
        f"{text['learning']:,} of adapters",
        f"{text['windows_a_site']:,} windows a site",
        f"noise of {text['noise']:.2f}",
        f"{text['seconds_a_window']:.1f} s a window",
        f"{text['hours_a_site']:.1f} hours",
    ):
        assert words in page, words
