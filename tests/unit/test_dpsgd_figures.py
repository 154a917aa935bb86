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


def test_hopeless_models_with_more_seeds() -> None:
    again = results("dpsgd_outlook-hopeless")["cases"]
    assert [*again] == [name for name, case in CASES.items() if case["verdict"] == "hopeless"]
    rows = rows_after("| hopeless model |", BENCHMARKS)
    assert rows == [[name, gain(c), f"{c['learning_rate']:g}"] for name, c in again.items()]
    assert all(len(case["gains"]) == 30 and not case["learned"] for case in again.values())
    assert f"Thirty seeds gave {gain(again['wine, linear'])} points" in words(PAGE)


def test_settings_of_the_runs() -> None:
    rows = rows_after("| model | weights | rows a site |", BENCHMARKS)
    for row, (name, case) in zip(rows, CASES.items(), strict=True):
        sizes = [f"{case['weights']:,}", f"{case['examples']:,}", str(case["sites"])]
        numbers = [f"{case[of]:g}" for of in ("rate", "noise", "learning_rate")]
        assert row == [name, *sizes, *numbers, f"{statistics.mean(case['agreement']):.3f}"]


def shown(one: dict[str, Any], of: str = "score") -> str:
    """Return mean and spread: R2, or an accuracy in percent."""
    mean, spread = one[of], one[f"{of}_standard_deviation"]
    if one["data"] == "diabetes":
        return f"{mean:.2f} ± {spread:.2f}"
    return f"{100 * mean:.1f} ± {100 * spread:.1f} %"


DATA = {"breast cancer": "cancer", "CIFAR-10": "cifar", "MNIST": "mnist"}


def test_estimators_of_scikit_learn() -> None:
    found = results("few_sites_estimators")["summary"]
    rows = rows_after("| data | estimator | score |", PAGE)
    assert sum(bool(cell) for row in rows for cell in row[3:7]) == len(found)
    assert {one["seeds"] for one in found} == {5}
    for name, estimator, _, *cells, without in rows:
        wanted = DATA.get(name, name), estimator.strip("`")
        kind = [one for one in found if (one["data"], one["estimator"]) == wanted]
        assert {shown(one, "without_privacy") for one in kind} == {without}
        by_epsilon = {one["epsilon"]: shown(one) for one in kind}
        assert cells == [by_epsilon.get(epsilon, "") for epsilon in (1.0, 2.0, 4.0, 8.0)]


WAYS = ("automatic", "fixed", "a tenth", "ten times", "hundred times", "learned")


def test_ways_to_clip() -> None:
    found = {
        (one["data"], one["epsilon"], one["way"]): one for one in results("clipping")["summary"]
    }
    assert len(found) == 5 * 2 * len(WAYS)
    assert {one["seeds"] for one in found.values()} == {10}
    rows = rows_after("| data | ε | automatic |", PAGE)
    settings = rows_after("| data | ε | automatic |", BENCHMARKS)
    assert len(rows) == len(settings) == 10
    for row, lengths in zip(rows, settings, strict=True):
        assert row[:2] == lengths[:2]
        kind = [found[DATA.get(row[0], row[0]), float(row[1]), way] for way in WAYS]
        assert row[2:] == [shown(one) for one in kind]
        steps = [f"{one['length_of_step']:g}" for one in kind]
        steps[1] += f" (C = {kind[1]['clip']:g})"
        assert lengths[2:] == steps


def test_what_the_page_says_of_ways_to_clip() -> None:
    found = {
        (one["data"], one["epsilon"], one["way"]): one["score"]
        for one in results("clipping")["summary"]
    }
    pairs = [pair[:2] for pair in found if pair[2] == "automatic"]

    def gains(way: str) -> dict[tuple[str, float], float]:
        """Of a way over automatic clipping."""
        return {pair: found[*pair, way] - found[*pair, "automatic"] for pair in pairs}

    page = words(PAGE)
    best, learned = gains("fixed"), gains("learned")
    assert f"is at most {100 * max(best.values()):.1f} points below the best length" in page
    lost = found["mnist", 2.0, "fixed"] - found["mnist", 2.0, "ten times"]
    assert f"MNIST loses {100 * lost:.0f} points at ε = 2" in page
    assert sum(one > 0 for one in learned.values()) == 3
    assert sum(one < 0 for one in learned.values()) == 7
    assert f"in three rows, by {100 * max(learned.values()):.1f} points at most" in page
    numbers = [one for (data, _), one in learned.items() if data == "diabetes"]
    others = [one for (data, _), one in learned.items() if data != "diabetes"]
    worst = f"in seven, by up to {-100 * min(others):.1f} points and {-min(numbers):.2f} of R²"
    assert worst in page
