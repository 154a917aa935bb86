"""Softmax regression on scikit-learn's digits, in numpy."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

FEATURES, LABELS = 64, 10

Vectors = NDArray[np.float32]


def initial_model() -> ArrayRecord:
    """Return a model of zeros."""
    return record(np.zeros((FEATURES + 1, LABELS), dtype=np.float32))


def record(weights: Vectors) -> ArrayRecord:
    """Put a model into a record."""
    return ArrayRecord({"weights": Array(weights)})


def weights_of(arrays: ArrayRecord) -> Vectors:
    """Take a model out of a record."""
    return np.asarray(arrays["weights"].numpy(), dtype=np.float32)


def examples(part: int, parts: int) -> tuple[Vectors, NDArray[np.int64]]:
    """Return every ``parts``-th example from ``part`` on: features with a constant, labels."""
    x, y = _digits()
    order = np.random.default_rng(0).permutation(len(y))[part::parts]
    features = np.column_stack((x[order] / 16, np.ones(len(order))))
    return features.astype(np.float32), y[order]


def train(weights: Vectors, part: int, parts: int, steps: int = 30) -> Vectors:
    """Return the model after some steps of gradient descent on one part."""
    x, y = examples(part, parts)
    wanted = np.eye(LABELS, dtype=np.float32)[y]
    for _ in range(steps):
        weights = weights - x.T @ (_probabilities(x @ weights) - wanted) / np.float32(len(y))
    return weights.astype(np.float32)


def predictions(weights: Vectors, part: int, parts: int) -> tuple[Vectors, float]:
    """Return the model's rows of class probabilities on one part, and its loss."""
    x, y = examples(part, parts)
    rows = _probabilities(x @ weights)
    return rows, float(-np.log(rows[np.arange(len(y)), y] + 1e-9).mean())


def accuracy(weights: Vectors, part: int, parts: int) -> float:
    """Return the share of one part's examples that the model gets right."""
    x, y = examples(part, parts)
    return float((np.argmax(x @ weights, axis=1) == y).mean())


def _digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Read the file in scikit-learn: importing that takes longer than all else that a node does."""
    package = importlib.util.find_spec("sklearn")
    folder = Path(str(package and package.origin)).parent
    table = np.loadtxt(folder / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


def _probabilities(scores: Vectors) -> Vectors:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
