"""Accuracy of trainings that ask each client once, by what that costs it: total epsilon 8 to 1.

A linear layer is trained over fixed features: of MNIST's images along axes that strokes have
(``_strokes.py``), of CIFAR-10's images through a public trunk (a file). Every report goes through
the gate, by Flower's messages, and every charge is in the client's own ledger, which allows one
report in its life (``_asked_once.py``). Noise and sampling are the operating system's; the seed is
that of the split among clients.

Settings were chosen for each row with ``--evaluate-on validation`` (a tenth of the training images,
which clients then do not have); the test images are read for the reported figures only. A run is
written when it ends, and runs that are there are not repeated.

    python benchmarks/totals.py mnist.npz --cache mnist-strokes.npz
    python benchmarks/totals.py cifar10-features.npz
"""

from __future__ import annotations

import itertools
import json
import logging
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import _options as options
import numpy as np
import typer
from _asked_once import Images, Training, run, shares
from _images import read
from _runs import Run, Runs, like, reached, spread
from _strokes import coordinates, features, with_constant

SETTINGS = Path(__file__).resolve().parent / "configs" / "totals.json"


@dataclass(frozen=True)
class Row:
    """A population, and how it trains.

    ``floor`` and ``goal`` are test accuracies in percent; ``axes`` features of an image, scaled
    by the ``power`` of their spread.
    """

    name: str
    clients: int
    alpha: float | None
    axes: int
    power: float
    training: Training
    floor: float | None = None
    goal: float | None = None


def rows(source: str) -> list[Row]:
    """Return the rows of ``"mnist"`` or ``"cifar"``, as ``configs/totals.json`` has them."""
    found = json.loads(SETTINGS.read_text())[source]
    return [Row(**{**one, "training": Training(**one["training"])}) for one in found]


class Source:
    """Features of one data set."""

    def __init__(self, path: Path, cache: Path | None) -> None:
        self._raw = read(path)
        self.kind = "mnist" if self._raw.x.ndim == 3 else "cifar"
        if self.kind == "mnist":
            if cache is None:
                raise typer.BadParameter("--cache names the file for the features of images")
            self._along = coordinates({"train": self._raw.x, "test": self._raw.held_x}, cache)

    def images(self, row: Row, evaluate_on: str, seed: int) -> Images:
        """Return a row's features, split among clients by the seed."""
        if self.kind == "mnist":
            spread, size = self._along["variances"], (row.axes, row.power)
            along = [features(self._along[part], spread, *size) for part in ("train", "test")]
        else:
            raw = (self._raw.x, self._raw.held_x)
            along = [with_constant(some.astype(np.float32)[:, : row.axes]) for some in raw]
        split = self._raw.each(*along).evaluated_on(evaluate_on)
        clients = row.clients * 9 // 10 if evaluate_on == "validation" else row.clients
        parts = shares(split.y, clients, row.alpha, seed)
        return Images(split.x, split.y, parts, split.held_x, split.held_y)


def summary(runs: list[Run], found: list[Row]) -> list[Run]:
    """Return mean and spread of each row's runs."""
    made = []
    for row in found:
        mine = like(runs, row=row.name)
        if mine:
            accuracy = spread(mine, None)
            made.append(
                {
                    "row": row.name,
                    "clients": row.clients,
                    "epsilon_total": max(one["epsilon_total_most"] for one in mine),
                    **accuracy,
                    "payload_bytes": mine[0]["payload_bytes"],
                    "message_bytes": max(one["message_bytes"] for one in mine),
                    **reached(accuracy["accuracy_mean"], row.floor, row.goal),
                }
            )
    return made


def train(source: Source, row: Row, training: Training, evaluate_on: str, seed: int) -> Run:
    """Train once."""
    return run(source.images(row, evaluate_on, seed), training)


def main(
    data: Annotated[Path, typer.Argument(exists=True, help="MNIST's npz, or CIFAR-10's features.")],
    cache: options.Cache = None,
    seeds: options.Seeds = 5,
    only: options.Only = None,
    changes: options.Changes = None,
    evaluate_on: options.EvaluateOn = "test",
    output: options.Output = options.RESULTS / "totals.json",
) -> None:
    """Train each row with each seed, and write means and spreads."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    source, known = Source(data, cache), rows("mnist") + rows("cifar")
    runs = Runs(output, lambda made: summary(made, known))
    for row, seed in itertools.product(rows(source.kind), range(1, seeds + 1)):
        training = options.changed(row.training, changes)
        one: Run = {"row": row.name, "seed": seed, "evaluated_on": evaluate_on}
        one |= {"axes": row.axes, "power": row.power, "training": asdict(training)}
        if not only or row.name in only:
            runs.make(one, partial(train, source, row, training, evaluate_on, seed))
    runs.show()


if __name__ == "__main__":
    typer.run(main)
