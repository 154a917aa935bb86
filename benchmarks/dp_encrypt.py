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

import itertools
import statistics
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import _examples  # noqa: F401
import _options as options
import numpy as np
import torch
import typer
from _networks import descend
from _published_signds import put, weights_of
from _runs import Run, Runs, deviation, groups
from numpy.typing import NDArray
from signds_example import data, model, training
from torch import nn

from flower_ldp.mechanisms import Gaussian, RandomSource

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


def local_update(net: nn.Module, images: data.Split, mine: torch.Tensor) -> NDArray[Any]:
    """Train a client's copy of the model, and return by how much its weights moved."""
    before = weights_of(net)

    def loss(rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(net(images.images[rows]), images.labels[rows])

    descend(torch.optim.SGD(net.parameters(), RATE), training.batches(mine, STEPS, BATCH), loss)
    update = weights_of(net) - before
    put(before, net)
    return np.asarray(update.numpy())


def clipped(update: NDArray[Any], norm: float) -> NDArray[Any]:
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
        weights = weights_of(net)
        total = np.zeros(len(weights))
        for part in parts:
            update = local_update(net, held.train, torch.as_tensor(part))
            lengths.append(float(np.linalg.norm(update)))
            if mechanism:
                total += mechanism.randomize(update, noise)
            else:
                total += clipped(update, settings.clip_norm)
        mean = mechanism.estimate(total.astype(np.int64), CLIENTS) if mechanism else total / CLIENTS
        step = torch.tensor(settings.server_rate * mean, dtype=torch.float32)
        put(weights + step, net)
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
    rows = []
    for group in groups(runs, lambda run: [run["evaluated-on"], run["settings"]]):
        found, first = [run["accuracy"] for run in group], group[0]
        row = {**first["settings"], "evaluated-on": first["evaluated-on"], "seeds": len(found)}
        mean = round(statistics.mean(found), 4)
        rows.append({**row, "mean": mean, "deviation": deviation(found)})
    return rows


def main(
    mnist: options.Mnist,
    seeds: options.Seeds = 3,
    row: Annotated[
        list[int] | None, typer.Option(min=1, max=len(ROWS), help="Rows to run; repeatable.")
    ] = None,
    evaluate_on: options.EvaluateOn = "test",
    set_: options.Changes = None,
    output: options.Output = options.RESULTS / "dp_encrypt.json",
) -> None:
    """Train for each row and seed; write a results file."""
    torch.set_num_threads(1)
    runs = Runs(output, summary, clients=CLIENTS)
    for number, seed in itertools.product(row or range(1, len(ROWS) + 1), range(1, seeds + 1)):
        settings = options.changed(ROWS[number - 1], set_)
        one: Run = {"evaluated-on": evaluate_on, "settings": asdict(settings), "seed": seed}
        runs.make(one, partial(federate, mnist, settings, seed, evaluate_on))
    runs.show()


if __name__ == "__main__":
    typer.run(main)
