"""Real images, read once per process: the clients', some public ones, and held-out ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

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
        Private: each client draws its own from them.
    public : Tensor
        Stand for open data that the server has: no client holds them.
    held_out : Tensor
        Of the figures that are reported; the server's.
    labels : ndarray of int64, shape (n,)
        Of ``held_out``. Nothing trains on them.
    each : int
        Images of one client, at most.
    seed : int
        Of which ones it holds.
    """

    clients: torch.Tensor
    public: torch.Tensor
    held_out: torch.Tensor
    labels: NDArray[np.int64]
    each: int
    seed: int

    @property
    def side(self) -> int:
        """Width and height of an image."""
        return int(self.public.shape[-1])

    def places(self, number: int) -> NDArray[np.int64]:
        """Return where in ``clients`` the images of one client are.

        A client holds none twice. Another may hold it too: thousands of simulated clients have
        more images than there are.
        """
        rng = np.random.default_rng([self.seed, number])
        count = min(self.each, len(self.clients))
        return rng.choice(len(self.clients), count, replace=False)

    def of_client(self, number: int) -> torch.Tensor:
        """Return the images of one client."""
        return self.clients[torch.from_numpy(self.places(number))]


@lru_cache(maxsize=2)
def load(source: str, evaluate_on: str, seed: int, each: int) -> Images:
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
    each : int
        Images of one client.
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
        each=each,
        seed=seed,
    )


def _tensor(images: NDArray[np.floating]) -> torch.Tensor:
    return torch.tensor(images, dtype=torch.float32)[:, None]


def of_run(config: Mapping[str, Any]) -> Images:
    """Load the images that a run's configuration names."""
    source, evaluate_on = str(config["data"]), str(config["evaluate-on"])
    return load(source, evaluate_on, int(config["seed"]), int(config["images-per-client"]))
