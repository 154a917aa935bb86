"""The data, cut into a public part and one part for each client, and the model."""

import numpy as np
from sklearn.datasets import load_digits

PUBLIC = 600


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return public images, private images and their labels."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    return images[:PUBLIC], images[PUBLIC:], labels[PUBLIC:]


def probabilities(weights: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return rows of class probabilities; the last row of ``weights`` is the bias."""
    scores = images @ weights[:-1] + weights[-1]
    likely = np.exp(scores - scores.max(axis=1, keepdims=True))
    return likely / likely.sum(axis=1, keepdims=True)


def loss(rows: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean cross-entropy."""
    return float(-np.log(rows[np.arange(len(labels)), labels] + 1e-9).mean())


def train(weights: np.ndarray, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the weights after 60 full-batch gradient steps."""
    weights = weights.copy()
    for _ in range(60):
        error = probabilities(weights, images)
        error[np.arange(len(labels)), labels] -= 1
        weights -= np.vstack([images.T @ error, error.sum(axis=0)]) / len(labels)
    return weights.astype(np.float32)
