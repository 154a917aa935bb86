"""In the place of Hugging Face's datasets: iris, and digits in the sizes of larger images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.datasets import load_digits, load_iris

#: Of the digits: enough to train on, and few enough for a test.
TRAIN, TEST = 480, 120
FEATURES = ["sepal_length", "sepal_width", "petal_length", "petal_width"]
Columns = dict[str, Any]


@dataclass(frozen=True)
class Records:
    """Columns of records; what a DataLoader and the apps ask of a data set."""

    columns: Columns
    transform: Callable[[Columns], Columns] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, slice):  # with_format("pandas")[:]
            return Frame(self.columns)
        batch = {name: [column[which]] for name, column in self.columns.items()}
        batch = self.transform(batch) if self.transform else batch
        return {name: column[0] for name, column in batch.items()}

    def at(self, which: Any) -> Records:
        return replace(self, columns={name: one[which] for name, one in self.columns.items()})

    def shuffled(self, seed: int) -> Records:
        return self.at(np.random.default_rng(seed).permutation(len(self)))

    def with_format(self, _: str) -> Records:
        return self

    def with_transform(self, transform: Callable[[Columns], Columns]) -> Records:
        return replace(self, transform=transform)

    def train_test_split(self, *, test_size: float, seed: int) -> Splits:
        held_out, shuffled = round(test_size * len(self)), self.shuffled(seed)
        return Splits(
            train=shuffled.at(slice(held_out, None)), test=shuffled.at(slice(None, held_out))
        )


class Splits(dict[str, Records]):
    """A training and a test set."""

    def with_transform(self, transform: Callable[[Columns], Columns]) -> Splits:
        return Splits({name: one.with_transform(transform) for name, one in self.items()})


@dataclass(frozen=True)
class Frame:
    """What the app with a logistic regression does with a data frame."""

    columns: Columns

    def __getitem__(self, which: Any) -> Values:
        if isinstance(which, list):
            return Values(np.stack([self.columns[name] for name in which], axis=1))
        return Values(self.columns[which])


@dataclass(frozen=True)
class Values:
    values: Any

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, which: slice) -> Values:
        return Values(self.values[which])


def load_dataset(name: str, split: str | None = None) -> Any:
    """Return records that scikit-learn ships, in the shape of those of another name."""
    splits = _iris() if name == "hitorilabs/iris" else _images(*IMAGES[name])
    return splits if split is None else splits[split]


def _iris() -> Splits:
    rows, species = load_iris(return_X_y=True)
    columns = dict(zip(FEATURES, rows.T, strict=True))
    return Splits(train=Records({**columns, "species": species}))


#: The names of their columns, and what image is made of a digit.
IMAGES = {
    "uoft-cs/cifar10": ("img", 0, 4, 3),
    "ylecun/mnist": ("image", 2, 3, 1),
    "zalando-datasets/fashion_mnist": ("image", 2, 3, 1),
}


def _images(column: str, border: int, times: int, channels: int) -> Splits:
    pixels, labels = load_digits(return_X_y=True)
    small = np.round(pixels[: TRAIN + TEST].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    large = small.repeat(times, axis=1).repeat(times, axis=2)
    edged = np.pad(large, ((0, 0), (border, border), (border, border)))
    found = Records(
        {
            column: np.repeat(edged[..., None], channels, axis=3),
            "label": labels[: TRAIN + TEST],
        }
    )
    return Splits(train=found.at(slice(TRAIN)), test=found.at(slice(TRAIN, None)))
