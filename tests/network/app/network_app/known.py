"""What the client with a known update computes: the laws of its reports follow from it."""

import numpy as np
from numpy.typing import NDArray

from network_app.task import FEATURES, LABELS

LOSS = 1.0


def update() -> NDArray[np.float32]:
    """Return an update whose entries all differ, the largest first."""
    size = (FEATURES + 1) * LABELS
    falling = np.linspace(1.0, -1.0, size, dtype=np.float32)
    return falling.reshape(FEATURES + 1, LABELS)


def rows(count: int) -> NDArray[np.float32]:
    """Return sure predictions of the first classes in turn."""
    return np.eye(LABELS, dtype=np.float32)[np.arange(count) % LABELS]
