"""Accuracy of five hospitals that train together, at a patient's epsilon of 1, 2 and 4.

Each site trains by DP-SGD through the gate; the plan and its epsilon are charged to the site's own
ledger, and the server runs Flower's FedAvg (``_sites.py``). Neighbours differ in one patient's
content, delta is 1e-5, and the clipping length 1. Noise and sampling are the operating system's;
the seed is that of the split among sites.

``cancer``  scikit-learn's, 91 patients a site in full batches, and the example's layer with a
            learned centre (``examples/hospitals``): the price of scaling is in the epsilon
``cifar``   CIFAR-10 through a public trunk (a file), 10,000 rows a site, a linear layer

No scaling is fitted. Settings were chosen on a tenth of the training rows, by noisy steps in numpy
alone; ``--evaluate-on validation`` does the same through the gate. (Which functions of a column
were tried for ``cancer`` was seen on splits of all its patients before.) A run is written when it
ends, and runs that are there are not repeated.

    python benchmarks/hospitals.py cancer
    python benchmarks/hospitals.py cifar --data cifar10-features.npz
"""

from __future__ import annotations

import json
import logging
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from _environment import write_report
from _runs import EvaluateOn, Run, Seeds, earlier, is_known
from _sites import Plan, Sites, at, run
from _strokes import with_constant
from torch import nn

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "examples" / "hospitals"))

from hospitals_example import centred, data  # noqa: E402


@dataclass(frozen=True)
class Row:
    """A data set and an epsilon; ``floor`` and ``goal`` are test accuracies in percent."""

    name: str
    plan: Plan
    floor: float | None = None
    goal: float | None = None


ROWS = {
    "cancer": [
        Row("cancer, 1", Plan(1.0, 20, 1, 1.0, 0.5), 78, 88),
        Row("cancer, 2", Plan(2.0, 20, 1, 1.0, 0.5)),
        Row("cancer, 4", Plan(4.0, 20, 1, 1.0, 0.5), None, 93),
    ],
    "cifar": [
        Row("cifar, 1", Plan(1.0, 20, 5, 0.05, 8.0), 66.5, 68),
        Row("cifar, 2", Plan(2.0, 20, 5, 0.05, 16.0), 67.8),
        Row("cifar, 4", Plan(4.0, 20, 5, 0.05, 16.0), 68.2),
    ],
}


def cancer(evaluate_on: str, seed: int) -> Sites:
    """Return the example's sites."""
    wards, held = data.load(evaluate_on, seed)
    features, targets = zip(*(held[row] for row in range(len(held))), strict=True)
    return Sites(
        rows=list(wards),
        held=(torch.stack(features), torch.stack(targets)),
        like=(torch.zeros(data.COLUMNS), torch.tensor(0.0)),
        model=centred.Centred,
        loss=centred.loss,
        right=centred.is_right,
        optimizer=centred.Descent,
    )


#: Of a row. Those that are not yet learned have a gradient longer than the clipping length.
_LENGTH = np.float32(2)


