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

import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from _asked_once import Images, Training, run, shares
from _environment import write_report
from _runs import Changes, EvaluateOn, Seeds, changed, earlier, is_known, reached, spread, told
from _strokes import coordinates, features, with_constant

HERE = Path(__file__).resolve().parent
SETTINGS = HERE / "configs" / "totals.json"
OUTPUT = HERE / "results" / "totals.json"


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
        with np.load(path) as file:
            self.labels = {part: file[f"y_{part}"].astype(np.int64) for part in ("train", "test")}
            images = {part: file[f"x_{part}"] for part in ("train", "test")}
        self.kind = "mnist" if images["train"].ndim == 3 else "cifar"
        if self.kind == "mnist":
            if cache is None:
                raise typer.BadParameter("--cache names the file for the features of images")
            self._along = coordinates(images, cache)
        else:
            self._along = {part: some.astype(np.float32) for part, some in images.items()}

    def images(self, row: Row, evaluate_on: str, seed: int) -> Images:
        """Return a row's features, split among clients by the seed."""
        train, test = (self._features(part, row) for part in ("train", "test"))
        labels, held_labels = self.labels["train"], self.labels["test"]
        clients = row.clients
        if evaluate_on == "validation":
            order = np.random.default_rng(0).permutation(len(labels))
            held, kept = np.split(order, [len(order) // 10])
            test, held_labels = train[held], labels[held]
            train, labels = train[kept], labels[kept]
            clients = clients * 9 // 10
        parts = shares(labels, clients, row.alpha, seed)
        return Images(train, labels, parts, test, held_labels)

    def _features(self, part: str, row: Row) -> Any:
        if self.kind == "mnist":
            return features(self._along[part], self._along["variances"], row.axes, row.power)
        return with_constant(self._along[part][:, : row.axes])


def summary(runs: list[dict[str, Any]], found: list[Row]) -> list[dict[str, Any]]:
    """Return mean and spread of each row's runs."""
    made = []
    for row in found:
        mine = [one for one in runs if one["row"] == row.name]
        if not mine:
            continue
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


def main(
    data: Annotated[Path, typer.Argument(exists=True, help="MNIST's npz, or CIFAR-10's features.")],
    cache: Annotated[Path | None, typer.Option(help="Where features of images are kept.")] = None,
    seeds: Seeds = 5,
    only: Annotated[list[str] | None, typer.Option(help="Rows, by name; repeatable.")] = None,
    changes: Changes = None,
    evaluate_on: EvaluateOn = "test",
    output: Annotated[Path, typer.Option(help="Results file, kept up to date.")] = OUTPUT,
) -> None:
    """Train each row with each seed, and write means and spreads."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    source = Source(data, cache)
    known, runs = rows("mnist") + rows("cifar"), earlier(output)
    for row in rows(source.kind):
        if only and row.name not in only:
            continue
        training = changed(row.training, changes)
        for seed in range(1, seeds + 1):
            one: dict[str, Any] = {
                "row": row.name,
                "seed": seed,
                "evaluated_on": evaluate_on,
                "axes": row.axes,
                "power": row.power,
                "training": asdict(training),
            }
            if is_known(one, runs):
                continue
            began = time.perf_counter()
            one |= run(source.images(row, evaluate_on, seed), training)
            one["seconds"] = round(time.perf_counter() - began, 1)
            runs.append(one)
            said = f"{row.name:<28} seed {seed}: {one['accuracy']:.4f}, {one['seconds']} s"
            print(said, flush=True)
            body = {"summary": summary(runs, known), "runs": runs}
            words = [data.name, "--evaluate-on", evaluate_on, "--seeds", str(seeds)]
            write_report(output, "benchmarks/totals.py", words, body)
    for line in summary(runs, known):
        print(told(line))


if __name__ == "__main__":
    typer.run(main)
