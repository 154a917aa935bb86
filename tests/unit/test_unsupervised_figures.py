"""What the pages say of evaluation at a total of 8 is what was measured.

``python -m tests.unit.test_unsupervised_figures`` writes the measured rows into the tables.
"""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "unsupervised_eval.json").read_text())
SUMMARY = {line["protection"]: line for line in RESULTS["summary"]}
SHORT = ("runs", "spearman_score", "spearman_loss", "mean_absolute_error_score")
#: Words of a row of a table, by what it is the mean and spread of.
ROWS = {
    "runs": "runs",
    "spearman_score": "rank correlation of the protected with the true score, over rounds",
    "spearman_loss": "rank correlation of the protected with the true loss",
    "mean_absolute_error_score": "mean error of the protected score",
    "mean_absolute_error_loss": "mean error of the protected loss",
    "last_true-score": "true score, last round",
    "last_score": "protected score, last round",
    "last_clustering-accuracy": "clustering accuracy on held-out images, last round",
}


PAGES = {"examples/unsupervised-eval/README.md": tuple(ROWS), "docs/evaluation.md": SHORT}


def shown(value: Any) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value['mean']:.2f} ± {value['standard_deviation']:.2f}"


def row(key: str) -> str:
    """Return a row of the table: Laplace, then the codebook."""
    cells = (shown(SUMMARY[name][key]) for name in ("laplace", "codebook"))
    return f"| {ROWS[key]} | {' | '.join(cells)} |"


@pytest.mark.parametrize(("page", "keys"), PAGES.items())
def test_tables_are_of_the_results(page: str, keys: tuple[str, ...]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [row(key) for key in keys if row(key) not in text] == []


def every(of: Callable[[dict[str, Any]], Any]) -> set[Any]:
    return {of(run) for run in RESULTS["runs"]}


def test_each_run_asked_each_client_once_and_cost_it_8() -> None:
    assert len({line["runs"] for line in SUMMARY.values()}) == 1
    assert every(lambda run: run["epsilon_total_most"]) == {8.0}
    assert every(lambda run: run["evaluations"]) == {20}
    # All were asked, half of them in one of the evaluations: nobody was in two.
    assert every(lambda run: run["clients_asked"]) == every(lambda run: run["clients"])
    half = every(lambda run: 2 * run["evaluations"] * run["evaluated_each_time"])
    assert half == every(lambda run: run["clients"])


def test_a_run_without_a_score_neither_ends_the_summary_nor_counts_as_without_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("unsupervised_eval")
    whole, broken = RESULTS["runs"][0], copy.deepcopy(RESULTS["runs"][0])
    broken["last_round"] |= {"score": None, "true-score": None}
    broken["mean_absolute_error"]["score"] = broken["spearman"]["score"] = None
    (alone,), (both,) = module.summary([whole]), module.summary([whole, broken])
    assert both["runs"] == 2
    for key in ("mean_absolute_error_score", "last_score", "last_true-score"):
        assert both[key]["mean"] == alone[key]["mean"]
    assert both["spearman_score"]["least"] == 0.0
    (none,) = module.summary([broken])
    assert "last_score" not in none
    assert none["last_loss"] == alone["last_loss"]


def write() -> None:
    """Replace the rows of the tables."""
    for page, keys in PAGES.items():
        path = ROOT / page
        lines = path.read_text(encoding="utf-8").splitlines()
        for key in keys:
            begins = f"| {ROWS[key]} |"
            lines = [row(key) if line.startswith(begins) else line for line in lines]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
