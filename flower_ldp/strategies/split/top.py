"""What split training asks of the server's model and of its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.wire.records import RecordTables

Rows = NDArray[np.float32]


class Top(Protocol):
    """The server's model over all parties' embeddings."""

    at: str | None
    """Name of the last step, which the strategy sets; ``""`` before the first. A top that is
    saved saves it too. None if this top sends no gradients, so that bottoms need not be at its
    step."""

    def step(
        self, embeddings: Sequence[Rows], labels: NDArray[np.int64]
    ) -> tuple[float, Sequence[Rows] | None]:
        """Learn from one block.

        Returns
        -------
        loss : float
            Before the step, mean over the block's labels.
        gradients : sequence of ndarray or None
            Of the loss, one for each party and shaped as its embeddings; None if this top
            has none to give.
        """

    def predict(self, embeddings: Sequence[Rows]) -> NDArray[np.int64]:
        """Return the labels of each record."""

    def loss(self, embeddings: Sequence[Rows], labels: NDArray[np.int64]) -> float:
        """Return the mean over the block's labels, and learn nothing."""


@runtime_checkable
class SavedTop(Top, Protocol):
    """A top that can be written to a file and read again."""

    def save(self, path: Path) -> None:
        """Write everything, ``at`` included, and replace the file as a whole."""

    def load(self, path: Path) -> None:
        """Read what :meth:`save` wrote."""


def checked_labels(
    tables: RecordTables, labels: Mapping[str, ArrayLike]
) -> dict[str, NDArray[np.int64]]:
    """Return the labels of each table as int64, one row for each record.

    Raises
    ------
    ValueError
        If a table has none, or they are not integers of one row for each record.
    """
    if set(labels) != set(tables.tables):
        raise ValueError(f"labels must be for {sorted(tables.tables)}, got {sorted(labels)}")
    found = {}
    for name, values in labels.items():
        array, records = np.asarray(values), len(tables.tables[name])
        if array.dtype.kind not in "iu" or array.ndim == 0 or len(array) != records:
            raise ValueError(
                f"labels of {name!r} must be integers, {records} or {records} rows of them, got "
                f"{array.dtype} {array.shape}"
            )
        if array.size == 0:
            raise ValueError(f"labels of {name!r} must be at least one for each record")
        found[name] = array.astype(np.int64)
    return found
