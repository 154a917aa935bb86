"""Beside an app of Flower's: data sets of this disk, by the names that the app asks a hub for.

``FLOWER_APPS_DATA`` names the folder that :mod:`prepare` wrote, ``FLOWER_APPS_SEED`` a run's seed:
of the split among clients, and of the models' first weights. ``FLOWER_APPS_PART`` says what is
trained on and evaluated on:

* ``test``: all training rows, and test rows;
* ``tuning``: nine tenths of the training rows, and rows of the last tenth.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import datasets
import torch

DATA = Path(os.environ["FLOWER_APPS_DATA"])
SEED = int(os.environ["FLOWER_APPS_SEED"])
#: Where a benchmark reads what is held out, through an app's own loader.
HELD_OUT = "FLOWER_APPS_HELD_OUT"

#: Rows that are evaluated on, at most.
MOST = 2_000
#: What stands for what.
STANDS_FOR = {
    "uoft-cs/cifar10": "mnist-rgb",
    "ylecun/mnist": "mnist",
    "zalando-datasets/fashion_mnist": "mnist",
    "hitorilabs/iris": "mnist-waves",
    "scikit-learn/adult-census-income": "breast-cancer",
    "julien-c/titanic-survival": "breast-cancer",
    "stanfordnlp/imdb": "cloze",
}

datasets.disable_progress_bars()
torch.manual_seed(SEED)


def load_dataset(name: str, split: str = "train") -> Any:
    """Return the rows of a split; the training rows in an order of the seed's."""
    tuning = os.environ["FLOWER_APPS_PART"] == "tuning"
    held_out = split == "test" or HELD_OUT in os.environ
    folder = DATA / STANDS_FOR[name]
    if held_out and not tuning:
        return _some(datasets.load_from_disk(folder / "test"))
    rows = datasets.load_from_disk(folder / "train")
    tenth = len(rows) // 10
    if tuning:
        cut = len(rows) - tenth
        rows = rows.select(range(cut, len(rows)) if held_out else range(cut))
    return _some(rows) if held_out else rows.shuffle(seed=SEED, keep_in_memory=True)


def all_rows(name: str) -> Any:
    """Return the training rows, and then those held out: parties with other columns have both."""
    return datasets.concatenate_datasets([load_dataset(name), load_dataset(name, "test")])


def _some(rows: Any) -> Any:
    return rows.select(range(min(len(rows), MOST)))


class FederatedDataset:
    """Divides the training rows by a partitioner of Flower Datasets' own."""

    def __init__(self, *, dataset: str, partitioners: dict[str, Any], **_: object) -> None:
        self._partitioner = partitioners["train"]
        self._partitioner.dataset = load_dataset(dataset)

    def load_partition(self, partition_id: int, split: str = "train") -> Any:
        """Return a client's rows, or all rows held out where a benchmark asks for these."""
        if HELD_OUT in os.environ:
            return self._partitioner.dataset
        return self._partitioner.load_partition(partition_id)
