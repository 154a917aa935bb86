"""Accuracy of five hospitals that train together, at a patient's epsilon of 1, 2 and 4.

Each site trains by DP-SGD through the gate; the plan and its epsilon are charged to the site's own
ledger, and the server runs Flower's FedAvg (``_sites.py``). Neighbours differ in one patient's
content, delta is 1e-5, and the clipping length 1. Noise and sampling are the operating system's;
the seed is that of the split among sites.

``cancer``  scikit-learn's, 91 patients a site in full batches, and the example's layer with a
            learned centre (``examples/hospitals``): the price of scaling is in the epsilon
``cifar``   CIFAR-10 through a public trunk (a file), 10,000 rows a site, a linear layer
``mnist``   MNIST along axes of random strokes (``_strokes.py``), 12,000 rows a site, a linear layer
``cnn``     the same images, a network of two convolutions

``--alpha 0.5`` gives sites of images classes by a Dirichlet law, and as many rows each.

No scaling is fitted. Settings were chosen on a tenth of the training rows, by noisy steps in numpy
alone; ``--evaluate-on validation`` does the same through the gate. For ``cancer`` that were 200
splits of the training patients: columns, stretch and step size. (Which functions of a column were
tried was seen on splits of all its patients before. For ``cnn`` three
learning rates were tried, at an epsilon of 1 with one seed.) A run
is written when it ends, and runs that are there are not repeated.

    python benchmarks/hospitals.py cancer
    python benchmarks/hospitals.py cifar --data cifar10-features.npz
    python benchmarks/hospitals.py mnist --data mnist.npz --cache mnist-strokes.npz
    python benchmarks/hospitals.py cnn --data mnist.npz --alpha 0.5
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from _environment import write_report
from _hospital_images import sites_of
from _runs import Changes, EvaluateOn, Run, Seeds, changed, earlier, is_known, reached, spread, told
from _sites import Plan, Sites, run

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
        Row("cancer, 1", Plan(1.0, 20, 1, 1.0, 0.35), 78, 88),
        Row("cancer, 2", Plan(2.0, 20, 1, 1.0, 0.5)),
        Row("cancer, 4", Plan(4.0, 20, 1, 1.0, 1.0), None, 93),
    ],
    "cifar": [
        Row("cifar, 1", Plan(1.0, 20, 5, 0.05, 8.0), 66.5, 68),
        Row("cifar, 2", Plan(2.0, 20, 5, 0.05, 16.0), 67.8),
        Row("cifar, 4", Plan(4.0, 20, 5, 0.05, 16.0), 68.2),
    ],
    "mnist": [
        Row("mnist, 1", Plan(1.0, 20, 5, 0.05, 8.0), 94.7, 97),
        Row("mnist, 2", Plan(2.0, 20, 5, 0.05, 16.0), 95),
        Row("mnist, 4", Plan(4.0, 20, 5, 0.05, 24.0), 95),
    ],
    "cnn": [
        Row("cnn, 1", Plan(1.0, 20, 5, 0.05, 2.0)),
        Row("cnn, 2", Plan(2.0, 20, 5, 0.05, 2.0)),
        Row("cnn, 4", Plan(4.0, 20, 5, 0.05, 2.0)),
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


def summary(runs: list[Run], evaluate_on: str) -> list[dict[str, Any]]:
    """Return mean and spread of each row's runs, by how its sites were made."""
    made = []
    for row in (one for rows in ROWS.values() for one in rows):
        names = {one["row"]: None for one in runs if one["row"].split(", D")[0] == row.name}
        for name in names:
            wanted = (name, evaluate_on, asdict(row.plan))
            mine = [one for one in runs if (one["row"], one["evaluated_on"], one["plan"]) == wanted]
            if mine:
                made.append(_summed(row, name, mine))
    return made


def _summed(row: Row, name: str, mine: list[Run]) -> dict[str, Any]:
    accuracy = spread(mine)
    return {
        "row": name,
        "epsilon_patient": max(one["epsilon_patient_most"] for one in mine),
        **accuracy,
        **reached(accuracy["accuracy_mean"], row.floor, row.goal),
    }


def source(
    kind: str, path: Path | None, cache: Path | None, evaluate_on: str, alpha: float | None = None
) -> tuple[Callable[[int], Sites], list[str]]:
    """Return what makes a seed's sites, and the words of the command that a result depends on.

    Raises
    ------
    typer.BadParameter
        If a file is missing, or not for this kind.
    """
    if kind not in ROWS or (kind == "cancer") != (path is None):
        raise typer.BadParameter(f"name cancer, or one of {', '.join(ROWS)} with --data")
    if (kind == "mnist") != (cache is not None):
        raise typer.BadParameter("--cache is for mnist, which needs it")
    words = [kind, *([] if path is None else ["--data", path.name]), "--evaluate-on", evaluate_on]
    words += [] if cache is None else ["--cache", cache.name]
    if path is None:
        return lambda seed: cancer(evaluate_on, seed), words
    return lambda seed: sites_of(kind, path, evaluate_on, seed, alpha, cache), words


def main(
    kind: Annotated[str, typer.Argument(help=f"{', '.join(ROWS)}.")],
    path: Annotated[Path | None, typer.Option("--data", help="An npz file of images.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Classes of a site by a Dirichlet law; else at random.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Where features of mnist are kept.")] = None,
    seeds: Seeds = 5,
    only: Annotated[list[str] | None, typer.Option(help="Rows, by name; repeatable.")] = None,
    changes: Changes = None,
    evaluate_on: EvaluateOn = "test",
    output: Annotated[Path, typer.Option(help="Results file, kept up to date.")] = HERE
    / "results"
    / "hospitals.json",
) -> None:
    """Train each row with each seed, and write means and spreads."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if alpha is not None and path is None:
        raise typer.BadParameter("--alpha is for images")
    sites, command = source(kind, path, cache, evaluate_on, alpha)
    runs = earlier(output)
    command += [] if alpha is None else ["--alpha", f"{alpha:g}"]
    suffix = "" if alpha is None else f", Dirichlet({alpha:g})"
    for seed in range(1, seeds + 1):
        for row in ROWS[kind]:
            plan = changed(row.plan, changes)
            one: Run = {
                "row": row.name + suffix,
                "seed": seed,
                "evaluated_on": evaluate_on,
                "plan": asdict(plan),
            }
            if (only and row.name not in only) or is_known(one, runs):
                continue
            began = time.process_time()
            one |= run(sites(seed), plan)
            one["processor_seconds"] = round(time.process_time() - began, 1)
            one["command"] = " ".join(["python", "benchmarks/hospitals.py", *command])
            runs.append(one)
            said = f"{one['row']:<12} seed {seed}: {one['accuracy']:.4f}"
            print(f"{said}, {one['processor_seconds']} s", flush=True)
            body = {"summary": summary(runs, evaluate_on), "runs": runs}
            write_report(output, "benchmarks/hospitals.py", command, body)
    for line in summary(runs, evaluate_on):
        print(told(line))


if __name__ == "__main__":
    typer.run(main)
