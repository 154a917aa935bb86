"""Figures on pages of the documentation are those of the result files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def rounded(value: float, digits: int) -> str:
    """Return a number as people round it: 97.05, which is a little less in binary, is 97.1."""
    return f"{value + 1e-9:.{digits}f}"


def percent(found: dict[str, Any], digits: int = 1) -> str:
    mean, deviation = found["accuracy_mean"], found["accuracy_standard_deviation"]
    return f"{rounded(100 * mean, digits)} ± {rounded(100 * deviation, digits)}"


@pytest.mark.parametrize(
    "found",
    [*results("totals")["summary"], *results("totals-60000")["summary"]],
    ids=lambda found: found["row"],
)
def test_accuracies_of_clients_who_are_asked_once(found: dict[str, Any]) -> None:
    page = text("docs/asked_once.md")
    clients, epsilon, shown = found["clients"], found["epsilon_total"], f"{percent(found)} %"
    if "CIFAR" in found["row"]:
        assert f"{shown} with {clients:,} clients" in page
        return
    rows = [row for row in page.splitlines() if row.startswith(f"| {clients:,}, ")]
    shared = [row for row in rows if ("Dirichlet" in row) == ("Dirichlet" in found["row"])]
    (row,) = [row for row in shared if f"| {epsilon:g} |" in row]
    assert shown in row
    assert found["seeds"] == 5


@pytest.mark.parametrize(
    "found",
    [one for one in results("shuffled")["summary"] if one["kind"] == "shuffled"],
    ids=lambda found: found["row"],
)
def test_accuracies_of_shuffled_reports(found: dict[str, Any]) -> None:
    (beside,) = (
        one
        for one in results("shuffled")["summary"]
        if (one["row"], one["kind"]) == (found["row"], "central")
    )
    assert (found["seeds"], beside["seeds"], beside["rounds"]) == (5, 5, found["rounds"])
    assert found["central_epsilon"] <= found["central"] == beside["central"]
    start = "CIFAR-10, " if found["row"].startswith("CIFAR") else "MNIST, "
    cells = [
        f"{start}{found['clients']:,}",
        f"{found['central']:g}",
        f"{found['rounds']}",
        f"{found['local_epsilon']:.2f}",
        f"{percent(found)} %",
        f"{percent(beside)} %",
    ]
    lines = text("docs/shuffled.md").replace("**", "").splitlines()
    assert f"| {' | '.join(cells)} |" in lines
    pages = ["results", "asked_once"] if found["row"].startswith("10,000") else ["results"]
    for page in pages:
        assert f"{percent(found)} %" in text(f"docs/{page}.md")


def test_the_accuracy_of_a_shuffled_run_with_all_parts() -> None:
    (found,) = (one for one in results("shuffled")["summary"] if one["kind"] == "sealed")
    said = f"{rounded(100 * found['accuracy_mean'], 1)} % in one run of {found['clients']:,}"
    assert f"{said} clients at {found['central']:g}." in " ".join(text("docs/shuffled.md").split())
    assert found["seeds"] == 1
    assert found["central_epsilon"] <= found["central"]


@pytest.mark.parametrize("name", ["label_dp", "label_cifar"])
def test_accuracies_with_private_labels(name: str) -> None:
    page = text("benchmarks/README.md")
    found = [one for one in results(name)["summary"] if one["evaluated_on"] == "test"]
    assert found
    for one in found:
        assert percent(one, 2) in page, one
        assert one["seeds"] == 3


@pytest.mark.parametrize("page", ["benchmarks/README.md", "docs/label_dp.md"])
def test_errors_of_regression_on_private_labels(page: str) -> None:
    named = {"rr_on_bins_unbiased": "`unbiased` |", "laplace": "| clipped, Laplace noise |"}
    named["rr_on_bins"] = "`decode` |"
    found = {
        (one["method"], one["epsilon"]): one for one in results("regression_labels")["summary"]
    }
    assert {one["seeds"] for one in found.values()} == {5}

    def shown(method: str, epsilon: float | None) -> str:
        one = found[method, epsilon]
        return f"{one['mse_mean']:.0f} ± {one['mse_standard_deviation']:.0f}"

    assert shown("no_privacy", None) in " ".join(text(page).split())
    for method, name in named.items():
        (row,) = [row for row in text(page).splitlines() if name in row]
        cells = [cell.strip(" *") for cell in row.split("|")[2:-1]]
        assert cells == [shown(method, epsilon) for epsilon in (1.0, 2.0, 4.0, 8.0)]


@pytest.mark.parametrize(
    ("method", "epsilon", "said"),
    [
        ("forward", 2, "({} % at 2)"),
        ("forward_subset", 1, "({} % at 1)"),
        ("lp_2st_subset", 1, "LP-2ST with sets ({} %)"),
        ("neighbours_subset", 1, "priors from neighbours ({} % at 1)"),
    ],
)
def test_methods_that_the_page_recommends(method: str, epsilon: float, said: str) -> None:
    (found,) = (
        one
        for one in results("label_dp")["summary"]
        if (one["method"], one["epsilon"], one["evaluated_on"]) == (method, epsilon, "test")
    )
    page = " ".join(text("docs/label_dp.md").split())
    assert said.format(rounded(100 * found["accuracy_mean"], 1)) in page


@pytest.mark.parametrize("found", results("quickstart")["summary"], ids=lambda found: found["row"])
def test_the_accuracy_of_flowers_quickstart(found: dict[str, Any]) -> None:
    (row,) = (
        line
        for line in text("docs/asked_once.md").splitlines()
        if line.startswith("| ") and all(word in line for word in found["row"].split(", "))
    )
    assert f"{percent(found)} %" in row
    assert found["seeds"] == 5


@pytest.mark.parametrize("found", results("signdsfl")["summary"], ids=lambda found: found["row"])
def test_the_accuracy_of_the_baseline(found: dict[str, Any]) -> None:
    page = text("examples/signdsfl/README.md")
    (row,) = (line for line in page.splitlines() if line.startswith(f"| {found['row']} |"))
    shown = [
        f"{rounded(100 * found[f'accuracy_mean_{at}'], 1)} ± "
        f"{rounded(100 * found[f'accuracy_standard_deviation_{at}'], 1)} %"
        for at in (10, 20, 30)
    ]
    fall = rounded(100 * found["largest_fall_in_a_round"], 1)
    assert row.endswith(f"| {' | '.join(shown)} | {fall} |")
    assert found["seeds"] == 5
    if found["row"] == "ours":
        assert f"{shown[-1]}, five seeds" in page


@pytest.mark.parametrize("row", ["LeNet-5, subspace", "11 million, head of 5,000"])
def test_the_accuracy_of_a_large_model(row: str) -> None:
    (found,) = (one for one in results("large_models")["summary"] if one["row"] == row)
    mean, spread = (found[f"accuracy_{of}"] for of in ("mean", "standard_deviation"))
    said = f"**{rounded(100 * mean, 1)} ± {rounded(100 * spread, 1)} %**"
    runs = {3: "three", 4: "four", 5: "five"}[found["seeds"]]
    page = " ".join(text("docs/part.md").split())
    assert re.search(f"{re.escape(said)}[^.]*, {runs} runs", page)


def test_cosines_and_times_of_codewords() -> None:
    page = text("docs/codeword.md")
    rows = results("codeword")["rows"]
    times = [f"{rounded(row['times SignDS'], 0)}" for row in rows if "size" in row][1:]
    assert f"0.9, {times[0]}, {times[1]} and {times[2]} times SignDS's" in page
    assert rounded(rows[0]["times SignDS"], 1) == "0.9"
    cosines = [row for row in rows if "epsilon" in row]
    assert len(cosines) == 8
    page = text("benchmarks/README.md")
    for row in cosines:
        who = "agree" if row["share"] == 1.0 else "differ"
        found = [row[name].replace("0.", ".") for name in ("1", "64", "4096", "SignDS")]
        line = f"| {row['epsilon']:g} | {who} | {row['clients']:,} | {' | '.join(found)} |"
        assert line in page


@pytest.mark.parametrize("kind", ["same", "free"])
@pytest.mark.parametrize(
    ("randomizer", "named"),
    [("codeword", "codewords"), ("signds", "SignDS"), ("gaussian", "Gaussian")],
)
def test_accuracies_of_rivals(randomizer: str, named: str, kind: str) -> None:
    lines = text("benchmarks/README.md").splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith(f"| {named} | nobody |"))
    row = lines[first + (kind == "free")]
    found = [
        one
        for one in results("rivals")["summary"]
        if one["randomizer"] == randomizer and one["kind"] == kind
    ]
    assert [one["epsilon_total"] for one in found] == [8, 4, 2, 1]
    assert row.endswith(f"| {' | '.join(percent(one) for one in found)} |")


def test_seeds_of_the_trials_of_steps() -> None:
    """Of the large apps fewer runs were made to choose a length."""
    counts = {
        (len(found), name.rpartition(", ")[2]) for name, found in results("steps")["runs"].items()
    }
    assert counts == {(5, "validation"), (2, "validation"), (20, "test")}
    page = " ".join(text("benchmarks/README.md").split())
    assert "with five seeds, of the last four apps with two" in page
    assert "compared on the test examples with 20" in page


def test_a_plan_with_the_noise_of_the_table_is_accepted() -> None:
    """Figures are rounded up, so that a plan that copies one is not refused."""
    pytest.importorskip("scipy")
    from flower_ldp.accounting.dpsgd import SampledGaussian

    page = (ROOT / "docs" / "dpsgd_release.md").read_text(encoding="utf-8")
    row = r"^\| ([\d.]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$"
    rows = re.findall(row, page, flags=re.MULTILINE)
    assert len(rows) == 3
    for rate, steps, *noise in rows:
        for epsilon, figure in zip((1.0, 2.0, 4.0, 8.0), noise, strict=True):
            plan = SampledGaussian(float(figure), float(rate), int(steps))
            assert plan.delta(epsilon) <= 1e-5, (rate, steps, figure)
    words = page[page.index("At ε = 0.5, 1, 2, 4 and 8 the noise is") :]
    named = re.findall(r"0\.\d{3}|1\.\d{3}", words)[:5]
    for epsilon, figure in zip((0.5, 1.0, 2.0, 4.0, 8.0), named, strict=True):
        assert SampledGaussian(float(figure), 250 / 60_000, 720).delta(epsilon) <= 1e-5, figure


def test_what_a_step_of_private_training_costs() -> None:
    page, found = text("benchmarks/README.md"), results("dpsgd_steps")
    for one in found["steps"]:
        ways = [one["milliseconds"][way] for way in ("own", "hooks", "ghost", "plain")]
        times = " | ".join(f"{way['median']:.1f}" for way in ways)
        ratio = f"{one['own_over_hooks']['median']:.2f}"
        assert f"| {one['weights']:,} | {one['max_rows']} | {times} | {ratio} |" in page
    parts = [one["least_milliseconds"] for one in found["parts"]]
    for name in parts[0]:
        assert f"| {name} | {' | '.join(f'{part[name]:.1f}' for part in parts)} |" in page
    for one in found["memory"][:3]:
        assert one["way"] == "own"
        assert f"{one['bytes_a_weight']:.1f}" in page
