"""Figures of private trainings on the pages are those of the result files."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE, BENCHMARKS = "docs/dpsgd_release.md", "benchmarks/README.md"


def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def words(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def rows_after(head: str, page: str) -> list[list[str]]:
    text = (ROOT / page).read_text(encoding="utf-8")
    table = text.split(head)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


CASES = results("dpsgd_outlook")["cases"]


def gain(case: dict[str, Any]) -> str:
    is_error = "error" in case["measure"]
    digits, end = (2, " of the error") if is_error else (1, "")
    return f"{case['gain']:.{digits}f} ± {statistics.stdev(case['gains']):.{digits}f}{end}"


def test_verdicts_beside_runs() -> None:
    rows = rows_after("| model | ε | z |", PAGE)
    assert len(rows) == len(CASES) == 12
    for row, (name, case) in zip(rows, CASES.items(), strict=True):
        wrong = [
            f"{case[of]}, **wrong**" if case[is_wrong] else case[of]
            for of, is_wrong in (("verdict", "wrong"), ("verdict_by_numbers", "wrong_by_numbers"))
        ]
        shown = f"{name} (held out)" if case["held_out"] else name
        numbers = [f"{case['epsilon']:g}", f"{case['signal_to_noise']:.2f}"]
        assert row == [shown, *numbers, *wrong, gain(case)]
        assert len(case["gains"]) == 3


def test_verdicts_follow_from_the_runs() -> None:
    """What a file calls learned and wrong is what its gains say."""
    for case in CASES.values():
        least = 0.5 if "error" in case["measure"] else 10.0
        assert case["gain"] == pytest.approx(statistics.mean(case["gains"]))
        assert case["learned"] == (case["gain"] >= least)
        for of, is_wrong in (("verdict", "wrong"), ("verdict_by_numbers", "wrong_by_numbers")):
            bad = "hopeless" if case["learned"] else "good"
            assert case[is_wrong] == (case[of] == bad)
    assert [name for name, case in CASES.items() if case["wrong"]] == ["wine, linear"]
    assert sum(case["verdict"] == "uncertain" for case in CASES.values()) == 2
    assert sum(case["verdict_by_numbers"] == "uncertain" for case in CASES.values()) == 5


def test_settings_of_the_runs() -> None:
    rows = rows_after("| model | weights | rows a site |", BENCHMARKS)
    for row, (name, case) in zip(rows, CASES.items(), strict=True):
        sizes = [f"{case['weights']:,}", f"{case['examples']:,}", str(case["sites"])]
        numbers = [f"{case[of]:g}" for of in ("rate", "noise", "learning_rate")]
        assert row == [name, *sizes, *numbers, f"{statistics.mean(case['agreement']):.3f}"]
