"""Real images, read once per process, split among clients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from signds_example import digits


@dataclass(frozen=True)
class Split:
    """Images as float32 tensors (n, 1, side, side), labels as int64 (n,)."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Data:
    """Training images for the clients, held-out images for the server."""

    train: Split
    held_out: Split

    @property
    def side(self) -> int:
        """Width and height of an image."""
        return int(self.train.images.shape[-1])


@lru_cache(maxsize=2)
def load(source: str, evaluate_on: str, seed: int) -> Data:
    """Load scikit-learn's digits, or an npz file in MNIST's layout.

    Parameters
    ----------
    source : str
        ``"digits"``, or the path of a file with ``x_train``, ``y_train``, ``x_test`` and
        ``y_test``, images uint8 (n, side, side).
    evaluate_on : {"test", "validation"}
        Whether the held-out images are the test set or a tenth of the training set, which
        the clients then do not have.
    seed : int
        Of the random splits.
    """
    x_train, x_test, y_train, y_test = digits.read(source)
    if evaluate_on == "validation":
        x_train, x_test, y_train, y_test = train_test_split(
            x_train, y_train, test_size=0.1, stratify=y_train, random_state=seed
        )
    elif evaluate_on != "test":
        raise ValueError(f"evaluate-on must be 'test' or 'validation', got {evaluate_on!r}")
    return Data(_split(x_train, y_train), _split(x_test, y_test))


def sample(side: int) -> Split:
    """Return twenty images of noise with made-up labels: public, and about nobody."""
    rng = np.random.default_rng(0)
    return _split(rng.normal(size=(20, side, side)), np.arange(20) % 10)


def _split(images: NDArray[np.floating], labels: NDArray[np.integer]) -> Split:
    return Split(
        torch.from_numpy(images.astype(np.float32)).unsqueeze(1),
        torch.from_numpy(labels.astype(np.int64)),
    )


@lru_cache(maxsize=2)
def partitions(
    source: str, evaluate_on: str, seed: int, clients: int, kind: str, alpha: float
) -> tuple[NDArray[np.int64], ...]:
    """Split the training images among clients.

    Parameters
    ----------
    source, evaluate_on, seed
        As in :func:`load`; the split depends on ``seed``.
    clients : int
        How many.
    kind : {"iid", "dirichlet"}
        Equal random shares, or shares of each label drawn from a Dirichlet distribution.
    alpha : float
        Concentration of the Dirichlet distribution; small is uneven.

    Returns
    -------
    tuple of ndarray of int64
        Indices of each client's images, at least one each.
    """
    labels = load(source, evaluate_on, seed).train.labels.numpy()
    rng = np.random.default_rng(seed)
    if kind == "iid":
        return tuple(np.array_split(rng.permutation(len(labels)), clients))
    if kind != "dirichlet":
        raise ValueError(f"partition must be 'iid' or 'dirichlet', got {kind!r}")
    shares: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(members)
        for share, part in zip(shares, np.split(members, cuts.astype(np.int64)), strict=True):
            share.append(part)
    joined = [np.concatenate(share) for share in shares]
    # A client without data cannot train: it gets one image.
    return tuple(part if len(part) else rng.integers(len(labels), size=1) for part in joined)
