"""Protected evaluation at a client's total of 8: score and loss over rounds, against the truth.

Runs ``examples/unsupervised-eval/run.py`` so many times, each a training and an evaluation in each
round through Laplace noise, and the same through a codebook. A client answers once in a run, and
its own ledger says what that came to. Noise and sampling are the operating system's; the seed is
that of the split, of what clients hold and of the first weights. A run is written when it ends, and
runs that are there are not repeated.

    python benchmarks/unsupervised_eval.py --outputs runs
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import _options as options
import typer
from _examples import EXAMPLES
from _in_process import totals
from _runs import Run, Runs, like

SCRIPT = EXAMPLES / "unsupervised-eval" / "run.py"


def run(clients: int, seed: int, protection: str, folder: Path) -> Run:
    """Run the example once; return what it came to."""
    command = [sys.executable, str(SCRIPT), "--clients", str(clients), "--workers", "1"]
    command += ["--protection", protection, "--set", f"seed={seed}", "--output", str(folder)]
    subprocess.run(command, check=True)
    (history,) = json.loads((folder / "history.json").read_text())["runs"]
    return record(history, folder / protection)


def record(history: dict[str, Any], folder: Path) -> Run:
    """Return what a run came to; totals are those of the clients' own ledger."""
    spent = totals(folder / "simulation-ledger.sqlite")
    rounds = history["rounds"][1:]
    return {
        "epsilon_total_most": max(total.epsilon for total in spent),
        "clients_asked": len(spent),
        "evaluations": len(rounds),
        "evaluated_each_time": rounds[-1]["accepted"],
        "spearman": history["spearman"],
        "mean_absolute_error": history["error"],
        "last_round": {
            name: rounds[-1].get(name)
            for name in ("score", "true-score", "loss", "true-loss", "clustering-accuracy")
        },
        "curves": {
            name: [row.get(name) for row in rounds]
            for name in ("score", "true-score", "loss", "true-loss")
        },
    }


def spread(values: list[float]) -> dict[str, float]:
    """Return mean, population standard deviation, least and most."""
    return {
        "mean": statistics.mean(values),
        "standard_deviation": statistics.pstdev(values),
        "least": min(values),
        "most": max(values),
    }


def summary(runs: list[Run]) -> list[dict[str, Any]]:
    """Return each protection's spread over runs."""
    made = []
    for protection in sorted({one["protection"] for one in runs}):
        mine = like(runs, protection=protection)
        line: dict[str, Any] = {
            "protection": protection,
            "runs": len(mine),
            "epsilon_total": max(one["epsilon_total_most"] for one in mine),
        }
        for name in ("score", "loss"):
            # A curve without a rank correlation (a single value) is no curve that was right.
            line[f"spearman_{name}"] = spread([one["spearman"][name] or 0.0 for one in mine])
            line |= _spread_of(
                f"mean_absolute_error_{name}", [one["mean_absolute_error"][name] for one in mine]
            )
        for name in ("score", "true-score", "loss", "true-loss", "clustering-accuracy"):
            line |= _spread_of(f"last_{name}", [one["last_round"][name] for one in mine])
        made.append(line)
    return made


def _spread_of(name: str, values: list[float | None]) -> dict[str, dict[str, float]]:
    """Return the spread of what there is: a run with a single cluster has no score, nor error."""
    there = [value for value in values if value is not None]
    return {name: spread(there)} if there else {}


def main(
    outputs: Annotated[Path, typer.Option(help="Folder for the runs' own files and plots.")],
    clients: Annotated[int, typer.Option(min=80, help="Simulated clients.")] = 2_000,
    seeds: options.Seeds = 5,
    output: options.Output = options.RESULTS / "unsupervised_eval.json",
) -> None:
    """Run the example with each seed, and write rank correlations, errors and their spread."""
    runs = Runs(output, summary)
    for seed, protection in itertools.product(range(1, seeds + 1), ("laplace", "codebook")):
        one: Run = {"seed": seed, "clients": clients, "protection": protection}
        folder = outputs / f"{seed}-{protection}"
        runs.make(one, partial(run, clients, seed, protection, folder))
    runs.show()


if __name__ == "__main__":
    typer.run(main)
