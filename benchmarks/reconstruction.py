"""What images can be rebuilt from what crosses the cut: MSE and SSIM for each randomizer.

One party with whole images; the server, or whoever reads along, rebuilds the images of test
records from one release of each. ``benchmarks/_inversion.py`` says what the attacker has.
Accuracies are those of the same trained models, on the test records, each released once.

    pip install -e '.[benchmarks]'
    python benchmarks/reconstruction.py /path/to/mnist.npz

A row without noise or with the embeddings themselves is what split learning shows if nothing
is done; epsilon 0 and the mean image are what an attacker has who sees nothing. The models are
those of ``benchmarks/embedding.py``; the decoder's settings were not searched for.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any

import _bottoms as bottoms
import _options as options
import numpy as np
import torch
import typer
from _environment import report
from _inversion import Draw, Images, decode, mean_given_report, nearness
from _pictures import draw
from _runs import deviation, say
from _split_bench import CLASSES, LABEL_EPSILON, Bench, load
from _split_targets import Cut, embeddings, trained
from torch import nn

from flower_ldp.mechanisms import BottomModelClaim, RandomSource, best_accuracy
from flower_ldp.split import TorchParty
from flower_ldp.strategies import NoisyLabels

#: Both are trained through the top, as published; the bottom of codes on labels told once.
EPOCHS, RATE = 4, 5e-4
SETTINGS = [
    Cut("float", bottom="mlp"),
    Cut("bits", bottom="mlp"),
    Cut("bits", 5.0, bottom="mlp"),
    Cut("bits", 2.0, bottom="mlp"),
    Cut("bits", 2.0, bottom="mlp", releases=4),
    Cut("bits", 1.0, bottom="mlp"),
    Cut("bits", 0.0, bottom="mlp"),
    Cut("codes", 8.0),
    Cut("codes", 6.0),
    Cut("codes", 5.0),
    Cut("codes", 4.0),
]
FLOOR = "mean image"

Row = dict[str, Any]


def name_of(cut: Cut) -> str:
    """Return a cut's name for tables and pictures."""
    if cut.kind == "float":
        return "float"
    if cut.epsilon is None:
        return "bits, no noise"
    label = "label" if cut.kind == "bits" else "epsilon"
    times = f", {cut.releases} releases" if cut.releases > 1 else ""
    return f"{cut.kind}, {label} {cut.epsilon:g}{times}"


