"""DP-SGD on MNIST: accuracy at a stated (epsilon, delta) for one example replaced.

    python benchmarks/dpsgd.py --data mnist.npz --output benchmarks/results/dpsgd.json

The network is the tanh CNN that DP-SGD is usually tried on (26,010 weights; Papernot et al.
2021). Rate, momentum and clipping length are the defaults below and were not searched for.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from _environment import write_report
from flwr.app import Context, RecordDict
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


def load(path: Path) -> tuple[TensorDataset, TensorDataset]:
    """Return training and test images, with the mean and deviation that MNIST is known for."""
    with np.load(path) as data:

        def part(name: str) -> TensorDataset:
            images = torch.tensor(data[f"x_{name}"]).float().div(255).sub(0.1307).div(0.3081)
            return TensorDataset(images.unsqueeze(1), torch.tensor(data[f"y_{name}"]).long())

        return part("train"), part("test")


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


def train(options: argparse.Namespace, seed: int, folder: Path) -> dict[str, float]:
    """Train once, charged to a ledger of its own, and return accuracy and noise."""
    train_data, test_data = load(options.data)
    torch.manual_seed(seed)  # the first weights; noise and sampling have no seed
    model = network()
    policy = folder / f"policy-{seed}.yaml"
    text = POLICY.format(epsilon=float(options.epsilon), delta=f"{options.delta:.1e}")
    policy.write_text(text.replace("ledger.sqlite", f"ledger-{seed}.sqlite"))
    context = Context(
        run_id=seed,
        node_id=0,
        node_config={"ldp-policy": str(policy), "partition-id": 0},
        state=RecordDict(),
        run_config={},
    )
    training = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=options.rate, momentum=options.momentum),
        DataLoader(train_data, batch_size=options.batch),
        context=context,
        epsilon=options.epsilon,
        delta=options.delta,
        epochs=options.epochs,
        max_grad_norm=options.clip,
    )
    start = time.perf_counter()
    for epoch in range(options.epochs):
        for images, labels in training.loader:
            training.optimizer.zero_grad()
            nn.functional.cross_entropy(training.model(images), labels).backward()
            training.optimizer.step()
        accuracy = evaluate(model, test_data)
        print(f"seed {seed} epoch {epoch + 1}: {accuracy:.4f}", flush=True)
    return {
        "seed": seed,
        "accuracy": accuracy,
        "noise-multiplier": training.plan.noise_multiplier,
        "steps": training.plan.steps,
        "seconds": round(time.perf_counter() - start, 1),
    }


def evaluate(model: nn.Module, data: TensorDataset) -> float:
    images, labels = data.tensors
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="MNIST as npz")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--clip", type=float, default=0.1)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="JSON file, written after each seed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            runs.append(train(options, seed, Path(folder)))
            found = [run["accuracy"] for run in runs]
            settings = {k: v for k, v in vars(options).items() if k not in ("data", "output")}
            body = {
                "settings": settings,
                "mean": float(np.mean(found)),
                "deviation": float(np.std(found, ddof=1)) if len(found) > 1 else None,
                "runs": runs,
            }
            if options.output is not None:
                write_report(options.output, "benchmarks/dpsgd.py", None, body)
    print(json.dumps(runs, indent=2))


if __name__ == "__main__":
    main()
