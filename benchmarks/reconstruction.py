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

import json
import statistics
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from _cut_layers import CodeParty, CutLayer, Setting, released, trained_through
from _environment import write_report
from _inversion import Images, decode, mean_given_report, nearness
from _split_bench import CLASSES, LABEL_EPSILON, Bench, load

from flower_ldp.mechanisms import CodebookEmbedding, best_accuracy

HERE = Path(__file__).resolve().parent
SETTINGS = [
    Setting("float"),
    Setting("bits"),
    Setting("bits", 5.0),
    Setting("bits", 2.0),
    Setting("bits", 2.0, releases=4),
    Setting("bits", 1.0),
    Setting("bits", 0.0),
    Setting("codes", 8.0),
    Setting("codes", 6.0),
    Setting("codes", 5.0),
    Setting("codes", 4.0),
]
FLOOR = "mean image"

Row = dict[str, Any]


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
        self._cut: tuple[float | None, bool, CutLayer] | None = None
        self._codes: CodeParty | None = None
        self.found: dict[str, Images] = {}

    def floor(self) -> Row:
        """Answer with the mean image, whatever is asked."""
        mean = self.images["train"].mean(axis=0)
        return self._row(FLOOR, np.broadcast_to(mean, self.target.shape))

    def run(self, setting: Setting) -> Row:
        """Train what makes the releases, then attack it."""
        if setting.kind == "codes":
            accuracy, found = self._against_codes(setting)
        else:
            cut = self._trained(setting)
            train, rows = self.images["train"], self.rows
            found = decode(cut.draw, setting.releases, train, rows, self.seed)
            accuracy = cut.accuracy
        row = self._row(setting.name, found)
        row["label-epsilon"] = setting.epsilon if setting.kind == "bits" else None
        row["epsilon-record"] = setting.record_epsilon
        row["accuracy"] = accuracy
        if setting.kind == "codes" and setting.epsilon is not None:
            row["limit"] = round(best_accuracy(setting.epsilon, CLASSES), 5)
        return row

    def _trained(self, setting: Setting) -> CutLayer:
        key = setting.epsilon, setting.kind == "bits"
        if self._cut is None or self._cut[:2] != key:
            self._cut = (*key, trained_through(self.bench, self.side, *key, self.seed))
        return self._cut[2]

    def _against_codes(self, setting: Setting) -> tuple[float, Images]:
        if setting.epsilon is None:
            raise ValueError("codes need an epsilon")
        if self._codes is None:
            self._codes = CodeParty.of(self.bench, self.side, self.seed)
        accuracy = self._codes.accuracy(setting.epsilon)
        mechanism = CodebookEmbedding(setting.epsilon, CLASSES)
        answers = mean_given_report(mechanism, self._codes.codes("train"), self.images["train"])
        return accuracy, answers[released(mechanism, self._codes.codes("test")[self.rows])]

    def _row(self, name: str, found: Images) -> Row:
        self.found[name] = found
        near = nearness(self.target, found)
        return {"setting": name, "mse": near.mse, "ssim": near.ssim}


def draw_pictures(attack: Attack, path: Path) -> None:
    """Write originals and reconstructions, one image of each class, a row for each setting."""
    from matplotlib.figure import Figure

    labels = attack.bench.data.labels["test"][attack.rows]
    shown = [int(np.flatnonzero(labels == label)[0]) for label in np.unique(labels)]
    rows = {"original": attack.target, **attack.found}
    width = 1.9 + 0.55 * len(shown)
    figure = Figure(figsize=(width, 0.55 * len(rows)), dpi=100)
    axes = figure.subplots(len(rows), len(shown), squeeze=False)
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        for axis, one in zip(line, shown, strict=True):
            axis.imshow(images[one], cmap="gray", vmin=0, vmax=1)
            axis.set_axis_off()
        line[0].text(-0.15, 0.5, name, transform=line[0].transAxes, ha="right", va="center")
    figure.subplots_adjust(
        left=1.85 / width, right=0.995, top=0.995, bottom=0.005, hspace=0.04, wspace=0
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def summary(runs: list[list[Row]]) -> list[Row]:
    """Return each setting with means and standard deviations over seeds."""
    found = []
    for same in zip(*runs, strict=True):
        row = dict(same[0])
        for key in ("accuracy", "mse", "ssim"):
            if key not in row:
                continue
            values = [round(one[key], 5) for one in same]
            row[key] = round(statistics.mean(values), 5)
            row[f"{key}-deviation"] = (
                round(statistics.stdev(values), 5) if len(values) > 1 else None
            )
            row[f"{key}-seeds"] = values
        found.append(row)
    return found


def main(
    mnist: Annotated[Path, typer.Argument(help="An npz file in MNIST's layout.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each setting.")] = 3,
    images: Annotated[int, typer.Option(min=10, help="Test images to rebuild.")] = 2_500,
    pixels: Annotated[bool, typer.Option(help="A bottom over pixels, without wavelets.")] = False,
    held_out: Annotated[bool, typer.Option(help="Attack a tenth of the training.")] = False,
    output: Annotated[Path, typer.Option(help="Result file.")] = HERE
    / "results/reconstruction.json",
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
            for setting in SETTINGS:
                runs[-1].append(attack.run(setting))
                print(seed, json.dumps(runs[-1][-1]), flush=True)
            runs[-1].append(attack.floor())
            if seed == 0 and pictures is not None:
                draw_pictures(attack, pictures)
            arguments = ["mnist.npz", f"--seeds {seed + 1}", f"--images {images}"]
            arguments += ["--pixels"] if pixels else []
            arguments += ["--held-out"] if held_out else []
            body = {
                "torch": torch.__version__,
                "label-epsilon-of-codes": LABEL_EPSILON,
                "rows": summary(runs),
            }
            write_report(output, "benchmarks/reconstruction.py", arguments, body)


if __name__ == "__main__":
    typer.run(main)
