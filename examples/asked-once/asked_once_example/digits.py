"""Images of digits: scikit-learn's own, or an npz file in MNIST's layout.

Four examples have this very file. An app is packed from its own folder and installed alone, so it
cannot import from another; a test holds the copies to each other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class Digits(NamedTuple):
    """Standardized images (n, side, side) and their labels (n,), to train on and to test."""

    x_train: NDArray[np.floating[Any]]
    x_test: NDArray[np.floating[Any]]
    y_train: NDArray[np.integer[Any]]
    y_test: NDArray[np.integer[Any]]


def read(source: str) -> Digits:
    """Return the images of a source.

    Parameters
    ----------
    source : str
        ``"digits"``, or the path of a file with ``x_train``, ``y_train``, ``x_test`` and
        ``y_test``, images uint8 (n, side, side).
    """
    if source == "digits":
        x, y = load_digits(return_X_y=True)
        images = (x.reshape(-1, 8, 8) / 16 - 0.305) / 0.376
        return Digits(*train_test_split(images, y, test_size=0.2, stratify=y, random_state=0))
    with np.load(Path(source)) as file:
        return Digits(
            _standardized(file["x_train"]),
            _standardized(file["x_test"]),
            file["y_train"],
            file["y_test"],
        )


def _standardized(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    # MNIST's mean and deviation: published constants, not statistics of the clients' data
    return (pixels / np.float32(255) - np.float32(0.1307)) / np.float32(0.3081)
