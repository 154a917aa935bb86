"""UnSplit and label inference against small split models, with and without protection.

    pip install -e '.[benchmarks]'
    python benchmarks/split_attacks.py mnist.npz

- Inversion: ``benchmarks/_unsplit.py``, on the first test images of each class. The surrogate
  bottom under the server's own top is the stolen model.
- Known labels: the labels of training records from their embeddings and 40 known labels, by the
  party or by an observer.
- Gradients: the same from what the server sends back in the first epoch.

Settings of UnSplit were chosen in trials on training images. Noise takes no seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Annotated, Any

import _options as options
import numpy as np
import torch
import typer
from _environment import report
from _inversion import nearness
from _label_inference import KNOWN, Records, from_embeddings, from_gradients
from _runs import deviation, say
from _split_bench import CLASSES, Data, load
from _split_targets import (
    BATCH,
    Cut,
    Labels,
    as_images,
    embeddings,
    first_of_each,
    randomized,
    trained,
)
from _unsplit import unsplit
from torch import Tensor

from flower_ldp.mechanisms import best_accuracy

LABELS = 1.0
CODES = Cut("codes", 4.0, LABELS)
INVERTED = [
    (Cut("float"), True),
    (Cut("float"), False),
    (Cut("bits"), False),
    (Cut("bits", 5.0), True),
    (Cut("bits", 5.0), False),
    (Cut("bits", 1.0), False),
    (CODES, False),
    (Cut("float", bottom="mlp"), False),
    (Cut("bits", 5.0, bottom="mlp"), False),
    (Cut("bits", 1.0, bottom="mlp"), False),
]
OBSERVED = [
    Cut("float", bottom="mlp"),
    Cut("bits", bottom="mlp"),
    Cut("bits", 5.0, bottom="mlp"),
    Cut("bits", 1.0, bottom="mlp"),
    Cut("codes", 4.0, LABELS, "mlp"),
]
#: Whose party attacks, with embeddings before the cut.
PARTIES = [Cut("float", bottom="mlp"), Cut("float", labels=LABELS, bottom="mlp")]
RETURNED = [
    Cut("float", bottom="mlp"),
    Cut("float", labels=LABELS, bottom="mlp"),
    Cut("bits", 5.0, bottom="mlp"),
    Cut("bits", 5.0, LABELS, "mlp"),
    Cut("bits", 1.0, bottom="mlp"),
    Cut("bits", 1.0, LABELS, "mlp"),
]
#: Blocks whose labels are inferred: of the first epoch, after some steps.
SKIPPED, BLOCKS = 4, 32
#: Share of training records with a uniform label, where labels are inferred.
UNIFORM = 0.1

#: What a row is about; all else is measured.
FIXED = {"bottom", "crosses", "epsilon-record", "epsilon-label", "attack", "who", "limit"}

Row = dict[str, Any]


def described(cut: Cut) -> Row:
    """Return what a row is about."""
    return {
        "bottom": cut.bottom,
        "crosses": cut.name,
        "epsilon-record": cut.record_epsilon,
        "epsilon-label": cut.labels,
    }


def inversion(data: Data, records: int, images: int, steps: int, seed: int) -> Iterator[Row]:
    """Attack each cut by UnSplit; last, the mean training image instead."""
    inputs, tests = as_images(data, "train", records), as_images(data, "test")
    labels = data.labels["train"][:records]
    target = tests[torch.from_numpy(first_of_each(data.labels["test"], images))]
    shown = target[:, 0].numpy()
    for cut, published in INVERTED:
        found = trained(cut, inputs, labels, randomized(labels, cut.labels), seed)
        sent = cut.release(embeddings(found.bottom, target))
        guessed, surrogate = unsplit(cut, sent, steps, 1_000 + seed, published=published)
        near = nearness(shown, guessed)

        def accuracy(bottom: torch.nn.Module, *, noise: bool = False, of: Any = found) -> float:
            return float(of.accuracy(tests, data.labels["test"], bottom, noise=noise))

        yield {
            **described(cut),
            "attack": "published" if published else "adapted",
            "ssim": near.ssim,
            "mse": near.mse,
            "released-accuracy": accuracy(found.bottom, noise=True),
            "true-bottom-accuracy": accuracy(found.bottom),
            "surrogate-accuracy": accuracy(surrogate),
            "new-bottom-accuracy": accuracy(cut.new_bottom()),
        }
    mean = np.broadcast_to(inputs.mean(0).numpy(), shown.shape)
    near = nearness(shown, mean)
    yield {"attack": "mean image", "ssim": near.ssim, "mse": near.mse}


class LabelData:
    """Training records of which a share has uniform labels, and those that are attacked."""

    def __init__(self, data: Data, records: int, seed: int) -> None:
        self.images = as_images(data, "train", records)
        self.labels = data.labels["train"][:records].copy()
        draws = np.random.default_rng(seed)
        self.uniform = draws.random(len(self.labels)) < UNIFORM
        self.labels[self.uniform] = draws.integers(0, CLASSES, int(self.uniform.sum()))
        self.seed = seed

    def attacked(self, rows: Labels) -> Records:
        """Return the labels of some records, 40 of them known."""
        return Records.of(self.labels[rows], self.uniform[rows], self.seed)


def known_labels(of: LabelData) -> Iterator[Row]:
    """Infer labels from embeddings, with 40 known."""
    rows = np.arange(min(BLOCKS * BATCH, len(of.labels)))
    records, images = of.attacked(rows), of.images[: len(rows)]

    def row(who: str, embedded: Tensor, about: Row) -> Row:
        found = from_embeddings(np.asarray(embedded.numpy(), dtype=np.float32), records)
        return {"who": who, **about, **found}

    yield row("pixels", images.flatten(1), {})
    for cut in PARTIES:
        found = trained(cut, of.images, of.labels, randomized(of.labels, cut.labels), of.seed)
        about = {"bottom": cut.bottom, "epsilon-label": cut.labels}
        yield row("party", embeddings(found.bottom, images), about)
    for cut in OBSERVED:
        found = trained(cut, of.images, of.labels, randomized(of.labels, cut.labels), of.seed)
        sent = cut.release(embeddings(found.bottom, images))
        yield row("observer", sent, described(cut))


class Returned:
    """Rows and gradients of the blocks that are attacked."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []
        self.gradients: list[Tensor] = []

    def __call__(self, step: int, rows: Tensor, gradient: Tensor) -> None:
        """Keep a step's."""
        if SKIPPED <= step < SKIPPED + BLOCKS:
            self.rows.append(rows)
            self.gradients.append(gradient.clone())


