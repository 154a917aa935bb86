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

import itertools
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import _examples  # noqa: F401
import _options as options
import torch
import typer
from _hospital_images import sites_of
from _runs import Run, Runs, groups, like, reached, spread
from _sites import Plan, Sites, run
from hospitals_example import centred, data


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


def summary(runs: list[Run], evaluate_on: str) -> list[Run]:
    """Return mean and spread of each row's runs, by how its sites were made."""
    made = []
    for row in (one for rows in ROWS.values() for one in rows):
        found = like(runs, evaluated_on=evaluate_on, plan=asdict(row.plan))
        mine = [one for one in found if one["row"].split(", D")[0] == row.name]
        for same in groups(mine, lambda one: one["row"]):
            accuracy = spread(same)
            epsilon = max(one["epsilon_patient_most"] for one in same)
            goals = reached(accuracy["accuracy_mean"], row.floor, row.goal)
            made.append({"row": same[0]["row"], "epsilon_patient": epsilon, **accuracy, **goals})
    return made


def source(
    kind: str, path: Path | None, cache: Path | None, evaluate_on: str, alpha: float | None = None
) -> Callable[[int], Sites]:
    """Return what makes a seed's sites.

    Raises
    ------
    typer.BadParameter
        If a file is missing, or not for this kind.
    """
    if kind not in ROWS or (kind == "cancer") != (path is None):
        raise typer.BadParameter(f"name cancer, or one of {', '.join(ROWS)} with --data")
    if (kind == "mnist") != (cache is not None):
        raise typer.BadParameter("--cache is for mnist, which needs it")
    if path is not None:
        return lambda seed: sites_of(kind, path, evaluate_on, seed, alpha, cache)
    if alpha is not None:
        raise typer.BadParameter("--alpha is for images")
    return lambda seed: cancer(evaluate_on, seed)


def train(sites: Callable[[int], Sites], seed: int, plan: Plan) -> Run:
    """Make a seed's sites, and train them."""
    return run(sites(seed), plan)


def main(
    kind: Annotated[str, typer.Argument(help=f"{', '.join(ROWS)}.")],
    path: Annotated[Path | None, typer.Option("--data", help="An npz file of images.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Classes of a site by a Dirichlet law; else at random.")
    ] = None,
    cache: options.Cache = None,
    seeds: options.Seeds = 5,
    only: options.Only = None,
    changes: options.Changes = None,
    evaluate_on: options.EvaluateOn = "test",
    output: options.Output = options.RESULTS / "hospitals.json",
) -> None:
    """Train each row with each seed, and write means and spreads."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    sites = source(kind, path, cache, evaluate_on, alpha)
    runs = Runs(output, lambda made: summary(made, evaluate_on))
    suffix = "" if alpha is None else f", Dirichlet({alpha:g})"
    rows = [row for row in ROWS[kind] if not only or row.name in only]
    for seed, row in itertools.product(range(1, seeds + 1), rows):
        plan = options.changed(row.plan, changes)
        one: Run = {"row": row.name + suffix, "seed": seed, "evaluated_on": evaluate_on}
        runs.make({**one, "plan": asdict(plan)}, partial(train, sites, seed, plan))
    runs.show()


if __name__ == "__main__":
    typer.run(main)
