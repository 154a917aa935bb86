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
#: Of rivals on images.
SEEDS = 3


def result(file: str, row: str, data: str = "cancer") -> dict[str, Any]:
    text = (ROOT / "benchmarks" / "results" / f"{file}.json").read_text(encoding="utf-8")
    found = [one for one in json.loads(text)["summary"] if one["row"] == row]
    [one] = (one for one in found if file == "hospitals" or one["data"] == data)
    assert isinstance(one, dict)
    return one


def rows_after(head: str, file: str = "benchmarks/README.md") -> list[list[str]]:
    page = (ROOT / file).read_text(encoding="utf-8")
    table = page.split(head)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def percent(found: dict[str, Any]) -> str:
    mean, spread = (100 * found[f"accuracy_{of}"] for of in ("mean", "standard_deviation"))
    return f"{mean:.1f} ± {spread:.1f} %"


def test_the_page_has_the_results() -> None:
    rows = rows_after("| way | ε is stated per |")
    assert [row[0] for row in rows] == [*ROWS]
    for name, _, stated, true, accuracy in rows:
        found = result(*ROWS[name])
        assert accuracy.strip("*") == percent(found), name
        epsilon = found.get("epsilon_true", found.get("epsilon_patient"))
        assert true.split()[0] == ("none" if epsilon is None else f"{epsilon:.2f}")
        if "epsilon_stated" in found:
            assert stated == f"{found['epsilon_stated']:.0f}"
        assert found["seeds"] == 5
        assert found.get("verdict", "hopeless") == "hopeless"


def test_the_short_table_is_of_the_long_one() -> None:
    rows = rows_after("| way, on the five hospitals", "docs/dpsgd_release.md")
    long = {row[0]: row for row in rows_after("| way | ε is stated per |")}
    names = ("FedAvg", "FL4Health, instance level", "**DP-SGD through the gate**")
    for (_, true, accuracy), name in zip(rows, names, strict=False):
        assert true == long[name][3]
        assert accuracy.strip("*%").strip() == long[name][4].strip("*").split()[0]
    sites = {
        name: float(row[4].split()[0]) for name, row in long.items() if row[3] == "1.00 of a site"
    }
    (central,) = (one for name, one in sites.items() if "central" in name)
    others = [one for one in sites.values() if one != central]
    assert rows[-2][2] == f"{min(others):.0f} to {max(others):.0f} %"
    assert rows[-1][2] == f"{central:.0f} %"


def test_the_page_has_the_results_on_images() -> None:
    rows = rows_after("| way, images |")
    assert [row[0] for row in rows] == [*ROWS]
    for name, true, *cells in rows:
        file, row = ROWS[name]
        for data, cell in zip(("mnist", "cifar"), cells, strict=True):
            found = result(file, row.replace("cancer", data), data)
            assert cell.strip("*") == percent(found), (name, data)
            epsilon = found.get("epsilon_true", found.get("epsilon_patient"))
            assert true.split()[0] == ("none" if epsilon is None else f"{epsilon:.2f}")
            assert found["seeds"] == (5 if file == "hospitals" else SEEDS)


def test_the_page_has_the_accuracy_at_each_epsilon() -> None:
    kinds = {"MNIST": "mnist", "CIFAR-10": "cifar", "breast cancer": "cancer"}
    rows = rows_after("| data, patients a site |", "docs/dpsgd_release.md")
    for (name, *cells), (begins, kind) in zip(rows, kinds.items(), strict=True):
        assert name.startswith(begins)
        for epsilon, cell in zip((1, 2, 4), cells, strict=True):
            found = result("hospitals", f"{kind}, {epsilon}")
            assert cell == percent(found)
            assert found["epsilon_patient"] == epsilon


def test_the_page_has_the_sites_of_other_classes() -> None:
    mnist, cifar = (
        percent(result("hospitals", f"{kind}, 1, Dirichlet(0.5)")) for kind in ("mnist", "cifar")
    )
    page = " ".join((ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").split())
    assert f"gives sites their classes, at ε = 1: MNIST {mnist}, CIFAR-10 {cifar}" in page


def test_the_page_has_the_runs_of_the_network() -> None:
    found = [result("hospitals", f"cnn, {epsilon}") for epsilon in (1, 2, 4)]
    assert [one["seeds"] for one in found] == [5, 5, 5]
    first, second, third = (percent(one).removesuffix(" %") for one in found)
    page = " ".join((ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").split())
    assert f"reached {first}, {second} and {third} % at ε = 1, 2 and 4, five seeds each" in page
