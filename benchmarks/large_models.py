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

import itertools
import logging
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path

import _examples  # noqa: F401
import _options as options
import numpy as np
import torch
import typer
from _asked_once import run_once, shares
from _images import Split, read
from _large_models import CLASSES, Clients, Local, Wide, arrays_of, client_app, load, pixels
from _networks import outputs
from _runs import Run, Runs, groups, spread
from signds_example.model import build
from torch import nn

from flower_ldp.mechanisms import Codeword, Subspace
from flower_ldp.strategies import CodewordStrategy, FixedLength

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


class Models:
    """What rows begin with; the wide model is made once, as it takes minutes."""

    def __init__(self, path: Path, cache: Path | None, evaluate_on: str) -> None:
        self._raw, self._cache, self._part = read(path), cache, evaluate_on

    def of(self, row: Row, seed: int) -> tuple[nn.Module, nn.Module, str, Split]:
        """Return a model, what clients train of it and its prefix, and that part's inputs."""
        if row.model == "wide":
            wide, split = self._wide
            return wide, wide.head, "head.", split
        model = build("lenet5", 28, seed)
        return model, model, "", self._pixels

    @cached_property
    def _pixels(self) -> Split:
        raw = self._raw
        return raw.each(pixels(raw.x), pixels(raw.held_x)).evaluated_on(self._part)

    @cached_property
    def _wide(self) -> tuple[Wide, Split]:
        """Return the wide model, and what its trunk makes of images: that takes minutes once."""
        if self._cache is None:
            raise typer.BadParameter("--cache names the file for what the trunk makes of images")
        trunk, raw = Wide(), self._raw
        if not self._cache.exists():
            train, test = (trunk.features(some).numpy() for some in (raw.x, raw.held_x))
            np.savez(self._cache, train=train, test=test)
        with np.load(self._cache) as file:
            found = [torch.from_numpy(file[part]) for part in ("train", "test")]
        some = trunk.features(raw.held_x[:_CHECKED])
        if not torch.allclose(some, found[1][:_CHECKED], atol=0.05):
            raise typer.BadParameter("--cache holds what another trunk made")
        return trunk, raw.each(*found).evaluated_on(self._part)


def train(row: Row, models: Models, seed: int) -> Run:
    """Train a row's model once; return its accuracy and what clients spent and sent."""
    model, trained, prefix, split = models.of(row, seed)
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
    count = row.clients * len(split.y) // _IMAGES
    clients = Clients(split.x, torch.from_numpy(split.y), shares(split.y, count, None, seed))
    app = client_app(trained, prefix, clients, Local(row.steps, row.rate))
    last, facts = run_once(strategy, app, first, row.rounds, count, strict=False)
    frozen = [name for name in first if prefix and not name.startswith(prefix)]
    if any(last[name].data != first[name].data for name in frozen):
        raise RuntimeError("the frozen part has moved")
    load(model, last)
    told = outputs(trained, split.held_x).argmax(dim=1)
    return {
        "accuracy": float((told.numpy() == split.held_y).mean()),
        "weights": sum(one.numel() for one in model.parameters()),
        "trained_weights": sum(one.numel() for one in trained.parameters()),
        **facts,
    }


def summary(runs: list[Run]) -> list[Run]:
    """Return mean and spread over seeds, for each row with its settings and part of the data."""
    made = []
    for mine in groups(runs, lambda one: [one["evaluated_on"], one["row"]]):
        first = mine[0]
        made.append(
            {
                "row": first["row"]["name"],
                "evaluated_on": first["evaluated_on"],
                "weights": first["weights"],
                "trained_weights": first["trained_weights"],
                "dimension": first["row"]["dimension"],
                "clients": first["clients_asked"],
                "epsilon_total": max(one["epsilon_total_most"] for one in mine),
                **spread(mine, None),
                "payload_bytes": first["payload_bytes"],
                "message_bytes": max(one["message_bytes"] for one in mine),
            }
        )
    return made


def main(
    data: options.Mnist,
    cache: options.Cache = None,
    seeds: options.Seeds = 3,
    only: options.Only = None,
    changes: options.Changes = None,
    evaluate_on: options.EvaluateOn = "test",
    output: options.Output = options.RESULTS / "large_models.json",
) -> None:
    """Train each row with each seed, and write means and spreads."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    models, runs = Models(data, cache, evaluate_on), Runs(output, summary)
    wanted = [options.changed(row, changes) for row in ROWS if not only or row.name in only]
    for row, seed in itertools.product(wanted, range(1, seeds + 1)):
        one: Run = {"row": asdict(row), "seed": seed, "evaluated_on": evaluate_on}
        runs.make(one, partial(train, row, models, seed))
    runs.show()


if __name__ == "__main__":
    typer.run(main)
