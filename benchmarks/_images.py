"""Images, or features of them, in MNIST's layout: all, or a tenth held out to choose by."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Split(NamedTuple):
    """What is trained on, and what is evaluated on; features are arrays or tensors."""

    x: Any
    y: NDArray[np.int64]
    held_x: Any
    held_y: NDArray[np.int64]

    def each(self, x: Any, held_x: Any) -> Split:
        """Return the same with other features."""
        return self._replace(x=x, held_x=held_x)

    def evaluated_on(self, part: str) -> Split:
        """Return all for ``"test"``; for ``"validation"`` the training images divided."""
        if part == "test":
            return self
        order = np.random.default_rng(0).permutation(len(self.y))
        held, kept = np.split(order, [len(order) // 10])
        return Split(self.x[kept], self.y[kept], self.x[held], self.y[held])


def read(path: Path) -> Split:
    """Read an npz file."""
    with np.load(path, allow_pickle=False) as file:
        y, held_y = (file[f"y_{part}"].astype(np.int64) for part in ("train", "test"))
        return Split(file["x_train"], y, file["x_test"], held_y)
