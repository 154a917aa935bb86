"""docs/flower_apps.md has the figures of its result file."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture
def found() -> Any:
    return json.loads((RESULTS / "flower_apps.json").read_text())


def test_the_page_is_made_of_the_files(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    asked = json.loads((RESULTS / "flower_statistics.json").read_text())
    page = import_module("_flower_app_page").page(found, asked)
    assert (ROOT / "docs" / "flower_apps.md").read_text(encoding="utf-8") == page


def test_no_figure_spends_more_than_its_plan(found: Any) -> None:
    private = [one for one in found["summary"] if one.get("private")]
    assert private
    for one in private:
        assert one["epsilon"] <= 8
        assert one["delta"] <= 1e-5


def test_what_counts_as_near(found: Any) -> None:
    run = [one for one in found["summary"] if one.get("private")]
    assert run
    for one in run:
        private, fedavg, constant = one["private"][0], one["fedavg"][0], one["constant"]
        if one["metric"] == "accuracy":
            assert one["near"] == (private >= fedavg - 0.05)
        else:
            assert one["near"] == (private <= fedavg + 0.1 * (constant - fedavg))


def test_the_page_counts_all_runs_on_test_rows(found: Any) -> None:
    tested = [one for one in found["runs"] if one["kind"] == "private" and "part" not in one]
    told = [one for one in found["summary"] if one.get("private")]
    for one in told:
        of_it = [run for run in tested if run["app"] == one["name"]]
        assert len(one["earlier"]) + one["seeds"][1] == len(of_it)
    assert any(one["earlier"] for one in told)
