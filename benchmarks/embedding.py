"""Accuracy of split learning on MNIST against what a record has cost in all.

Everything runs through the package: parties behind the gate, released embeddings, a server
with labels and a top model, in one process. Test records are released at the same cost. A
bottom is a linear layer over fixed wavelet features (``benchmarks/_wavelets.py``).

    python benchmarks/embedding.py /path/to/mnist.npz

Settings were chosen in trials of the bottoms alone on a tenth of the training images that was
held out, one run a setting (``--held-out`` trains on the other nine and evaluates there); the
test images are read for the reported figures only. ``--only codes`` runs one part. Each part
is written as soon as it is done.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import _bottoms as bottoms
import _options as options
import numpy as np
import torch
import typer
from _codes import CodeBottom, TrainCodes
from _environment import report
from _networks import descend
from _runs import deviation, say
from _split_bench import CLASSES, HALVES, LABEL_EPSILON, Bench, exchange, load, new_top
from _timing import times
from torch import Tensor, nn

from flower_ldp.mechanisms import BottomModelClaim, KaryResponse, UnaryEncoding, best_accuracy
from flower_ldp.split import ForwardCorrected, TorchTop
from flower_ldp.strategies import SplitStrategy

SPEEDS = ("records-per-second", "records-per-second-unsplit", "ratio")
#: Epsilon of each of two parties, and how many codes they have.
CODES_OF_TWO = {8.0: 32, 6.0: 10, 5.0: 4, 4.0: 4}
#: For each label the group that a party names, where codes are groups. The two cut across each
#: other, and labels that a side of the image cannot tell apart share a group on that side: found
#: by annealing on nine tenths of the training images.
GROUPS = {"left": (0, 3, 3, 2, 1, 2, 0, 2, 3, 1), "right": (3, 2, 3, 1, 2, 0, 0, 3, 1, 1)}


class Part(str, Enum):
    """What is measured."""

    CODES = "codes"
    PAIR = "pair"
    STRICT = "strict"
    FLOOR = "floor"
    BITS = "bits"


Row = dict[str, Any]


def one_party(bench: Bench, seed: int) -> Iterator[Row]:
    """One party with whole images, its bottom trained on randomized labels."""
    noisy = bench.noisy_labels()
    party = bench.party("whole", CLASSES, BottomModelClaim("conditional"), seed, bottoms.adam)
    for epsilon in (8.0, 6.0, 5.0, 4.0):
        yield row(bench.codes([party], epsilon, noisy), "conditional", [epsilon])


def two_parties(bench: Bench, seed: int) -> Iterator[Row]:
    """Two parties with half of each image: codes that are labels, and codes made for two."""
    noisy = bench.noisy_labels()
    claim = BottomModelClaim("conditional")
    plain = [bench.party(side, CLASSES, claim, seed, bottoms.adam) for side in HALVES]
    for epsilon in CODES_OF_TWO:
        accuracy = bench.codes(plain, epsilon, noisy)
        yield {**row(accuracy, "conditional", [epsilon, epsilon]), "codes": "10, the labels"}
    trains = {side: TrainCodes(GROUPS[side], seed) for side in HALVES}
    for epsilon, codes in CODES_OF_TWO.items():
        make = partial(CodeBottom, classes=CLASSES, codes=codes)
        parties = [
            bench.party(side, codes, claim, seed, trains[side], bottom=make) for side in HALVES
        ]
        accuracy = bench.codes(parties, epsilon, noisy, codes)
        kind = "groups of labels" if codes < CLASSES else "centres"
        yield {**row(accuracy, "conditional", [epsilon, epsilon]), "codes": f"{codes}, {kind}"}


def strict(bench: Bench, seed: int) -> Iterator[Row]:
    """One party whose bottom is trained by DP-SGD at epsilon 2 under two relations."""
    noisy = bench.noisy_labels()
    published = bottoms.replace_one(2.0, len(bench.data.labels["train"]))
    for relation, epsilon in (("add-or-remove-one", published), ("replace-one", 2.0)):
        train = bottoms.DpSgd(epsilon)
        claim = BottomModelClaim("dp", epsilon, bottoms.DELTA)
        party = bench.party("whole", CLASSES, claim, seed, train)
        accuracy = bench.codes([party], 6.0, noisy)
        if train.plan is None:
            raise RuntimeError("the bottom was not trained")
        removed = train.plan.epsilon(bottoms.DELTA, replace=False)
        yield {
            **row(accuracy, "dp", [6.0]),
            "training": f"epsilon 2, delta {bottoms.DELTA:g}, {relation}",
            "noise-multiplier": round(train.plan.noise_multiplier, 4),
            "epsilon-training-add-or-remove-one": round(removed, 4),
            "epsilon-training-replace-one": round(epsilon, 4),
            "epsilon-record-replace-one": round(6.0 + epsilon, 4),
            "accuracy-before-release": bench.before_release(party),
        }


def floor(bench: Bench, seed: int) -> Iterator[Row]:
    """Learn from a labelled public tenth instead: what it gives alone, and as a bottom."""
    labels = bench.data.labels["train"]
    tenth = np.random.default_rng(seed).permutation(len(labels))[: len(labels) // 10]
    party = bench.party("whole", CLASSES, BottomModelClaim("public"), seed)
    features, sure = bench.features("whole")["train"], KaryResponse(100.0, CLASSES)
    correct = ForwardCorrected(sure)
    bottoms.adam(party.bottom, features[tenth], torch.from_numpy(labels[tenth]), correct)
    yield {
        "claim": "none: no record of a party is used",
        "epsilon-parties": [],
        "accuracy": bench.before_release(party),
        "what": "the public tenth alone",
    }
    yield row(bench.codes([party], 8.0, None), "public", [8.0])


def bitwise(bench: Bench, seed: int) -> Iterator[Row]:
    """128 bits trained through the top, as published; and the same model unsplit.

    Epochs of the two alternate, over the same blocks of 128, and processor time is taken: what
    else the machine does disturbs both alike. The unsplit model has neither bits nor noise.
    """
    width, label, epochs = 128, 5.0, 4
    party = bench.party("whole", width, BottomModelClaim("conditional"), seed, rate=5e-4)
    mechanism = UnaryEncoding(label, width)
    top = TorchTop(new_top(width), lambda parameters: torch.optim.Adam(parameters, 1e-3))
    strategy = SplitStrategy(top, mechanism, bench.tables, bench.data.labels, parties=1)
    ended = []

    def epoch() -> None:
        ended.append(strategy.start(exchange([party]), epochs=1, evaluate_every=0))

    found = times({"split": epoch, "unsplit": unsplit(bench, width, seed)}, epochs, warm_up=0)
    accuracy = strategy.evaluate(exchange([party]), ended[-1].parties)["accuracy-test"]
    records, split, whole = len(bench.data.labels["train"]), found["split"], found["unsplit"]
    yield {
        **row(accuracy, "conditional", [epochs * mechanism.record_epsilon], limit=False),
        "label-epsilon": label,
        "bits": width,
        "epochs": epochs,
        "records-per-second": round(records / split.cpu),
        "records-per-second-unsplit": round(records / whole.cpu),
        "ratio": round(split.cpu / whole.cpu, 3),
    }


def unsplit(bench: Bench, width: int, seed: int) -> Callable[[], None]:
    """Return an epoch of the same model in one piece, which learns from all blocks once."""
    torch.manual_seed(seed)
    features, tables = bench.features("whole")["train"], bench.tables
    labels = torch.from_numpy(bench.data.labels["train"])
    bottom, top = nn.Linear(features.shape[1], width), new_top(width)
    groups = [{"params": bottom.parameters(), "lr": 5e-4}, {"params": top.parameters(), "lr": 1e-3}]
    optimizer = torch.optim.Adam(groups)

    def loss(rows: Tensor) -> Tensor:
        inputs = torch.from_numpy(features[rows.numpy()].astype(np.float32))
        return nn.functional.cross_entropy(top(bottom(inputs)), labels[rows])

    def epoch() -> None:
        blocks = (tables.rows("train", block) for block in range(tables.blocks("train")))
        descend(optimizer, map(torch.from_numpy, blocks), loss)

    return epoch


def row(accuracy: float, claim: str, epsilons: list[float], *, limit: bool = True) -> Row:
    """Return a result with what its epsilon covers, and the limit of any mechanism."""
    found: Row = {"claim": claim, "epsilon-parties": epsilons, "accuracy": accuracy}
    if limit:
        found["limit"] = round(best_accuracy(sum(epsilons), CLASSES), 5)
    return found


MEASURES = {
    Part.CODES: one_party,
    Part.PAIR: two_parties,
    Part.STRICT: strict,
    Part.FLOOR: floor,
    Part.BITS: bitwise,
}


def summary(runs: list[list[Row]]) -> list[Row]:
    """Return the rows of the first seed, with mean accuracies and median speeds over all."""
    found = []
    for same in zip(*runs, strict=True):
        accuracies = [one["accuracy"] for one in same]
        speeds = {
            key: round(statistics.median(one[key] for one in same), 3)
            for key in SPEEDS
            if key in same[0]
        }
        figures = {
            "accuracy": round(statistics.mean(accuracies), 5),
            "standard-deviation": deviation(accuracies, 5) or 0.0,
            "accuracies": accuracies,
        }
        found.append(same[0] | speeds | figures)
    return found


def main(
    mnist: options.Mnist,
    seeds: options.Seeds = 3,
    only: Annotated[list[Part] | None, typer.Option(help="Parts to run; repeatable.")] = None,
    held_out: Annotated[bool, typer.Option(help="Evaluate on a tenth of the training.")] = False,
    output: Annotated[Path, typer.Option(help="Folder for the result files.")] = options.RESULTS,
) -> None:
    """Measure, print a line for each row and write one file for each part."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(load(mnist, held_out), Path(folder))
        for part in only or list(Part):
            rows = summary([list(MEASURES[part](bench, seed)) for seed in range(seeds)])
            for one in rows:
                say({"part": part.value, **one})
            body = {"torch": torch.__version__, "label-epsilon": LABEL_EPSILON, "rows": rows}
            report(output / f"embedding-{part.value}.json", body)


if __name__ == "__main__":
    typer.run(main)
