"""Which K and h SignDS should take by itself: accuracy of training under four rules.

For MNIST and scikit-learn's digits, epsilon 4, 8 and 100 a round, 100 clients:

* ``ratio``: k = 0.2 and the most dimensions of which 60 % are expected in the top set;
* ``worth``: the K and h of the report that points farthest along the update, any K;
* ``worth-0.05``: the same with K of at least 0.05 d;
* ``default``: what ``SignDS`` takes without k: the K and h with which the sum of reports does,
  one for 64 weights (``mechanisms/signds_size.py``).

Every client trains in every round, from the server's model, and its report is that of the
package's ``SignDS``; the server takes steps of fixed length (``FixedLength``), whose first
length is chosen for each rule, epsilon and data set on a tenth of the training images. The
test images are read for the reported figures only, with other seeds. Flower is left out: all
clients train at once, in one tensor. Runs that are in the results file are not repeated.
Beside the accuracy stands how far a report points along the updates of the first round
(seed 1), computed from the law of v and the updates' own sums: the worth that the rules
maximize assumes normal entries.

    python benchmarks/signds_rule.py /path/to/mnist.npz
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "examples" / "signds")]

from _environment import cpu_model  # noqa: E402
from _runs import Mnist, Output, Run, Seeds, earlier, is_known  # noqa: E402
from signds_example.data import load, partitions  # noqa: E402

from flower_ldp.mechanisms import RandomSource, SignDS  # noqa: E402
from flower_ldp.mechanisms.signds import sum_of_signs  # noqa: E402
from flower_ldp.mechanisms.signds_size import best_sizes  # noqa: E402
from flower_ldp.strategies import FixedLength  # noqa: E402

EPSILONS = (4.0, 8.0, 100.0)
LENGTHS = (0.25, 0.5, 1.0, 2.0)
#: A tenth of the digits is 143 images, of MNIST 6,000.
TRIAL_SEEDS = {"digits": (101, 102), "mnist": (101,)}
HIDDEN, CLASSES = 32, 10


@dataclass(frozen=True)
class Settings:
    """Of the federation and of its training, the same for every rule."""

    clients: int = 100
    rounds: int = 60
    local_steps: int = 15
    batch_size: int = 16
    learning_rate: float = 0.1
    momentum: float = 0.9


def by_worth(epsilon: float, dimension: int, least: float) -> SignDS:
    """Return the selection whose K and h are those of the most valuable report."""
    top_size, dim_out = best_sizes(dimension, epsilon, least=least, crowd=0.0)
    # Half a dimension more, so that floor(k d) is K whatever the division rounds to.
    return SignDS(epsilon, k=(top_size + 0.5) / dimension, dim_out=dim_out)


#: A client has 14 of the digits and 600 of MNIST's images.
SETTINGS = {"digits": Settings(), "mnist": Settings(rounds=40, local_steps=10)}

RULES: dict[str, Callable[[float, int], SignDS]] = {
    "ratio": lambda epsilon, dimension: SignDS(epsilon, k=0.2),
    "worth": lambda epsilon, dimension: by_worth(epsilon, dimension, least=0.0),
    "worth-0.05": lambda epsilon, dimension: by_worth(epsilon, dimension, least=0.05),
    "default": lambda epsilon, dimension: SignDS(epsilon).sized(dimension),
}


def pixels(images: Tensor) -> Tensor:
    """Return images as rows, those of MNIST at half their resolution."""
    if images.shape[-1] > 8:
        images = nn.functional.avg_pool2d(images, 2)
    return images.flatten(1)


def first_weights(inputs: int, seed: int) -> list[Tensor]:
    """Return the weights of a network with one hidden layer, as PyTorch starts them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, CLASSES)
    return [w.detach() for layer in layers for w in (layer.weight.T, layer.bias)]


def outputs(weights: list[Tensor], x: Tensor) -> Tensor:
    """Return logits (..., n, classes) of inputs (..., n, pixels), for one model or many."""
    first, first_bias, second, second_bias = weights
    hidden = torch.relu(x @ first + first_bias.unsqueeze(-2))
    return hidden @ second + second_bias.unsqueeze(-2)


