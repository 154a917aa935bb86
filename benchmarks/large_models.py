"""Accuracy on MNIST of larger models, of which a report is about a few thousand numbers.

10,000 clients with 6 images each, every one asked once, total epsilon 8, by codewords: a LeNet-5
from scratch (61,706 weights) whose updates are projected onto a public subspace, the same without
one, and a model of 11 million weights of which a head of 5,000 is trained. Every report goes
through the gate, by Flower's messages, and every charge is in the client's own ledger, which allows
one report in its life. Noise and sampling are the operating system's; the seed is that of the split
among clients, of the first weights and of the subspace.

What the frozen trunk makes of an image is computed once, and not by each client. Messages hold the
whole model in any case; those of a round share its bytes (``strict=False``).

Settings were chosen with ``--evaluate-on validation`` or in trials on the same nine tenths of the
training images; the test images are read for the reported figures only. A run is written when it
ends, and runs that are there are not repeated.

    python benchmarks/large_models.py mnist.npz --cache mnist-trunk.npz
"""

from __future__ import annotations

import json
import logging
import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from _asked_once import run_once, shares
from _environment import write_report
from _large_models import (
    CLASSES,
    Clients,
    Local,
    Wide,
    accuracy,
    arrays_of,
    client_app,
    lenet,
    load,
    pixels,
)
from _runs import EvaluateOn, Mnist, Output, Seeds, arguments, earlier, is_known
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_ldp.mechanisms import Codeword, Subspace
from flower_ldp.strategies import CodewordStrategy, FixedLength

HERE = Path(__file__).resolve().parent
_CHECKED, _IMAGES = 250, 60_000


@dataclass(frozen=True)
class Row:
    """A model, and how it trains."""

    name: str
    model: str
    dimension: int | None
    rounds: int
    length: float
    momentum: float
    steps: int
    rate: float
    blocks: int = 1
    clients: int = 10_000
    epsilon: float = 8.0
    final_fraction: float = 0.3


ROWS = (
    Row("LeNet-5, subspace", "lenet", 1_024, 100, 1.5, 0.7, 1, 0.1, final_fraction=0.1),
    Row("LeNet-5, all weights", "lenet", None, 100, 1.5, 0.7, 1, 0.1, final_fraction=0.1),
    # The steps are those of the head in totals.py, in units of these features.
    Row("11 million, head of 5,000", "wide", None, 20, 3.2, 0.5, 20, 0.08, blocks=CLASSES),
)


