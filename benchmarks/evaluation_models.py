"""Models, clients' rows and proxies' rows for ``evaluation.py``.

A multilayer perceptron (784-128-10) is trained on 48,000 of MNIST's training images by stochastic
gradient descent (batch 128, rate 0.05, momentum 0.9). Of the other 12,000, half are the public
proxy and half are the clients on which settings are chosen. Reported clients hold test images.

Proxies: ``matched`` images like the clients'; ``rotated``, the same turned by 20 degrees;
``digits``, scikit-learn's, enlarged to MNIST's format: other writers, another scanner.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

Rows = NDArray[np.float64]
PROXIES = ("matched", "rotated", "digits")
_TRAINED, _PROXY = 48_000, 54_000
_TURN = math.radians(20)


@dataclass(frozen=True)
class ModelRows:
    """Class probabilities of one model on the clients' inputs and on each proxy's."""

    seed: int
    iterations: int
    clients: Rows
    proxies: dict[str, Rows]


@dataclass(frozen=True)
class Images:
    """What models are trained on, and what they are asked for."""

    trained: Tensor
    labels: Tensor
    clients: Tensor
    proxies: dict[str, Tensor]


def load_images(path: Path, proxy_rows: int, *, tuning: bool) -> Images:
    """Read an npz in MNIST's layout; with ``tuning`` no test image is touched."""
    with np.load(path) as data:
        train, labels = _scaled(data["x_train"]), torch.tensor(data["y_train"], dtype=torch.long)
        test = None if tuning else _scaled(data["x_test"])
    order = torch.tensor(np.random.default_rng(0).permutation(len(train)))
    trained, proxy, held_out = order[:_TRAINED], order[_TRAINED:_PROXY], order[_PROXY:]
    public = train[proxy[:proxy_rows]]
    digits = torch.tensor(load_digits().images[:, None] / 16.0, dtype=torch.float32)
    digits = functional.interpolate(digits, (20, 20), mode="bilinear")
    return Images(
        train[trained],
        labels[trained],
        train[held_out] if test is None else test,
        {
            "matched": public,
            "rotated": _turned(public),
            "digits": functional.pad(digits, (4, 4, 4, 4))[:proxy_rows],
        },
    )


def models(images: Images, seed: int, iterations: tuple[int, ...]) -> Iterator[ModelRows]:
    """Train one model and yield its rows after each number of iterations."""
    torch.manual_seed(seed)
    drawn = np.random.default_rng(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for iteration in range(1, max(iterations) + 1):
        batch = torch.tensor(drawn.integers(len(images.trained), size=128))
        optimizer.zero_grad()
        functional.cross_entropy(model(images.trained[batch]), images.labels[batch]).backward()
        optimizer.step()
        if iteration in iterations:
            yield ModelRows(
                seed,
                iteration,
                _rows(model, images.clients),
                {name: _rows(model, inputs) for name, inputs in images.proxies.items()},
            )


@torch.no_grad()
def _rows(model: nn.Module, inputs: Tensor) -> Rows:
    return torch.softmax(model(inputs).double(), dim=1).numpy()


def _scaled(images: NDArray[np.uint8]) -> Tensor:
    return torch.tensor(images, dtype=torch.float32)[:, None] / 255.0


def _turned(images: Tensor) -> Tensor:
    c, s = math.cos(_TURN), math.sin(_TURN)
    turn = torch.tensor([[c, -s, 0.0], [s, c, 0.0]]).expand(len(images), 2, 3)
    grid = functional.affine_grid(turn, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)
