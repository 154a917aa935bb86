"""The README is true, and docs/results.md has the figures of the result files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from flower_ldp.config import from_config
from flower_ldp.strategies import SignDSStrategy

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["run", "test"])
def test_each_command_is_one_line_that_starts_from_a_bare_machine(name: str) -> None:
    found = re.findall(rf"<!-- ci:{name} -->\n```bash\n(.*?)\n```", README, flags=re.DOTALL)
    assert len(found) == 1
    assert "\n" not in found[0]
    assert found[0].startswith("python3 -m venv --upgrade-deps .venv && ")


def test_ci_runs_the_readmes_own_commands() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "readme_command run" in script
    assert "readme_command test" in script


def test_the_configuration_snippet_loads_the_sample() -> None:
    run = from_config(ROOT / "configs" / "signds.yaml")
    strategy = run.strategy(fraction_train=0.5)
    assert isinstance(strategy, SignDSStrategy)
    assert strategy.mechanism.epsilon == run.config.encrypt.signds.sign_eps
    assert len(run.client_mods()) == 1


def test_accuracies_are_those_of_the_result_file() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "mnist.json").read_text())
    assert len(results) == 3
    for result in results.values():
        mean, deviation = result["accuracy_mean"], result["accuracy_standard_deviation"]
        row = f"| {result['rounds']} | **{100 * mean:.2f} ± {100 * deviation:.2f} %** |"
        assert row in RESULTS
        assert result["evaluated_on"] == "test"
        assert result["reached"]


def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def percent(mean: float, deviation: float) -> str:
    """Return both in percent; 0.15, which is a little less in binary, is 0.2 as people round."""
    return f"{100 * mean:.1f} ± {100 * deviation + 1e-9:.1f} %"


def rows_with(*words: str) -> list[str]:
    """Return the rows of the table of figures that have all these words."""
    table = RESULTS.partition("| figure | setting | page |")[2].partition("\n\n")[0]
    return [row for row in table.splitlines() if all(word in row for word in words)]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("plain", "reports taken for labels"),
        ("forward", "forward-corrected"),
        ("local_priors", "local priors"),
        ("lp_2st", "two stages"),
        ("neighbours_subset", "priors from neighbours"),
    ],
)
def test_accuracies_with_private_labels_are_those_of_the_result_file(
    method: str, words: str
) -> None:
    (found,) = [
        row
        for row in results("label_dp")["summary"]
        if row["method"] == method and row["epsilon"] == 1 and row["evaluated_on"] == "test"
    ]
    shown = percent(found["accuracy_mean"], found["accuracy_standard_deviation"])
    assert rows_with(words, shown)


def test_the_accuracy_of_a_federation_with_private_labels_is_that_of_the_result_file() -> None:
    found = results("label_federated")["summary"]
    shown = percent(found["accuracy_mean"], found["accuracy_standard_deviation"])
    assert rows_with(f"{shown} federated")


def test_accuracies_of_split_learning_are_those_of_the_result_files() -> None:
    codes = {row["setting"]: row for row in results("reconstruction")["rows"]}
    eight, four = codes["codes, epsilon 8"], codes["codes, epsilon 4"]
    assert rows_with("total epsilon 8", f"{100 * eight['accuracy']:.1f} %")
    shown = percent(four["accuracy"], four["accuracy-deviation"])
    (row,) = rows_with("total epsilon 4", shown)
    assert f"no mechanism passes {100 * four['limit'] + 0.05:.1f}" in row
    for part, words in (("strict", "(8, 1e-5)"), ("pair", "8 each")):
        shown = [
            percent(row["accuracy"], row["standard-deviation"])
            for row in results(f"embedding-{part}")["rows"]
        ]
        (row,) = rows_with(words)
        assert any(one in row for one in shown)


def test_errors_of_scores_are_those_of_the_result_file() -> None:
    for proxy, words in (("matched", ""), ("rotated", "rotated"), ("digits", "another data set")):
        errors = [
            cell["silhouette"]["mean"]
            for cell in results("evaluation")["cells"]
            if cell["method"] == "confidence"
            and (cell["proxy"], cell["clients"], cell["epsilon"]) == (proxy, 1000, 4)
            and cell["iterations"] > 10
        ]
        assert len(errors) == 3
        assert rows_with("codebook", words, f"{100 * sum(errors) / 3:.1f} %")


def test_speeds_are_those_of_the_result_files() -> None:
    faster = [row["times_faster_than_argsort"] for row in results("selection")["rows"]]
    assert rows_with(", ".join(f"{ratio:.0f}" for ratio in faster) + " times")
    ratio = results("aggregation")["times_faster_than_dense"]["bytes"]
    assert rows_with(f"{ratio:.0f} times", "100,000 reports")


def test_trainings_that_ask_once_are_those_of_the_result_file() -> None:
    page = (ROOT / "docs" / "asked_once.md").read_text(encoding="utf-8")
    summary = results("totals")["summary"]
    assert len(summary) >= 8
    for row in summary:
        name, _, total = row["row"].removeprefix("CIFAR-10, ").rpartition(", ")
        shown = percent(row["accuracy_mean"], row["accuracy_standard_deviation"])
        lines = [line.replace("**", "") for line in page.splitlines()]
        if row["row"].startswith("CIFAR"):
            assert shown in " ".join(lines)
        else:
            clients, _, rest = name.partition(" clients")
            (line,) = [
                line
                for line in lines
                if line.startswith(f"| {clients},")
                and f"| {total} |" in line
                and ("Dirichlet" in line) == ("Dirichlet" in rest)
            ]
            assert shown in line
        assert row["epsilon_total"] == float(total)
        assert row["seeds"] == 5
        assert row["payload_bytes"] <= 4
