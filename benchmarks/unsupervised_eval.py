"""Protected evaluation at a client's total of 8: score and loss over rounds, against the truth.

Runs ``examples/unsupervised-eval/run.py`` so many times, each a training and an evaluation in each
round through Laplace noise, and the same through a codebook. A client answers once in a run, and
its own ledger says what that came to. Noise and sampling are the operating system's; the seed is
that of the split, of what clients hold and of the first weights. A run is written when it ends, and
runs that are there are not repeated.

    python benchmarks/unsupervised_eval.py --outputs runs
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from _environment import write_report
from _runs import Output, Run, Seeds, earlier, is_known

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.privacy import Unit

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parent / "examples" / "unsupervised-eval" / "run.py"
OUTPUT = HERE / "results" / "unsupervised_eval.json"


def run(clients: int, seed: int, folder: Path) -> list[Run]:
    """Run the example once; return a record of each of its two runs."""
    command = [sys.executable, str(SCRIPT), "--clients", str(clients), "--workers", "1"]
    subprocess.run([*command, "--set", f"seed={seed}", "--output", str(folder)], check=True)
    histories = json.loads((folder / "history.json").read_text())["runs"]
    return [record(one, folder / one["config"]["protection"]) for one in histories]


def record(history: dict[str, Any], folder: Path) -> Run:
    """Return what a run came to; totals are those of the clients' own ledger."""
    with Ledger.open(folder / "simulation-ledger.sqlite", read_only=True) as ledger:
        totals = [ledger.totals(one)[Unit.CLIENT] for one in ledger.data_ids()]
    rounds = history["rounds"][1:]
    return {
        "protection": history["config"]["protection"],
        "epsilon_total_most": max(amount.spent(Unit.CLIENT).epsilon for amount in totals),
        "clients_asked": len(totals),
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
        mine = [one for one in runs if one["protection"] == protection]
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
    seeds: Seeds = 5,
    output: Output = OUTPUT,
) -> None:
    """Run the example with each seed, and write rank correlations, errors and their spread."""
    runs = earlier(output)
    for seed in range(1, seeds + 1):
        one: Run = {"seed": seed, "clients": clients}
        if is_known(one, runs):
            continue
        began = time.perf_counter()
        found = run(clients, seed, outputs / str(seed))
        seconds = round(time.perf_counter() - began, 1)
        runs += [{**one, "seconds_of_both": seconds, **each} for each in found]
        body = {"summary": summary(runs), "runs": runs}
        words = ["--outputs", "runs", "--clients", str(clients), "--seeds", str(seeds)]
        write_report(output, "benchmarks/unsupervised_eval.py", words, body)
    for line in summary(runs):
        shown = [
            f"{name} {line[key]['mean']:.2f} ± {line[key]['standard_deviation']:.2f}"
            for name, key in (("score", "spearman_score"), ("loss", "spearman_loss"))
        ]
        print(f"{line['protection']}, total {line['epsilon_total']:g}: Spearman {', '.join(shown)}")


if __name__ == "__main__":
    typer.run(main)