def batches(own: Tensor, steps: int, size: int) -> Iterator[Tensor]:
    """Yield each step's images, (clients, size): all of a client's before any comes again."""
    passes = -(-steps * size // own.shape[1])
    orders = [own.gather(1, torch.rand(own.shape).argsort(dim=1)) for _ in range(passes)]
    return iter(torch.cat(orders, dim=1).split(size, dim=1)[:steps])


def updates(
    weights: list[Tensor], x: Tensor, y: Tensor, own: Tensor, settings: Settings
) -> NDArray[np.float32]:
    """Train every client from the same weights; return what each changed, (clients, d)."""
    mine = [w.expand(len(own), *w.shape).clone().requires_grad_() for w in weights]
    optimizer = torch.optim.SGD(mine, lr=settings.learning_rate)
    for batch in batches(own, settings.local_steps, settings.batch_size):
        optimizer.zero_grad()
        logits = outputs(mine, x[batch])
        # Summed over clients, a mean for each: no gradient of one reaches another.
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y[batch].flatten())
        (loss * len(own)).backward()
        optimizer.step()
    changes = [(m.detach() - w).flatten(1) for m, w in zip(mine, weights, strict=True)]
    return torch.cat(changes, dim=1).numpy()


def moved(weights: list[Tensor], step: NDArray[np.float32]) -> list[Tensor]:
    """Return weights plus a step (d,)."""
    parts = torch.from_numpy(step).split([w.numel() for w in weights])
    return [w + part.view_as(w) for w, part in zip(weights, parts, strict=True)]


@dataclass(frozen=True, eq=False)
class Task:
    """Images as rows, the clients' shares of them (clients, images), and what was held out."""

    x: Tensor
    y: Tensor
    own: Tensor
    held_x: Tensor
    held_y: Tensor


@lru_cache(maxsize=1)
def prepared(source: str, part: str, seed: int, clients: int) -> Task:
    """Return the images of a data set, dealt out to clients in equal numbers."""
    data = load(source, part, seed)
    shares = partitions(source, part, seed, clients, "iid", 0.0)
    least = min(len(share) for share in shares)
    own = torch.from_numpy(np.stack([share[:least] for share in shares]))
    train_part, held = data.train, data.held_out
    return Task(pixels(train_part.images), train_part.labels, own, pixels(held.images), held.labels)


def train(
    task: Task, rule: str, epsilon: float, length: float, seed: int, settings: Settings
) -> tuple[SignDS, float]:
    """Return the rule's selection and the accuracy on the images that were held out."""
    torch.manual_seed(seed)
    rng = RandomSource.seeded(seed)
    weights = first_weights(task.x.shape[1], seed)
    dimension = sum(w.numel() for w in weights)
    mechanism = RULES[rule](epsilon, dimension)
    optimizer = FixedLength(length, settings.rounds, settings.momentum)
    for number in range(1, settings.rounds + 1):
        changes = updates(weights, task.x, task.y, task.own, settings)
        reports = [mechanism.randomize(update, rng) for update in changes]
        proposed = sum_of_signs(reports, dimension).astype(np.float32)
        weights = moved(weights, optimizer.step(proposed, number))
    found = outputs(weights, task.held_x).argmax(dim=1)
    return mechanism, float((found == task.held_y).float().mean())


def alignment(mechanism: SignDS, changes: NDArray[np.float32]) -> float:
    """Return the mean of <report, update> for reports of length one and entries of square 1."""
    plan = mechanism.plan(changes.shape[1])
    found = []
    for update in changes.astype(np.float64):
        for signed in (np.sort(update), np.sort(-update)):
            top = signed[-plan.top_size :].mean()
            rest = signed[: -plan.top_size].mean()
            along = plan.expected_inside * top + (plan.dim_out - plan.expected_inside) * rest
            found.append(along / math.sqrt(plan.dim_out * np.square(update).mean()))
    return float(statistics.mean(found))


@dataclass(frozen=True)
class Cell:
    """What an accuracy is asked for."""

    data: str
    epsilon: float
    rule: str


