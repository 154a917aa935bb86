"""Real images' features, read once per process, split among clients."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from asked_once_example import digits, head


class Split(NamedTuple):
    """Features of images, float64 (n, 28), and their labels (n,)."""

    features: NDArray[np.float64]
    labels: NDArray[np.integer[Any]]


@lru_cache(maxsize=2)
def load(source: str, evaluate_on: str, seed: int) -> tuple[Split, Split]:
    """Return images for the clients to train on, and held-out ones for the server.

    Parameters
    ----------
    source : str
        ``"digits"``, or the path of a file in MNIST's layout.
    evaluate_on : {"test", "validation"}
        Whether the held-out images are the test set or a tenth of the training set, which
        the clients then do not have.
    seed : int
        Of the random split.
    """
    x_train, x_test, y_train, y_test = digits.read(source)
    if evaluate_on == "validation":
        x_train, x_test, y_train, y_test = train_test_split(
            x_train, y_train, test_size=0.1, stratify=y_train, random_state=seed
        )
    elif evaluate_on != "test":
        raise ValueError(f"evaluate-on must be 'test' or 'validation', got {evaluate_on!r}")
    return Split(head.features(x_train), y_train), Split(head.features(x_test), y_test)


@lru_cache(maxsize=2)
def partitions(images: int, seed: int, clients: int) -> tuple[NDArray[np.int64], ...]:
    """Return each client's images: equal random shares.

    Raises
    ------
    ValueError
        If there are fewer images than clients.
    """
    if clients > images:
        raise ValueError(f"{images} images are too few for {clients} clients")
    return tuple(np.array_split(np.random.default_rng(seed).permutation(images), clients))
