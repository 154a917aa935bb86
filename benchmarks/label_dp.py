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
import platform
import statistics
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from _environment import cpu_model
from _label_methods import METHODS as CENTRAL
from _label_methods import Examples, Near, Settings, Task, outputs
from _label_neighbours import METHODS as NEIGHBOURS
from _runs import (
    Changes,
    EvaluateOn,
    Mnist,
    Output,
    Run,
    Seeds,
    arguments,
    changed,
    earlier,
    is_known,
)
from _strokes import coordinates, features
from numpy.typing import NDArray
from torch import Tensor

HERE = Path(__file__).resolve().parent
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
    with np.load(path, allow_pickle=False) as arrays:
        x, y = arrays["x_train"], arrays["y_train"].astype(np.int64)
        x_test, y_test = arrays["x_test"], arrays["y_test"].astype(np.int64)
    places = _coordinates(x, x_test, cache, near or Near())
    if evaluate_on == "validation":
        order = np.random.default_rng(0).permutation(len(x))
        held, kept = order[: len(x) // 10], order[len(x) // 10 :]
        x, y, x_test, y_test = x[kept], y[kept], x[held], y[held]
        places = places if places is None else places[kept]
    return Examples(_inputs(x), y, places), Examples(_inputs(x_test), y_test)


def _coordinates(
    x: NDArray[Any], x_test: NDArray[Any], cache: Path | None, near: Near
) -> NDArray[np.float32] | None:
    """Return where distances between training images are taken; no label is read."""
    if x.ndim == 2:
        return x.astype(np.float32)
    if cache is None:
        return None
    along = coordinates({"train": x, "test": x_test}, cache)
    return features(along["train"], along["variances"], near.axes, near.axes_power)


def _inputs(raw: NDArray[Any]) -> Tensor:
    numbers = torch.tensor(raw.astype(np.float32))
    return numbers if raw.ndim == 2 else (numbers[:, None] / 255 - MEAN) / DEVIATION


def key(run: Run) -> tuple[Any, ...]:
    return (
        run["method"],
        run["epsilon"],
        run["seed"],
        run["evaluated_on"],
        json.dumps(run["settings"], sort_keys=True),
    )


def summary(runs: list[Run], goals: Goals) -> list[Run]:
    """Return mean and spread over seeds, for each method, epsilon, settings and part of data."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        name, epsilon, _, part, settings = key(run)
        groups.setdefault((part, epsilon or 0.0, name, settings), []).append(run)
    rows = []
    for (part, epsilon, name, settings), group in sorted(groups.items()):
        found = [run["accuracy"] for run in group]
        goal = goals.get((name, epsilon)) if part == "test" else None
        rows.append(
            {
                "method": name,
                "epsilon": epsilon or None,
                "evaluated_on": part,
                "settings": settings,
                "seeds": len(found),
                "accuracy_mean": round(statistics.mean(found), 4),
                "accuracy_standard_deviation": (
                    round(statistics.stdev(found), 4) if len(found) > 1 else None
                ),
                "goal": goal and goal / 100,
            }
        )
    return rows


def write(path: Path, runs: list[Run], goals: Goals) -> None:
    body = {
        "machine": f"{cpu_model()}, one thread",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "summary": summary(runs, goals),
        "runs": runs,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1) + "\n")


def main(
    data: Mnist,
    epsilon: Annotated[list[float] | None, typer.Option(help="Repeatable; 1, 0.5, 2, 4.")] = None,
    seeds: Seeds = 3,
    method: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(METHODS)}; repeatable.")
    ] = None,
    evaluate_on: EvaluateOn = "test",
    set_: Changes = None,
    cache: Annotated[Path | None, typer.Option(help="Where features of digits are kept.")] = None,
    output: Output = HERE / "results" / "label_dp.json",
) -> None:
    """Measure accuracy for each seed, epsilon and method; write a results file."""
    torch.set_num_threads(1)
    names = {one.name for one in fields(Near)}
    of_near = [item for item in set_ or [] if item.split("=")[0] in names]
    near = changed(Near(), of_near)
    settings = changed(Settings(), [item for item in set_ or [] if item not in of_near])
    examples, held = load(data, evaluate_on, cache, near)
    goals = GOALS if examples.images.ndim == 4 else {}
    runs = earlier(output)
    wanted = [
        (name, None if name == "no_privacy" else value, seed)
        for value in epsilon or [1.0, 0.5, 2.0, 4.0]
        for seed in range(1, seeds + 1)
        for name in method or METHODS
    ]
    for name, value, seed in dict.fromkeys(wanted):
        run: Run = {
            "method": name,
            "epsilon": value,
            "seed": seed,
            "evaluated_on": evaluate_on,
            "settings": asdict(settings) | (asdict(near) if name in NEIGHBOURS else {}),
        }
        if is_known(run, runs):
            continue
        began, used = time.time(), time.process_time()
        model = METHODS[name](Task(examples, value or 0.0, seed, settings, near))
        right = outputs(model, held.images).argmax(axis=1) == held.labels
        run["accuracy"] = round(float(right.mean()), 4)
        run["seconds"] = round(time.time() - began, 1)
        run["processor_seconds"] = round(time.process_time() - used, 1)
        words = arguments(evaluate_on, set_, data.name)
        if name in NEIGHBOURS and cache is not None:
            words.append(f"--cache {cache.name}")
        run["command"] = " ".join(["python benchmarks/label_dp.py", *words])
        runs.append(run)
        write(output, runs, goals)
        print(f"{name:22} epsilon {value} seed {seed}: {run['accuracy']:.4f}", flush=True)


if __name__ == "__main__":
    typer.run(main)
