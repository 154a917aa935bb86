"""A linear layer over low frequencies of an image: 280 weights, and no number learned beforehand.

Few weights are what makes a small epsilon enough: noise is spread over all of them. Rows are of
classes, and a constant feature stands for the bias, so that a row is one block of a code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn

CLASSES = 10
#: Frequencies of both directions add up to less than that; the constant one is left out.
_FREQUENCIES = 7
_CONSTANT = 0.3

Floats = NDArray[np.floating[Any]]


def features(images: Floats) -> NDArray[np.float64]:
    """Return unit vectors of an image's low frequencies, shape (n, 28).

    Natural images have the less energy the higher a frequency is; a factor makes up for that.

    Parameters
    ----------
    images : ndarray of floats, shape (n, side, side)
    """
    side = images.shape[-1]
    total = np.add.outer(np.arange(side), np.arange(side))
    low = (total > 0) & (total < _FREQUENCIES)
    found = dctn(images, axes=(1, 2), norm="ortho")[:, low] * np.sqrt(1.0 + 2.0 * total[low] ** 2)
    found = np.column_stack([_unit(found), np.full(len(found), _CONSTANT)])
    return _unit(found)


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def initial() -> NDArray[np.float32]:
    """Return the layer before training, shape (10, 28): zeros."""
    return np.zeros((CLASSES, features(np.zeros((1, 8, 8))).shape[1]), dtype=np.float32)


def _probabilities(weights: Floats, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
    logits = inputs @ weights.T
    found = np.exp(logits - logits.max(axis=1, keepdims=True))
    return found / found.sum(axis=1, keepdims=True)


def trained(
    weights: Floats,
    inputs: NDArray[np.float64],
    labels: NDArray[np.integer[Any]],
    steps: int,
    rate: float,
) -> tuple[NDArray[np.float32], float]:
    """Return the layer after steps of gradient descent on the cross-entropy, and its last loss."""
    weights = weights.astype(np.float64)
    wanted = np.eye(CLASSES)[labels]
    for _ in range(steps):
        weights -= rate * (_probabilities(weights, inputs) - wanted).T @ inputs / len(inputs)
    return weights.astype(np.float32), accuracy_and_loss(weights, inputs, labels)[1]


def accuracy_and_loss(
    weights: Floats, inputs: NDArray[np.float64], labels: NDArray[np.integer[Any]]
) -> tuple[float, float]:
    """Return the fraction of right labels and the mean cross-entropy."""
    found = _probabilities(weights, inputs)
    right = found[np.arange(len(labels)), labels]
    return (
        float((found.argmax(axis=1) == labels).mean()),
        float(-np.log(np.maximum(right, 1e-300)).mean()),
    )
