"""Accuracy of the ways to train on private labels, by epsilon per label.

On MNIST, or on features of CIFAR-10's images through a public trunk (a file): then a network of one
hidden layer is trained over them. Methods whose name begins with ``neighbours`` take, on MNIST,
distances along axes of strokes, which are kept in ``--cache``.

All in one process, without Flower: labels are randomized by the package's mechanisms and the
model is trained centrally. A run is appended to the results file when it ends, and runs that
are there are not repeated, so an interrupted grid goes on where it stopped. Noise and
weights are seeded, for this comparison only.

Settings were chosen with ``--evaluate-on validation`` (a fixed tenth of the training images,
which is then not trained on); the test images are read for the reported figures only.

    python benchmarks/label_dp.py mnist.npz --cache mnist-strokes.npz
    python benchmarks/label_dp.py cifar10-features.npz --output benchmarks/results/label_cifar.json
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import _options as options
import numpy as np
import torch
import typer
from _images import Split, read
from _label_methods import METHODS as CENTRAL
from _label_methods import Examples, Near, Settings, Task
from _label_neighbours import METHODS as NEIGHBOURS
from _networks import outputs
from _runs import Run, Runs, groups, spread
from _strokes import coordinates, features
from numpy.typing import NDArray
from torch import Tensor, nn

METHODS = CENTRAL | NEIGHBOURS
Goals = dict[tuple[str, float], float]
#: What methods should reach on MNIST's test images, in percent, by epsilon.
GOALS: Goals = {
    ("forward", 1.0): 94.5,
    ("local_priors", 1.0): 96.0,
    ("lp_2st", 1.0): 96.0,
    **{
        (name, epsilon): goal
        for name in ("lp_2st_subset", *NEIGHBOURS)
        for epsilon, goal in ((0.5, 95.5), (1.0, 97.6))
    },
}
MEAN, DEVIATION = 0.1307, 0.3081


def load(
    path: Path, evaluate_on: str, cache: Path | None = None, near: Near | None = None
) -> tuple[Examples, Examples]:
    """Return what to train on and what to evaluate on.

    Digits have coordinates along axes of strokes if there is a cache for them.
    """
    raw = read(path)
    split = raw.evaluated_on(evaluate_on)
    places = _coordinates(raw, cache, near or Near())
    if places is not None:
        places = raw.each(places, None).evaluated_on(evaluate_on).x
    return Examples(_inputs(split.x), split.y, places), Examples(
        _inputs(split.held_x), split.held_y
    )


def _coordinates(raw: Split, cache: Path | None, near: Near) -> NDArray[np.float32] | None:
    """Return where distances between training images are taken; no label is read."""
    if raw.x.ndim == 2:
        return np.asarray(raw.x, dtype=np.float32)
    if cache is None:
        return None
    along = coordinates({"train": raw.x, "test": raw.held_x}, cache)
    return features(along["train"], along["variances"], near.axes, near.axes_power)


def _inputs(raw: NDArray[Any]) -> Tensor:
    numbers = torch.tensor(raw.astype(np.float32))
    return numbers if raw.ndim == 2 else (numbers[:, None] / 255 - MEAN) / DEVIATION


def key(run: Run) -> list[Any]:
    """Return what runs have in common that differ in their seed alone."""
    settings = json.dumps(run["settings"], sort_keys=True)
    return [run["evaluated_on"], run["epsilon"] or 0.0, run["method"], settings]


def summary(runs: list[Run], goals: Goals) -> list[Run]:
    """Return mean and spread over seeds, for each method, epsilon, settings and part of data."""
    rows = []
    for group in groups(sorted(runs, key=key), key):
        part, epsilon, name, settings = key(group[0])
        goal = goals.get((name, epsilon)) if part == "test" else None
        row = {"method": name, "epsilon": epsilon or None, "evaluated_on": part}
        goal = goal and goal / 100
        rows.append({**row, "settings": settings, **spread(group, sample=True), "goal": goal})
    return rows


def evaluated(model: nn.Module, held: Examples) -> Run:
    """Return the accuracy of a model."""
    right = outputs(model, held.images).argmax(dim=1).numpy() == held.labels
    return {"accuracy": round(float(right.mean()), 4)}


def measured(name: str, task: Task, held: Examples) -> Run:
    """Train by a method."""
    return evaluated(METHODS[name](task), held)


def main(
    data: options.Mnist,
    epsilon: Annotated[list[float] | None, typer.Option(help="Repeatable; 1, 0.5, 2, 4.")] = None,
    seeds: options.Seeds = 3,
    method: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(METHODS)}; repeatable.")
    ] = None,
    evaluate_on: options.EvaluateOn = "test",
    set_: options.Changes = None,
    cache: options.Cache = None,
    output: options.Output = options.RESULTS / "label_dp.json",
) -> None:
    """Measure accuracy for each seed, epsilon and method; write a results file."""
    torch.set_num_threads(1)
    names = {one.name for one in fields(Near)}
    of_near = [item for item in set_ or [] if item.split("=")[0] in names]
    near = options.changed(Near(), of_near)
    settings = options.changed(Settings(), [item for item in set_ or [] if item not in of_near])
    examples, held = load(data, evaluate_on, cache, near)
    goals = GOALS if examples.images.ndim == 4 else {}
    runs = Runs(output, lambda made: summary(made, goals), torch=torch.__version__)
    wanted = [
        (name, None if name == "no_privacy" else value, seed)
        for value in epsilon or [1.0, 0.5, 2.0, 4.0]
        for seed in range(1, seeds + 1)
        for name in method or METHODS
    ]
    for name, value, seed in dict.fromkeys(wanted):
        of_method = asdict(settings) | (asdict(near) if name in NEIGHBOURS else {})
        one: Run = {"method": name, "epsilon": value, "seed": seed}
        one |= {"evaluated_on": evaluate_on, "settings": of_method}
        task = Task(examples, value or 0.0, seed, settings, near)
        runs.make(one, partial(measured, name, task, held))
    runs.show()


if __name__ == "__main__":
    typer.run(main)