class Digits:
    """Images and labels: all for training and testing, or the training images divided."""

    def __init__(self, path: Path, cache: Path | None, evaluate_on: str) -> None:
        with np.load(path) as file:
            images = {part: file[f"x_{part}"] for part in ("train", "test")}
            labels = {part: file[f"y_{part}"].astype(np.int64) for part in ("train", "test")}
        self._cache, self._all = cache, images
        self.parts = (np.arange(len(labels["train"])), np.arange(len(labels["test"])))
        self._held = "test"
        if evaluate_on == "validation":
            order = np.random.default_rng(0).permutation(len(labels["train"]))
            self.parts, self._held = (order[len(order) // 10 :], order[: len(order) // 10]), "train"
        kept, held = self.parts
        self.labels = labels["train"][kept], labels[self._held][held]

    def pixels(self) -> tuple[Tensor, Tensor]:
        """Return images to train on and to evaluate on."""
        kept, held = self.parts
        return pixels(self._all["train"][kept]), pixels(self._all[self._held][held])

    def wide(self) -> tuple[Wide, tuple[Tensor, Tensor]]:
        """Return the wide model, and what its trunk makes of them: that takes minutes once."""
        if self._cache is None:
            raise typer.BadParameter("--cache names the file for what the trunk makes of images")
        trunk = Wide()
        if not self._cache.exists():
            made = {part: trunk.features(some).numpy() for part, some in self._all.items()}
            np.savez(self._cache, allow_pickle=False, **made)
        with np.load(self._cache) as file:
            found = {part: torch.from_numpy(file[part]) for part in self._all}
        some = trunk.features(self._all["test"][:_CHECKED])
        if not torch.allclose(some, found["test"][:_CHECKED], atol=0.05):
            raise typer.BadParameter("--cache holds what another trunk made")
        kept, held = self.parts
        return trunk, (found["train"][kept], found[self._held][held])


class Models:
    """What rows begin with; the wide model is made once, as it takes minutes."""

    def __init__(self, digits: Digits) -> None:
        self._digits = digits
        self._pixels: tuple[Tensor, Tensor] | None = None
        self._wide: tuple[Wide, tuple[Tensor, Tensor]] | None = None

    def of(self, row: Row, seed: int) -> tuple[nn.Module, nn.Module, str, tuple[Tensor, Tensor]]:
        """Return a model, what clients train of it and its prefix, and that part's inputs."""
        if row.model == "lenet":
            self._pixels = self._pixels or self._digits.pixels()
            model = lenet(seed)
            return model, model, "", self._pixels
        self._wide = self._wide or self._digits.wide()
        wide, inputs = self._wide
        return wide, wide.head, "head.", inputs


def train(row: Row, models: Models, labels: tuple[NDArray[np.int64], ...], seed: int) -> Any:
    """Train a row's model once; return its accuracy and what clients spent and sent."""
    model, trained, prefix, (inputs, held) = models.of(row, seed)
    if prefix:
        nn.init.zeros_(trained.weight)  # type: ignore[arg-type]
        nn.init.zeros_(trained.bias)  # type: ignore[arg-type]
    first = arrays_of(model)
    strategy = CodewordStrategy(
        Codeword(row.epsilon, blocks=row.blocks),
        FixedLength(row.length, row.rounds, row.momentum, row.final_fraction),
        answers_per_client=1,
        fraction_train=min(1.0, (1 + 1e-9) / row.rounds),
        trainable=f"{prefix}*" if prefix else None,
        subspace=None if row.dimension is None else Subspace(row.dimension, seed),
    )
    count = row.clients * len(labels[0]) // _IMAGES
    parts = shares(labels[0], count, None, seed)
    clients = Clients(inputs, torch.from_numpy(labels[0]), parts)
    app = client_app(trained, prefix, clients, Local(row.steps, row.rate))
    last, facts = run_once(strategy, app, first, row.rounds, count, strict=False)
    frozen = [name for name in first if prefix and not name.startswith(prefix)]
    if any(last[name].data != first[name].data for name in frozen):
        raise RuntimeError("the frozen part has moved")
    load(model, last)
    return {
        "accuracy": accuracy(trained, held, torch.from_numpy(labels[1])),
        "weights": sum(one.numel() for one in model.parameters()),
        "trained_weights": sum(one.numel() for one in trained.parameters()),
        **facts,
    }


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and spread over seeds, for each row with its settings and part of the data."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for one in runs:
        key = json.dumps([one["evaluated_on"], one["row"]], sort_keys=True)
        groups.setdefault(key, []).append(one)
    made = []
    for mine in groups.values():
        first, accuracies = mine[0], [one["accuracy"] for one in mine]
        made.append(
            {
                "row": first["row"]["name"],
                "evaluated_on": first["evaluated_on"],
                "weights": first["weights"],
                "trained_weights": first["trained_weights"],
                "dimension": first["row"]["dimension"],
                "clients": first["clients_asked"],
                "epsilon_total": max(one["epsilon_total_most"] for one in mine),
                "accuracy_mean": statistics.mean(accuracies),
                "accuracy_standard_deviation": statistics.pstdev(accuracies),
                "seeds": len(mine),
                "payload_bytes": first["payload_bytes"],
                "message_bytes": max(one["message_bytes"] for one in mine),
            }
        )
    return made


def main(
    data: Mnist,
    cache: Annotated[Path | None, typer.Option(help="Where the trunk's features are.")] = None,
    seeds: Seeds = 3,
    only: Annotated[list[str] | None, typer.Option(help="Rows, by name; repeatable.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Of a row, as rounds=40; repeatable.")
    ] = None,
    evaluate_on: EvaluateOn = "test",
    output: Output = HERE / "results" / "large_models.json",
) -> None:
    """Train each row with each seed, and write means and spreads."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    digits = Digits(data, cache, evaluate_on)
    models, runs = Models(digits), earlier(output)
    pairs = (item.split("=", 1) for item in changes or [])
    change: dict[str, Any] = {name: json.loads(value) for name, value in pairs}
    for row in ROWS:
        if only and row.name not in only:
            continue
        row = replace(row, **change)
        for seed in range(1, seeds + 1):
            one: dict[str, Any] = {"row": asdict(row), "seed": seed, "evaluated_on": evaluate_on}
            if is_known(one, runs):
                continue
            began = time.perf_counter()
            one |= train(row, models, digits.labels, seed)
            one["seconds"] = round(time.perf_counter() - began, 1)
            runs.append(one)
            said = f"{row.name:<28} seed {seed}: {one['accuracy']:.4f}, {one['seconds']} s"
            print(said, flush=True)
            words = arguments(evaluate_on, changes, data.name)
            words += [] if cache is None else ["--cache", cache.name]
            one["command"] = " ".join(["python benchmarks/large_models.py", *words])
            body = {"summary": summary(runs), "runs": runs}
            write_report(output, "benchmarks/large_models.py", words, body)


if __name__ == "__main__":
    typer.run(main)
