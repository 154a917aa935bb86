"""Data sets with their labels replaced; for torch's ``Dataset``, which is not imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from flower_ldp.clients.labels.labels import private_labels
from flower_ldp.labels.stages import LabelStages, RandomizedLabels
from flower_ldp.mechanisms.inputs import read_label
from flower_ldp.mechanisms.labels import reports_are_labels
from flower_ldp.mechanisms.randomized_response import MAX_CATEGORIES, LabelMechanism


class LabelledData(Protocol):
    """What torch calls a map-style data set of items that end with their label."""

    def __len__(self) -> int:
        """Return the number of items."""

    def __getitem__(self, index: int, /) -> Any:
        """Return an item: a tuple or list whose last element is the label."""


@dataclass(frozen=True, eq=False)
class PrivateDataset:
    """A data set in which randomized labels stand in the place of the true ones.

    Works where a map-style ``torch.utils.data.Dataset`` does, in a ``DataLoader`` too. It
    holds the examples of the stage that was randomized, which is all of them unless there
    are several stages.

    Parameters
    ----------
    dataset : LabelledData
        With the true labels, which are never handed out.
    labels : RandomizedLabels
        Of this data set.

    Raises
    ------
    ValueError
        If the reports are no labels but sets of them.
    """

    dataset: LabelledData
    labels: RandomizedLabels

    def __post_init__(self) -> None:
        _check_reports(self.labels.mechanism)

    def __len__(self) -> int:
        return len(self.labels.reports)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Return an item of the data set with its randomized label as the last element."""
        place = range(len(self))[index]  # raises IndexError at the end, as a sequence must
        *features, _ = self.dataset[int(self.labels.members[place])]
        return *features, int(self.labels.reports[place])


def true_labels(dataset: LabelledData) -> NDArray[np.int64]:
    """Read the label of each item, in order; -1 for one that is no integer of at least 0.

    Raises
    ------
    ValueError
        If an item does not have the form of features and a label.
    """
    found = []
    for index in range(len(dataset)):
        item = dataset[index]
        if not isinstance(item, (tuple, list)) or len(item) < 2:
            raise ValueError("dataset must have items of features and a label, as (image, label)")
        found.append(read_label(item[-1], MAX_CATEGORIES))
    return np.array(found, dtype=np.int64)


def private_dataset(
    context: Context,
    dataset: LabelledData,
    *,
    mechanism: LabelMechanism | LabelStages,
    name: str = "train",
    stage: int = 0,
    prior: ArrayLike | None = None,
) -> PrivateDataset:
    """Return a data set with randomized labels: :func:`private_labels` for torch.

    Each item is read once for its label. The order of the items must stay the same from
    call to call, or the labels are refused as changed.

    Raises
    ------
    ValueError
        Also if the mechanism reports no labels but sets of them. Nothing was charged.
    """
    stages = mechanism if isinstance(mechanism, LabelStages) else LabelStages((mechanism,), (1,))
    _check_reports(stages.mechanism(stage))  # before anything is charged
    labels = private_labels(
        context,
        true_labels(dataset),
        mechanism=stages,
        name=name,
        stage=stage,
        prior=prior,
    )
    return PrivateDataset(dataset, labels)


def _check_reports(mechanism: LabelMechanism) -> None:
    if not reports_are_labels(mechanism):
        raise ValueError(
            f"mechanism {mechanism.name} reports sets, which take no label's place: use "
            "private_labels and the likelihood of what it returns"
        )