def cifar(path: Path, evaluate_on: str, seed: int) -> Sites:
    """Return five sites of unit vectors, and a linear layer."""
    with np.load(path) as file:
        x, held_x = (
            _LENGTH * with_constant(file[f"x_{part}"].astype(np.float32))
            for part in ("train", "test")
        )
        y, held_y = file["y_train"].astype(np.int64), file["y_test"]
    kept = np.arange(len(y))
    if evaluate_on == "validation":
        held, kept = np.split(np.random.default_rng(0).permutation(len(y)), [len(y) // 10])
        held_x, held_y = x[held], y[held]
    parts = np.random.default_rng(seed).permutation(kept).reshape(5, -1)
    return Sites(
        rows=[
            list(zip(torch.from_numpy(x[p]), torch.from_numpy(y[p]), strict=True)) for p in parts
        ],
        held=(torch.from_numpy(held_x), torch.from_numpy(held_y.astype(np.int64))),
        like=(torch.zeros(x.shape[1]), torch.tensor(0)),
        model=lambda: _zeros(x.shape[1]),
        loss=nn.functional.cross_entropy,
        right=lambda output, target: output.argmax(dim=1) == target,
        optimizer=lambda parameters, rate, _: torch.optim.SGD(parameters, lr=rate),
    )


def _zeros(columns: int) -> nn.Module:
    model = nn.Linear(columns, 10, bias=False)
    nn.init.zeros_(model.weight)
    return model


def summary(runs: list[Run], evaluate_on: str) -> list[dict[str, Any]]:
    """Return mean and spread of each row's runs."""
    made = []
    for row in (one for rows in ROWS.values() for one in rows):
        plan = asdict(row.plan)
        mine = [
            one
            for one in runs
            if (one["row"], one["evaluated_on"], one["plan"]) == (row.name, evaluate_on, plan)
        ]
        if not mine:
            continue
        found = [one["accuracy"] for one in mine]
        mean = statistics.mean(found)
        made.append(
            {
                "row": row.name,
                "epsilon_patient": max(one["epsilon_patient_most"] for one in mine),
                "accuracy_mean": round(mean, 4),
                "accuracy_standard_deviation": round(statistics.pstdev(found), 4),
                "seeds": len(mine),
                "floor": row.floor,
                "goal": row.goal,
                "reached": _reached(100 * mean, row),
            }
        )
    return made


def _reached(percent: float, row: Row) -> str:
    if row.goal is not None and percent >= row.goal:
        return "goal"
    return "floor" if row.floor is not None and percent >= row.floor else "none"


def main(
    kind: Annotated[str, typer.Argument(help="cancer or cifar.")],
    path: Annotated[Path | None, typer.Option("--data", help="CIFAR-10's features.")] = None,
    seeds: Seeds = 5,
    only: Annotated[list[str] | None, typer.Option(help="Rows, by name; repeatable.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Of the plan, as rounds=40; repeatable.")
    ] = None,
    evaluate_on: EvaluateOn = "test",
    output: Annotated[Path, typer.Option(help="Results file, kept up to date.")] = HERE
    / "results"
    / "hospitals.json",
) -> None:
    """Train each row with each seed, and write means and spreads."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if kind not in ROWS or (kind == "cifar" and path is None):
        raise typer.BadParameter("name cancer, or cifar with --data and its file of features")
    pairs = (item.split("=", 1) for item in changes or [])
    change: dict[str, Any] = {name: json.loads(value) for name, value in pairs}
    runs = earlier(output)
    command = [kind, *([] if path is None else ["--data", path.name]), "--evaluate-on", evaluate_on]
    for seed in range(1, seeds + 1):
        for row in ROWS[kind]:
            plan = at(row.plan, change)
            one: Run = {
                "row": row.name,
                "seed": seed,
                "evaluated_on": evaluate_on,
                "plan": asdict(plan),
            }
            if (only and row.name not in only) or is_known(one, runs):
                continue
            began = time.process_time()
            sites = cancer(evaluate_on, seed) if path is None else cifar(path, evaluate_on, seed)
            one |= run(sites, plan)
            one["processor_seconds"] = round(time.process_time() - began, 1)
            one["command"] = " ".join(["python", "benchmarks/hospitals.py", *command])
            runs.append(one)
            said = f"{row.name:<12} seed {seed}: {one['accuracy']:.4f}"
            print(f"{said}, {one['processor_seconds']} s", flush=True)
            body = {"summary": summary(runs, evaluate_on), "runs": runs}
            write_report(output, "benchmarks/hospitals.py", command, body)
    for line in summary(runs, evaluate_on):
        mean, spread = (100 * line[f"accuracy_{of}"] for of in ("mean", "standard_deviation"))
        goals = f"{line['reached']} ({line['floor']}, {line['goal']})"
        print(f"{line['row']:<12} {mean:.1f} ± {spread:.1f} %, {goals}")


if __name__ == "__main__":
    typer.run(main)