def gradients(of: LabelData) -> Iterator[Row]:
    """Infer labels from what the server sends back."""
    for cut in RETURNED:
        used = randomized(of.labels, cut.labels)
        returned = Returned()
        trained(cut, of.images, of.labels, used, of.seed, returned)
        rows = torch.cat(returned.rows).numpy()
        found = from_gradients(torch.cat(returned.gradients).numpy(), of.attacked(rows), used[rows])
        limit = best_accuracy(math.inf if cut.labels is None else cut.labels, CLASSES)
        yield {
            **described(cut),
            **found,
            "limit": round(limit, 5),
        }


def summary(runs: list[list[Row]]) -> list[Row]:
    """Return the rows of the first seed, with means and deviations of what was measured."""
    found = []
    for same in zip(*runs, strict=True):
        row = dict(same[0])
        for key in [key for key in row if key not in FIXED]:
            values = [round(one[key], 5) for one in same]
            mean = round(statistics.mean(values), 5)
            row[key] = {"mean": mean, "deviation": deviation(values, 5), "seeds": values}
        found.append(row)
    return found


def main(
    mnist: options.Mnist,
    seeds: options.Seeds = 3,
    records: Annotated[int, typer.Option(min=100, help="Training records.")] = 20_000,
    images: Annotated[int, typer.Option(min=1, help="Test images of each class.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Steps of UnSplit.")] = 1_600,
    output: options.Output = options.RESULTS / "split_attacks.json",
) -> None:
    """Attack all settings, print a line for each; write one file, anew after each seed."""
    torch.set_num_threads(1)
    data = load(mnist, held_out=False)
    runs: dict[str, list[list[Row]]] = {"inversion": [], "known-labels": [], "gradients": []}
    for seed in range(seeds):
        of = LabelData(data, records, seed)
        parts = (inversion(data, records, images, steps, seed), known_labels(of), gradients(of))
        for (part, found), rows in zip(runs.items(), parts, strict=True):
            found.append([])
            for row in rows:
                found[-1].append(row)
                say({"seed": seed, "part": part, **row})
        body = {
            "torch": torch.__version__,
            "images-attacked": CLASSES * images,
            "known": KNOWN,
            "records-attacked": min(BLOCKS * BATCH, records),
            "uniform-share": UNIFORM,
        }
        report(output, body | {part: summary(found) for part, found in runs.items()})


if __name__ == "__main__":
    typer.run(main)
