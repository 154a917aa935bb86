"""Real images, read once per process: the clients', some public ones, and held-out ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from unsupervised_example import digits

_MOST_PUBLIC = 2_000


@dataclass(frozen=True)
class Images:
    """Images as float32 tensors (n, 1, side, side), standardized.

    Parameters
    ----------
    clients : Tensor
        Private, in the order in which clients take them.
    public : Tensor
        Stand for open data that the server has: no client holds them.
    held_out : Tensor
        Of the figures that are reported; the server's.
    labels : ndarray of int64, shape (n,)
        Of ``held_out``. Nothing trains on them.
    """

    clients: torch.Tensor
    public: torch.Tensor
    held_out: torch.Tensor
    labels: NDArray[np.int64]

    @property
    def side(self) -> int:
        """Width and height of an image."""
        return int(self.public.shape[-1])

    def of_client(self, number: int, clients: int) -> torch.Tensor:
        """Return the images of one client, as evenly many as possible.

        Raises
        ------
        ValueError
            If there are more clients than images.
        """
        if clients > len(self.clients):
            raise ValueError(f"{clients} clients cannot share {len(self.clients)} images")
        return self.clients[number::clients]


@lru_cache(maxsize=2)
def load(source: str, evaluate_on: str, seed: int) -> Images:
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
        Of the split of the training images.
    """
    x_train, x_test, y_train, y_test = digits.read(source)
    if evaluate_on == "validation":
        x_train, x_test, y_train, y_test = train_test_split(
            x_train, y_train, test_size=0.1, stratify=y_train, random_state=seed
        )
    elif evaluate_on != "test":
        raise ValueError(f"evaluate-on must be 'test' or 'validation', got {evaluate_on!r}")
    order = np.random.default_rng(seed).permutation(len(x_train))
    public = min(len(order) // 4, _MOST_PUBLIC)
    return Images(
        clients=_tensor(x_train[order[public:]]),
        public=_tensor(x_train[order[:public]]),
        held_out=_tensor(x_test),
        labels=np.asarray(y_test, dtype=np.int64),
    )


def _tensor(images: NDArray[np.floating]) -> torch.Tensor:
    return torch.tensor(images, dtype=torch.float32)[:, None]
