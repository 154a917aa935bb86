"""Real images, read once per process, split among clients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from flwr.app import Context
from numpy.typing import NDArray

from label_dp_example import digits

CATEGORIES = 10


@dataclass(frozen=True)
class Split:
    """Images as float32 tensors (n, 1, side, side), labels as int64 (n,)."""

    images: torch.Tensor
    labels: NDArray[np.int64]

    @property
    def side(self) -> int:
        """Width and height of an image."""
        return int(self.images.shape[-1])


@lru_cache(maxsize=2)
def load(source: str, evaluate_on: str, seed: int) -> tuple[Split, Split]:
    """Load the clients' images and those that the server evaluates on.

    Parameters
    ----------
    source : str
        ``"digits"`` (scikit-learn's), or the path of an npz file with ``x_train``, ``y_train``,
        ``x_test`` and ``y_test``, images uint8 (n, side, side).
    evaluate_on : {"test", "validation"}
        Whether the server has the test set or a tenth of the training set, which the clients
        then do not have.
    seed : int
        Of the order of the clients' images, and of the validation set.
    """
    x_train, x_test, y_train, y_test = digits.read(source)
    order = np.random.default_rng(seed).permutation(len(x_train))
    x_train, y_train = x_train[order], y_train[order]
    if evaluate_on == "validation":
        held = len(x_train) // 10
        x_test, y_test = x_train[:held], y_train[:held]
        x_train, y_train = x_train[held:], y_train[held:]
    elif evaluate_on != "test":
        raise ValueError(f"evaluate-on must be 'test' or 'validation', got {evaluate_on!r}")
    return _split(x_train, y_train), _split(x_test, y_test)


def source(context: Context) -> tuple[str, str, int]:
    """Return what :func:`load` takes, as the run's configuration says."""
    config = context.run_config
    return str(config["data"]), str(config["evaluate-on"]), int(config["seed"])


def of_client(context: Context) -> Split:
    """Return the images and the **true** labels of the client that a context is of."""
    everything, _ = load(*source(context))
    number, clients = (int(context.node_config[k]) for k in ("partition-id", "num-partitions"))
    if clients > len(everything.labels):
        raise ValueError(f"{clients} clients cannot share {len(everything.labels)} images")
    return Split(everything.images[number::clients], everything.labels[number::clients])


def _split(images: NDArray[np.floating], labels: NDArray[np.integer]) -> Split:
    return Split(torch.from_numpy(images.astype(np.float32)).unsqueeze(1), labels.astype(np.int64))
