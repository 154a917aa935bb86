"""Accuracy of SignDS training on MNIST, through Flower's simulation engine.

Runs ``examples/signds`` with 100 clients, all taking part in every round, for several
seeds of the split and the initial weights (the noise takes no seed). The settings were
chosen in trials outside of Flower, one to three runs a setting, on a fixed tenth of the
training images that the clients then did not have; the test images are read for the reported
figures only. ``--evaluate-on validation`` evaluates this app on such a tenth.

    python benchmarks/mnist.py /path/to/mnist.npz
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import _options as options
import typer
from _environment import command
from _examples import EXAMPLES

CONFIGS = Path(__file__).resolve().parent / "configs"
RUN = EXAMPLES / "signds" / "run.py"
CLIENTS = 100
EVALUATE_EVERY = 5


@dataclass(frozen=True)
class Scenario:
    """One claim: settings of the app, and the accuracy to reach."""

    rounds: int
    goal: float
    signds_config: str
    settings: dict[str, Any] = field(default_factory=dict)


LENET = {"model": "lenet5", "batch-size": 16, "local-steps": 10, "learning-rate": 0.1}
SCENARIOS = {
    "lenet-iid-epsilon-100": Scenario(
        75, 0.95, "lenet-epsilon-100.yaml", {**LENET, "final-learning-rate": 0.02}
    ),
    "lenet-dirichlet-epsilon-100": Scenario(
        100,
        0.95,
        "lenet-epsilon-100.yaml",
        {**LENET, "final-learning-rate": 0.02, "partition": "dirichlet", "dirichlet-alpha": 0.5},
    ),
    "cnn-iid-epsilon-8": Scenario(
        80,
        0.92,
        "cnn-epsilon-8.yaml",
        {**LENET, "model": "small-cnn", "local-steps": 15, "final-learning-rate": 0.1},
    ),
}


def run_once(scenario: Scenario, data: Path, seed: int, evaluate_on: str) -> dict[str, Any]:
    """Run the app once; return its history."""
    settings = {
        **scenario.settings,
        "evaluate-every": EVALUATE_EVERY,
        "seed": seed,
        "evaluate-on": evaluate_on,
        "signds-config": str(CONFIGS / scenario.signds_config),
    }
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, str(RUN), "--clients", str(CLIENTS), "--no-baseline"]
        words += ["--rounds", str(scenario.rounds), "--data", str(data), "--output", folder]
        words += ["--engine", "simulation"]
        for name, value in settings.items():
            words += ["--set", f"{name}={json.dumps(value)}"]
        subprocess.run(words, check=True)
        history: dict[str, Any] = json.loads((Path(folder) / "signds-history.json").read_text())
    return history


def curve(history: dict[str, Any]) -> list[tuple[int, float]]:
    """Return round and accuracy wherever the model was evaluated."""
    rows = (row for row in history["rounds"] if "accuracy" in row)
    return [(row["round"], round(row["accuracy"], 4)) for row in rows]


def summary(histories: list[dict[str, Any]], goal: float) -> dict[str, Any]:
    """Return mean and spread of the last round's accuracy, cost and size over seeds."""
    finals = [history["rounds"][-1] for history in histories]
    accuracy = [row["accuracy"] for row in finals]
    return {
        "accuracy_mean": statistics.mean(accuracy),
        "accuracy_standard_deviation": statistics.stdev(accuracy) if len(accuracy) > 1 else None,
        "accuracy_by_seed": accuracy,
        "lowest_of_last_three_evaluations": min(
            value for history in histories for _, value in curve(history)[-3:]
        ),
        "goal": goal,
        "reached": statistics.mean(accuracy) >= goal,
        "rounds": finals[0]["round"],
        "bytes_up_per_client_and_round": max(
            row["bytes-up"] for history in histories for row in history["rounds"][1:]
        ),
        "epsilon_per_round": finals[0]["epsilon-round"],
        "epsilon_total": finals[0]["epsilon-total"],
        "rejected_reports": sum(
            row["rejected"] for history in histories for row in history["rounds"][1:]
        ),
    }


def main(
    data: options.Mnist,
    seeds: options.Seeds = 3,
    scenario: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(SCENARIOS)}; repeatable.")
    ] = None,
    evaluate_on: options.EvaluateOn = "test",
    output: options.Output = options.RESULTS / "mnist.json",
) -> None:
    """Measure accuracy on MNIST for every scenario and seed; write a results file."""
    results: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {}
    for name in scenario or SCENARIOS:
        spec = SCENARIOS[name]
        histories, started = [], time.time()
        for seed in range(1, seeds + 1):
            print(f"== {name}, seed {seed}", flush=True)
            histories.append(run_once(spec, data.resolve(), seed, evaluate_on))
        results[name] = {
            "command": command(),
            "evaluated_on": evaluate_on,
            "date": time.strftime("%Y-%m-%d"),
            "machine": f"{platform.machine()}, Python {platform.python_version()}",
            "seconds_per_run": round((time.time() - started) / seeds, 1),
            "clients": CLIENTS,
            "settings": spec.settings,
            "signds_config": (CONFIGS / spec.signds_config).read_text(),
            **summary(histories, spec.goal),
            "round_and_accuracy_by_seed": [curve(history) for history in histories],
        }
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{name}: {results[name]['accuracy_mean']:.4f}", flush=True)


if __name__ == "__main__":
    typer.run(main)