class Attack:
    """All settings on one set of data, for one seed."""

    def __init__(self, bench: Bench, side: str, seed: int, shown: int) -> None:
        self.bench, self.side, self.seed = bench, side, seed
        self.images: dict[str, Images] = {
            table: images.astype(np.float32) / np.float32(255)
            for table, images in bench.data.images.items()
        }
        self.rows = np.arange(min(shown, len(self.images["test"])))
        self.target = self.images["test"][self.rows]
        self._trained = lru_cache(maxsize=1)(self._trained_through)
        self.found: dict[str, Images] = {}

    def floor(self) -> Row:
        """Answer with the mean image, whatever is asked."""
        mean = self.images["train"].mean(axis=0)
        return self._row(FLOOR, np.broadcast_to(mean, self.target.shape))

    def run(self, cut: Cut) -> Row:
        """Train what makes the releases, then attack it."""
        if cut.kind == "codes":
            accuracy, found = self._against_codes(cut)
        else:
            draw, accuracy = self._trained(replace(cut, releases=1))
            found = decode(draw, cut.releases, self.images["train"], self.rows, self.seed)
        row = self._row(name_of(cut), found)
        row["label-epsilon"] = cut.epsilon if cut.kind == "bits" else None
        row["epsilon-record"] = cut.record_epsilon
        row["accuracy"] = accuracy
        if cut.kind == "codes" and cut.epsilon is not None:
            row["limit"] = round(best_accuracy(cut.epsilon, CLASSES), 5)
        return row

    def _trained_through(self, cut: Cut) -> tuple[Draw, float]:
        """Train bottom and top with the cut between them; return releases and the accuracy."""
        labels, width = self.bench.data.labels, cut.width
        inputs = {
            table: torch.from_numpy(rows) for table, rows in self.bench.features(self.side).items()
        }
        found = trained(
            cut,
            inputs["train"],
            labels["train"],
            labels["train"],
            self.seed,
            bottom=lambda: nn.Linear(inputs["train"].shape[1], width),
            epochs=EPOCHS,
            rate=RATE,
        )
        accuracy = found.accuracy(inputs["test"], labels["test"], found.bottom, noise=True)
        known = {table: embeddings(found.bottom, rows) for table, rows in inputs.items()}
        if cut.kind == "bits":
            return lambda table, rows: 2 * cut.release(known[table][rows]) - 1, accuracy
        middle, spread = known["train"].mean(0), known["train"].std(0)
        scaled = {table: (rows - middle) / (spread + 1e-6) for table, rows in known.items()}
        return lambda table, rows: scaled[table][rows], accuracy

    @cached_property
    def _coding(self) -> tuple[TorchParty, NoisyLabels]:
        """A party whose bottom gives codes, and labels told once; its first release trains it."""
        claim = BottomModelClaim("conditional")
        party = self.bench.party(self.side, CLASSES, claim, self.seed, bottoms.adam)
        return party, self.bench.noisy_labels()

    def _against_codes(self, cut: Cut) -> tuple[float, Images]:
        party, noisy = self._coding
        mechanism = cut.codebook()
        accuracy = self.bench.codes([party], mechanism.epsilon, noisy)
        true = {
            table: np.asarray(party.embed(table, np.arange(len(labels))).argmax(axis=1), np.int64)
            for table, labels in self.bench.data.labels.items()
        }
        answers = mean_given_report(mechanism, true["train"], self.images["train"])
        source = RandomSource.from_os()
        return accuracy, answers[
            mechanism.response.randomize_array(true["test"][self.rows], source)
        ]

    def shown(self) -> dict[str, Images]:
        """Return originals and reconstructions, one image of each class."""
        labels = self.bench.data.labels["test"][self.rows]
        first = [int(np.flatnonzero(labels == label)[0]) for label in np.unique(labels)]
        whole = {"original": self.target, **self.found}
        return {name: images[first] for name, images in whole.items()}

    def _row(self, name: str, found: Images) -> Row:
        self.found[name] = found
        near = nearness(self.target, found)
        return {"setting": name, "mse": near.mse, "ssim": near.ssim}


def summary(runs: list[list[Row]]) -> list[Row]:
    """Return each setting with means and standard deviations over seeds."""
    found = []
    for same in zip(*runs, strict=True):
        row = dict(same[0])
        for key in [key for key in ("accuracy", "mse", "ssim") if key in row]:
            values = [round(one[key], 5) for one in same]
            row[key] = round(statistics.mean(values), 5)
            row[f"{key}-deviation"], row[f"{key}-seeds"] = deviation(values, 5), values
        found.append(row)
    return found


def main(
    mnist: options.Mnist,
    seeds: options.Seeds = 3,
    images: Annotated[int, typer.Option(min=10, help="Test images to rebuild.")] = 2_500,
    pixels: Annotated[bool, typer.Option(help="A bottom over pixels, without wavelets.")] = False,
    held_out: Annotated[bool, typer.Option(help="Attack a tenth of the training.")] = False,
    output: options.Output = options.RESULTS / "reconstruction.json",
    pictures: Annotated[Path | None, typer.Option(help="Where to draw the first seed.")] = None,
) -> None:
    """Attack every setting, print a line for each; write one file, anew after each seed."""
    torch.set_num_threads(1)
    runs: list[list[Row]] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(load(mnist, held_out), Path(folder))
        for seed in range(seeds):
            attack = Attack(bench, "pixels" if pixels else "whole", seed, images)
            runs.append([])
            for cut in SETTINGS:
                runs[-1].append(attack.run(cut))
                say({"seed": seed, **runs[-1][-1]})
            runs[-1].append(attack.floor())
            if seed == 0 and pictures is not None:
                draw(attack.shown(), pictures, 1.85)
            body = {"torch": torch.__version__, "label-epsilon-of-codes": LABEL_EPSILON}
            report(output, body | {"rows": summary(runs)})


if __name__ == "__main__":
    typer.run(main)
