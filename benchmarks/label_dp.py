"""Accuracy on MNIST of the ways to train on private labels, by epsilon per label.

All in one process, without Flower: labels are randomized by the package's mechanisms and the
model is trained centrally. A run is appended to the results file when it ends, and runs that
are there are not repeated, so an interrupted grid goes on where it stopped. Noise and
weights are seeded, for this comparison only.

Settings were chosen with ``--evaluate-on validation`` (a fixed tenth of the training images,
which is then not trained on); the test images are read for the reported figures only.

    python benchmarks/label_dp.py mnist.npz
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from _environment import cpu_model
from _label_methods import METHODS, Examples, Settings, Task, outputs
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
from numpy.typing import NDArray
from torch import Tensor

HERE = Path(__file__).resolve().parent
#: What each method should reach at epsilon 1, in percent.
GOALS = {"forward": 94.5, "local_priors": 96.0, "lp_2st": 96.0, "lp_2st_subset": 97.6}
MEAN, DEVIATION = 0.1307, 0.3081


def load(path: Path, evaluate_on: str) -> tuple[Examples, Examples]:
    """Return what to train on and what to evaluate on."""
    with np.load(path, allow_pickle=False) as arrays:
        x, y = arrays["x_train"], arrays["y_train"].astype(np.int64)
        x_test, y_test = arrays["x_test"], arrays["y_test"].astype(np.int64)
    if evaluate_on == "validation":
        order = np.random.default_rng(0).permutation(len(x))
        held, kept = order[: len(x) // 10], order[len(x) // 10 :]
        x, y, x_test, y_test = x[kept], y[kept], x[held], y[held]

    def images(raw: NDArray[np.uint8]) -> Tensor:
        scaled = (torch.tensor(raw, dtype=torch.float32) / 255 - MEAN) / DEVIATION
        return scaled[:, None]

    return Examples(images(x), y), Examples(images(x_test), y_test)


def key(run: Run) -> tuple[Any, ...]:
    return (
        run["method"],
        run["epsilon"],
        run["seed"],
        run["evaluated_on"],
        json.dumps(run["settings"], sort_keys=True),
    )


def summary(runs: list[Run]) -> list[Run]:
    """Return mean and spread over seeds, for each method, epsilon, settings and part of data."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        name, epsilon, _, part, settings = key(run)
        groups.setdefault((part, epsilon or 0.0, name, settings), []).append(run)
    rows = []
    for (part, epsilon, name, settings), group in sorted(groups.items()):
        found = [run["accuracy"] for run in group]
        goal = GOALS.get(name) if epsilon == 1.0 else None
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


def write(path: Path, runs: list[Run]) -> None:
    body = {
        "machine": f"{cpu_model()}, one thread",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "summary": summary(runs),
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
    output: Output = HERE / "results" / "label_dp.json",
) -> None:
    """Measure accuracy for each seed, epsilon and method; write a results file."""
    torch.set_num_threads(1)
    settings = changed(Settings(), set_)
    examples, held = load(data, evaluate_on)
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
            "settings": asdict(settings),
        }
        if is_known(run, runs):
            continue
        began, used = time.time(), time.process_time()
        model = METHODS[name](Task(examples, value or 0.0, seed, settings))
        right = outputs(model, held.images).argmax(axis=1) == held.labels
        run["accuracy"] = round(float(right.mean()), 4)
        run["seconds"] = round(time.time() - began, 1)
        run["processor_seconds"] = round(time.process_time() - used, 1)
        words = arguments(evaluate_on, set_)
        run["command"] = " ".join(["python benchmarks/label_dp.py", *words])
        runs.append(run)
        write(output, runs)
        print(f"{name:22} epsilon {value} seed {seed}: {run['accuracy']:.4f}", flush=True)


if __name__ == "__main__":
    typer.run(main)
