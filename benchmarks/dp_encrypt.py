"""Accuracy on MNIST of clipped and noised updates (DP_ENCRYPT), the dense baseline of SignDS.

Model, split and local training are those of ``examples/signds``, and clients, steps and rates
those of the scenario ``cnn-iid-epsilon-8`` of ``mnist.py``. In one process, without Flower:
each client's update goes through the package's mechanism, and the server moves the model by
the mean. Noise and weights are seeded, for this comparison only; and the lengths of updates are
read, from which clip norms are chosen. Not through :mod:`flower_ldp.simulation` for these two
reasons: a gate takes no seed, and lets no length of an update out.

Clip norm, number of rounds and the server's rate were chosen for each epsilon with
``--evaluate-on validation`` (a tenth of the training images, which clients then do not have);
the test images are read for the reported figures only. A run is written when it ends, and runs
that are there are not repeated.

    python benchmarks/dp_encrypt.py mnist.npz
"""

from __future__ import annotations

import json
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
from torch import nn

from flower_ldp.mechanisms import Gaussian, RandomSource

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "examples" / "signds"))

from signds_example import data, model, training  # noqa: E402

CLIENTS, STEPS, BATCH, RATE = 100, 15, 16, 0.1


@dataclass(frozen=True)
class Settings:
    """One row of the comparison; epsilon and delta are per round and client."""

    epsilon: float | None
    delta: float
    clip_norm: float
    rounds: int
    server_rate: float = 1.0


#: The last is what is lost without noise.
ROWS = (
    Settings(50.0, 0.01, 0.5, 40),
    Settings(8.0, 1e-6, 0.1, 40),
    Settings(None, 0.0, 0.5, 40),
)


def local_update(net: nn.Module, images: data.Split, mine: torch.Tensor) -> np.ndarray[Any, Any]:
    """Train a client's copy of the model, and return by how much its weights moved."""
    before = weights_of(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for batch in training.batches(mine, STEPS, BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images.images[batch]), images.labels[batch]).backward()
        optimizer.step()
    update = weights_of(net) - before
    put(before, net)
    return np.asarray(update.numpy())


def weights_of(net: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def put(weights: torch.Tensor, net: nn.Module) -> None:
    with torch.no_grad():
        sizes = [p.numel() for p in net.parameters()]
        for p, values in zip(net.parameters(), weights.split(sizes), strict=True):
            p.copy_(values.view(p.shape))


def clipped(update: np.ndarray[Any, Any], norm: float) -> np.ndarray[Any, Any]:
    return update * min(1.0, norm / max(float(np.linalg.norm(update)), 1e-30))


def federate(path: Path, settings: Settings, seed: int, evaluate_on: str) -> Run:
    """Train for all rounds; return the last accuracy and how long updates were."""
    held = data.load(str(path), evaluate_on, seed)
    parts = data.partitions(str(path), evaluate_on, seed, CLIENTS, "iid", 0.5)
    net = model.build("small-cnn", held.side, seed)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster
    torch.manual_seed(seed)
    noise, curve = RandomSource.seeded(seed), []
    lengths: list[float] = []
    mechanism = settings.epsilon and Gaussian(settings.epsilon, settings.delta, settings.clip_norm)
    for number in range(1, settings.rounds + 1):
        total = np.zeros(len(weights_of(net)))
        for part in parts:
            update = local_update(net, held.train, torch.as_tensor(part))
            lengths.append(float(np.linalg.norm(update)))
            if mechanism:
                total += mechanism.randomize(update, noise)
            else:
                total += clipped(update, settings.clip_norm)
        mean = mechanism.estimate(total.astype(np.int64), CLIENTS) if mechanism else total / CLIENTS
        step = torch.tensor(settings.server_rate * mean, dtype=torch.float32)
        put(weights_of(net) + step, net)
        if number % 5 == 0 or number == settings.rounds:
            right, _ = model.accuracy_and_loss(net, held.held_out.images, held.held_out.labels)
            net.train()
            curve.append((number, round(right, 4)))
    return {
        "accuracy": curve[-1][1],
        "curve": curve,
        "median-update-length": round(statistics.median(lengths), 3),
        "noise-deviation": mechanism.deviation / CLIENTS**0.5 if mechanism else 0.0,
    }


def summary(runs: list[Run]) -> list[Run]:
    """Return mean and spread over seeds, for each row of settings and part of the data."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps([run["evaluated-on"], run["settings"]]), []).append(run)
    rows = []
    for name, group in groups.items():
        found = [run["accuracy"] for run in group]
        part, settings = json.loads(name)
        rows.append(
            {
                **settings,
                "evaluated-on": part,
                "seeds": len(found),
                "mean": round(statistics.mean(found), 4),
                "deviation": round(statistics.stdev(found), 4) if len(found) > 1 else None,
            }
        )
    return rows


def main(
    mnist: Mnist,
    seeds: Seeds = 3,
    row: Annotated[
        list[int] | None, typer.Option(min=1, max=len(ROWS), help="Rows to run; repeatable.")
    ] = None,
    evaluate_on: EvaluateOn = "test",
    set_: Changes = None,
    output: Output = HERE / "results" / "dp_encrypt.json",
) -> None:
    """Train for each row and seed; write a results file."""
    torch.set_num_threads(1)
    words = arguments(evaluate_on, set_) + [f"--row {number}" for number in row or []]
    runs = earlier(output)
    for number in row or range(1, len(ROWS) + 1):
        settings = changed(ROWS[number - 1], set_)
        for seed in range(1, seeds + 1):
            run: Run = {"evaluated-on": evaluate_on, "settings": asdict(settings), "seed": seed}
            if is_known(run, runs):
                continue
            began = time.process_time()
            run |= federate(mnist, settings, seed, evaluate_on)
            run["processor-seconds"] = round(time.process_time() - began, 1)
            run["command"] = " ".join(["python benchmarks/dp_encrypt.py", *words])
            runs.append(run)
            print(f"{settings} seed {seed}: {run['accuracy']:.4f}", flush=True)
            body = {"clients": CLIENTS, "summary": summary(runs), "runs": runs}
            write_report(output, "benchmarks/dp_encrypt.py", words, body)


if __name__ == "__main__":
    typer.run(main)
