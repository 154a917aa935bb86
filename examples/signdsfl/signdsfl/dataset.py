"""Images of digits and their split among clients: scikit-learn's own, or a file in MNIST's layout.

All is public to the simulation; a deployment reads each client's own data here instead.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class Images(NamedTuple):
    """Images as float32 tensor (n, 1, side, side), labels as int64 tensor (n,)."""

    images: torch.Tensor
    labels: torch.Tensor


@lru_cache(maxsize=2)
def load(source: str) -> tuple[Images, Images]:
    """Return the training and the test images of a source.

    Parameters
    ----------
    source : str
        ``"digits"``, or the path of an npz file with ``x_train``, ``y_train``, ``x_test`` and
        ``y_test``, images uint8 (n, side, side).
    """
    if source == "digits":
        x, labels = load_digits(return_X_y=True)
        scaled = (x.reshape(-1, 8, 8) / 16 - 0.305) / 0.376
        parts = train_test_split(scaled, labels, test_size=0.2, stratify=labels, random_state=0)
        return _images(parts[0], parts[2]), _images(parts[1], parts[3])
    with np.load(source) as file:
        # MNIST's mean and deviation: published constants, not statistics of the clients' data.
        train, test = ((file[f"x_{part}"] / 255 - 0.1307) / 0.3081 for part in ("train", "test"))
        return _images(train, file["y_train"]), _images(test, file["y_test"])


def _images(pixels: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]]) -> Images:
    return Images(
        torch.from_numpy(pixels.astype(np.float32)).unsqueeze(1),
        torch.from_numpy(labels.astype(np.int64)),
    )


@lru_cache(maxsize=2)
def partitions(source: str, clients: int, alpha: float, seed: int) -> tuple[NDArray[np.int64], ...]:
    """Split the training images among clients.

    Parameters
    ----------
    source : str
        As in :func:`load`.
    clients : int
        How many.
    alpha : float
        0 for equal random shares, else each label's shares are drawn from a Dirichlet
        distribution of this concentration; small is uneven.
    seed : int
        Of the split.

    Returns
    -------
    tuple of ndarray of int64
        Indices of each client's images, at least one each.
    """
    labels = load(source)[0].labels.numpy()
    rng = np.random.default_rng(seed)
    if not alpha:
        return tuple(np.array_split(rng.permutation(len(labels)), clients))
    shares: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(members)
        for share, part in zip(shares, np.split(members, cuts.astype(np.int64)), strict=True):
            share.append(part)
    joined = [np.concatenate(share) for share in shares]
    # A client without data cannot train: it gets one image.
    return tuple(part if len(part) else rng.integers(len(labels), size=1) for part in joined)
