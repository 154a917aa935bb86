"""DP-SGD on MNIST: accuracy at a stated (epsilon, delta) for one example replaced.

    python benchmarks/dpsgd.py mnist.npz

The network is the tanh CNN that DP-SGD is usually tried on (26,010 weights; Papernot et al.
2021). Batch and epochs are those of the published experiment. Rate and clipping length were
chosen with ``--evaluate-on validation`` (a fixed tenth of the training images, which is then
not trained on); the test images are read for the reported figures only. A run is written when
it ends, and runs that are there are not repeated.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from _environment import write_report
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
from flwr.app import Context, RecordDict
from label_dp import HERE, load
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flower_ldp.training import make_private

POLICY = """
data_id: mnist
ledger: ledger.sqlite
mode: simulation
messages:
  train:
    dpsgd: {{epsilon: {epsilon}, delta: {delta}, unit: example}}
budgets:
  example:
    life: {{epsilon: {epsilon}, delta: {delta}}}
"""


@dataclass(frozen=True)
class Settings:
    """Of training; the same for all epsilons."""

    delta: float = 1e-5
    batch_size: int = 250
    epochs: int = 3
    max_grad_norm: float = 0.1
    learning_rate: float = 0.5
    momentum: float = 0.9


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def train(
    data: TensorDataset, held: TensorDataset, epsilon: float, settings: Settings, seed: int
) -> dict[str, Any]:
    """Train once, charged to a ledger of its own, and return accuracy and noise."""
    torch.manual_seed(seed)  # the first weights; noise and sampling have no seed
    model = network()
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.yaml"
        policy.write_text(POLICY.format(epsilon=epsilon, delta=f"{settings.delta:.1e}"))
        context = Context(
            run_id=seed,
            node_id=0,
            node_config={"ldp-policy": str(policy), "partition-id": 0},
            state=RecordDict(),
            run_config={},
        )
        training = make_private(
            model,
            torch.optim.SGD(
                model.parameters(), lr=settings.learning_rate, momentum=settings.momentum
            ),
            DataLoader(data, batch_size=settings.batch_size),
            context=context,
            epsilon=epsilon,
            delta=settings.delta,
            epochs=settings.epochs,
            max_grad_norm=settings.max_grad_norm,
        )
        for _ in range(settings.epochs):
            for images, labels in training.loader:
                training.optimizer.zero_grad()
                nn.functional.cross_entropy(training.model(images), labels).backward()
                training.optimizer.step()
    return {
        "accuracy": accuracy(model, held),
        "noise-multiplier": round(training.plan.noise_multiplier, 4),
        "steps": training.plan.steps,
    }


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    images, labels = data.tensors
    with torch.no_grad():
        return round(float((model(images).argmax(1) == labels).float().mean()), 4)


def summary(runs: list[Run]) -> list[Run]:
    """Return mean and spread over seeds, for each epsilon, settings and part of the data."""
    groups: dict[tuple[str, float, str], list[Run]] = {}
    for run in runs:
        settings = json.dumps(run["settings"], sort_keys=True)
        groups.setdefault((run["evaluated-on"], run["epsilon"], settings), []).append(run)
    rows = []
    for (part, epsilon, settings), group in sorted(groups.items()):
        found = [run["accuracy"] for run in group]
        rows.append(
            {
                "epsilon": epsilon,
                "evaluated-on": part,
                "settings": settings,
                "noise-multiplier": group[0]["noise-multiplier"],
                "seeds": len(found),
                "mean": round(statistics.mean(found), 4),
                "deviation": round(statistics.stdev(found), 4) if len(found) > 1 else None,
            }
        )
    return rows


def main(
    mnist: Mnist,
    epsilon: Annotated[list[float] | None, typer.Option(help="Repeatable; 1, 0.5, 2, 4.")] = None,
    seeds: Seeds = 3,
    evaluate_on: EvaluateOn = "test",
    set_: Changes = None,
    output: Output = HERE / "results" / "dpsgd.json",
) -> None:
    """Train for each epsilon and seed; write a results file."""
    torch.set_num_threads(1)
    settings, words = changed(Settings(), set_), arguments(evaluate_on, set_)
    data, held = (
        TensorDataset(part.images, torch.tensor(part.labels)) for part in load(mnist, evaluate_on)
    )
    runs = earlier(output)
    for value in epsilon or [1.0, 0.5, 2.0, 4.0]:
        for seed in range(1, seeds + 1):
            run: Run = {
                "epsilon": value,
                "seed": seed,
                "evaluated-on": evaluate_on,
                "settings": asdict(settings),
            }
            if is_known(run, runs):
                continue
            began = time.process_time()
            run |= train(data, held, value, settings, seed)
            run["processor-seconds"] = round(time.process_time() - began, 1)
            run["command"] = " ".join(["python", "benchmarks/dpsgd.py", *words])
            runs.append(run)
            print(f"epsilon {value} seed {seed}: {run['accuracy']:.4f}", flush=True)
            body = {"torch": torch.__version__, "summary": summary(runs), "runs": runs}
            write_report(output, "benchmarks/dpsgd.py", words, body)


if __name__ == "__main__":
    typer.run(main)