class Bench:
    """The runs that were made, in a file."""

    def __init__(self, mnist: Path, output: Path) -> None:
        self.runs = earlier(output)
        self._sources = {"digits": "digits", "mnist": str(mnist)}
        self._output = output

    def accuracy(self, part: str, cell: Cell, length: float, seed: int) -> float:
        """Return the accuracy of one run, which is made unless it was."""
        run: Run = {"evaluated_on": part, **asdict(cell), "length": length, "seed": seed}
        run["settings"] = asdict(SETTINGS[cell.data])
        if not is_known(run, self.runs):
            self.runs.append(self._made(run))
            self.write({})
        return float(next(known["accuracy"] for known in self.runs if run.items() <= known.items()))

    def _made(self, run: Run) -> Run:
        settings = SETTINGS[run["data"]]
        task = prepared(
            self._sources[run["data"]], run["evaluated_on"], run["seed"], settings.clients
        )
        began = time.process_time()
        mechanism, accuracy = train(
            task, run["rule"], run["epsilon"], run["length"], run["seed"], settings
        )
        made = {**run, "k": mechanism.k, "h": mechanism.dim_out, "accuracy": round(accuracy, 4)}
        seconds = round(time.process_time() - began, 1)
        print({name: made[name] for name in made if name != "settings"}, seconds, "s", flush=True)
        return made

    def best_lengths(self, cells: list[Cell]) -> list[tuple[float, float]]:
        """Return for each the first length that does best on images held out, and how well."""
        found: dict[tuple[Cell, float], list[float]] = defaultdict(list)
        # Seeds outside: a seed's images are prepared once.
        seeds = TRIAL_SEEDS[cells[0].data]
        for seed, cell, length in itertools.product(seeds, cells, LENGTHS):
            found[cell, length].append(self.accuracy("validation", cell, length, seed))
        means = [
            {length: statistics.mean(found[cell, length]) for length in LENGTHS} for cell in cells
        ]
        best = [max(LENGTHS, key=lambda length: mean[length]) for mean in means]
        return [(length, mean[length]) for length, mean in zip(best, means, strict=True)]

    def tests(self, cells: list[Cell], lengths: list[float], seeds: int) -> list[list[float]]:
        """Return each cell's accuracies on the test images at its length, by seed."""
        pairs = list(zip(cells, lengths, strict=True))
        rows = [
            [self.accuracy("test", cell, length, seed) for cell, length in pairs]
            for seed in range(1, seeds + 1)
        ]
        return [list(column) for column in zip(*rows, strict=True)]

    def alignments(self, name: str, cells: list[Cell]) -> list[float]:
        """Return each cell's alignment with the clients' first updates."""
        settings = SETTINGS[name]
        task = prepared(self._sources[name], "test", 1, settings.clients)
        torch.manual_seed(1)
        changes = updates(first_weights(task.x.shape[1], 1), task.x, task.y, task.own, settings)
        rules = (RULES[cell.rule](cell.epsilon, changes.shape[1]) for cell in cells)
        return [alignment(mechanism, changes) for mechanism in rules]

    def write(self, summary: dict[str, Any]) -> None:
        """Write the results file."""
        body = {
            "command": "python benchmarks/signds_rule.py mnist.npz",
            "machine": f"{cpu_model()}, one thread",
            "torch": torch.__version__,
            "summary": summary,
            "runs": self.runs,
        }
        self._output.parent.mkdir(parents=True, exist_ok=True)
        self._output.write_text(json.dumps(body, indent=1) + "\n")


def main(
    data: Mnist,
    seeds: Seeds = 5,
    output: Output = HERE / "results" / "signds_rule.json",
) -> None:
    """Train under every rule, data set and epsilon; write a results file."""
    torch.set_num_threads(1)
    bench = Bench(data, output)
    summary = []
    for name in SETTINGS:
        cells = [Cell(name, *pair) for pair in itertools.product(EPSILONS, RULES)]
        best = bench.best_lengths(cells)
        found = bench.tests(cells, [length for length, _ in best], seeds)
        aligned = bench.alignments(name, cells)
        for cell, (length, held), tested, along in zip(cells, best, found, aligned, strict=True):
            row: dict[str, Any] = {
                **asdict(cell),
                "length": length,
                "alignment_of_first_updates": round(float(along), 3),
                "held_out": round(held, 4),
                "mean": round(statistics.mean(tested), 4),
                "standard_deviation": round(statistics.stdev(tested), 4) if seeds > 1 else None,
            }
            print(row, flush=True)
            summary.append(row)
    bench.write({"seeds": seeds, "cells": summary})


if __name__ == "__main__":
    typer.run(main)
