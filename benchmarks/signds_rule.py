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
import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path

import _examples  # noqa: F401
import _options as options
import numpy as np
import torch
import typer
from _runs import Run, Runs, deviation, say
from _step_apps import Examples, Model, Torch, hidden, together, usual
from numpy.typing import NDArray
from signds_example.data import load, partitions
from torch import Tensor, nn

from flower_ldp.mechanisms import RandomSource, SignDS
from flower_ldp.mechanisms.signds import sum_of_signs
from flower_ldp.mechanisms.signds_size import best_sizes
from flower_ldp.strategies import FixedLength
from flower_ldp.wire.layout import ModelLayout

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


def batches(own: Tensor, steps: int, size: int) -> list[Tensor]:
    """Return each step's images, (clients, size): all of a client's before any comes again."""
    passes = -(-steps * size // own.shape[1])
    orders = [own.gather(1, torch.rand(own.shape).argsort(dim=1)) for _ in range(passes)]
    return list(torch.cat(orders, dim=1).split(size, dim=1)[:steps])


@dataclass(frozen=True, eq=False)
class Task:
    """Images as rows, the clients' shares of them (clients, images), and what was held out."""

    images: Examples
    own: Tensor
    held: Examples
    settings: Settings

    @property
    def app(self) -> Torch:
        """Return a network with one hidden layer."""
        start = usual((self.images.x.shape[1], HIDDEN), (HIDDEN, CLASSES))
        return Torch(self.settings.clients, start, hidden, 0, 0.0)

    def updates(self, model: Model) -> NDArray[np.float32]:
        """Train every client from the same weights; return what each changed, (clients, d)."""
        of = self.settings
        steps = batches(self.own, of.local_steps, of.batch_size)
        return together(hidden, model, self.images, steps, of.learning_rate)


@lru_cache(maxsize=1)
def prepared(name: str, mnist: Path, part: str, seed: int) -> Task:
    """Return the images of a data set, dealt out to clients in equal numbers."""
    settings, source = SETTINGS[name], name if name == "digits" else str(mnist)
    data = load(source, part, seed)
    shares = partitions(source, part, seed, settings.clients, "iid", 0.0)
    least = min(len(share) for share in shares)
    own = torch.from_numpy(np.stack([share[:least] for share in shares]))
    train_part, held = (
        Examples(pixels(some.images).numpy(), some.labels.numpy())
        for some in (data.train, data.held_out)
    )
    return Task(train_part, own, held, settings)


def train(task: Task, rule: str, epsilon: float, length: float, seed: int) -> Run:
    """Return the rule's selection and the accuracy on the images that were held out."""
    torch.manual_seed(seed)
    rng, model = RandomSource.seeded(seed), task.app.initial(seed)
    layout = ModelLayout.of(model)
    mechanism = RULES[rule](epsilon, layout.dimension)
    optimizer = FixedLength(length, task.settings.rounds, task.settings.momentum)
    for number in range(1, task.settings.rounds + 1):
        reports = [mechanism.randomize(update, rng) for update in task.updates(model)]
        proposed = sum_of_signs(reports, layout.dimension).astype(np.float32)
        model = layout.add(model, optimizer.step(proposed, number))
    accuracy = round(task.app.accuracy(model, task.held), 4)
    return {"k": mechanism.k, "h": mechanism.dim_out, "accuracy": accuracy}


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

    def __init__(self, mnist: Path, runs: Runs) -> None:
        self._mnist, self._runs = mnist, runs

    def accuracy(self, part: str, cell: Cell, length: float, seed: int) -> float:
        """Return the accuracy of one run, which is made unless it was."""
        one: Run = {"evaluated_on": part, **asdict(cell), "length": length, "seed": seed}
        one["settings"] = asdict(SETTINGS[cell.data])
        return float(
            self._runs.make(one, partial(self._made, part, cell, length, seed))["accuracy"]
        )

    def _made(self, part: str, cell: Cell, length: float, seed: int) -> Run:
        task = prepared(cell.data, self._mnist, part, seed)
        return train(task, cell.rule, cell.epsilon, length, seed)

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
        task = prepared(name, self._mnist, "test", 1)
        torch.manual_seed(1)
        changes = task.updates(task.app.initial(1))
        rules = (RULES[cell.rule](cell.epsilon, changes.shape[1]) for cell in cells)
        return [alignment(mechanism, changes) for mechanism in rules]


def main(
    data: options.Mnist,
    seeds: options.Seeds = 5,
    output: options.Output = options.RESULTS / "signds_rule.json",
) -> None:
    """Train under every rule, data set and epsilon; write a results file."""
    torch.set_num_threads(1)
    rows: list[Run] = []
    runs = Runs(output, lambda _: {"seeds": seeds, "cells": rows}, torch=torch.__version__)
    bench = Bench(data, runs)
    for name in SETTINGS:
        cells = [Cell(name, *pair) for pair in itertools.product(EPSILONS, RULES)]
        best = bench.best_lengths(cells)
        found = bench.tests(cells, [length for length, _ in best], seeds)
        aligned = bench.alignments(name, cells)
        for cell, (length, held), tested, along in zip(cells, best, found, aligned, strict=True):
            rows.append(
                {
                    **asdict(cell),
                    "length": length,
                    "alignment_of_first_updates": round(float(along), 3),
                    "held_out": round(held, 4),
                    "mean": round(statistics.mean(tested), 4),
                    "standard_deviation": deviation(tested),
                }
            )
            say(rows[-1])
    runs.write()


if __name__ == "__main__":
    typer.run(main)
