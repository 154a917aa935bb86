"""Eight small apps that differ in model, features, scales and clients, for ``steps.py``.

Each is a model before training, the clients' examples and the server's, and how a client trains.
A tenth of the training examples is the server's own: lengths are tuned on it, clients lack it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import _examples  # noqa: F401
import numpy as np
import torch
from _images import read
from asked_once_example import head
from numpy.typing import NDArray
from quickstart import task
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

Floats = NDArray[np.float32]
Model = dict[str, NDArray[Any]]
#: Logits (clients, n, classes) of inputs (clients, n, ...); parameters have a leading axis too.
Network = Callable[[list[Tensor], Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Examples:
    """Features, shape (n, ...), and labels, shape (n,)."""

    x: NDArray[Any]
    y: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Split:
    """The clients' examples, the server's own tenth, and those of the test."""

    clients: Examples
    held: Examples
    test: Examples


class App(Protocol):
    """What is trained, and by whom."""

    @property
    def clients(self) -> int:
        """How many train."""

    def __hash__(self) -> int:
        """Tell apps apart by identity."""

    def initial(self, seed: int) -> Model:
        """Return the model before training."""

    def updates(self, model: Model, data: Examples, parts: NDArray[np.int64]) -> Floats:
        """Return what the training of each client changes, shape (clients, d)."""

    def accuracy(self, model: Model, data: Examples) -> float:
        """Return the share of labels that are right."""


def zeros(*shapes: tuple[int, ...]) -> Callable[[int], Model]:
    """Return what starts all arrays at zero."""
    return lambda seed: {
        f"layer{number}": np.zeros(shape, dtype=np.float32) for number, shape in enumerate(shapes)
    }


def usual(*layers: tuple[int, int]) -> Callable[[int], Model]:
    """Return what starts layers of (in, out) as PyTorch does, weights (in, out) and biases."""

    def initial(seed: int) -> Model:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = [nn.Linear(*layer) for layer in layers]
        arrays = [w.detach().numpy() for one in made for w in (one.weight.T, one.bias)]
        return {f"array{number}": array.copy() for number, array in enumerate(arrays)}

    return initial


def linear(weights: list[Tensor], x: Tensor) -> Tensor:
    """Return logits of a linear layer, with or without biases."""
    found = x @ weights[0]
    return found if len(weights) == 1 else found + weights[1].unsqueeze(-2)


def hidden(weights: list[Tensor], x: Tensor) -> Tensor:
    """Return logits of a network with one hidden layer."""
    return linear(weights[2:], torch.relu(linear(weights[:2], x)))


def patches(x: Tensor, size: int, stride: int) -> Tensor:
    """Return the squares of (..., side, side, channels) as rows, (..., places, entries)."""
    found = x.unfold(-3, size, stride).unfold(-3, size, stride)  # (..., a, b, channels, s, s)
    return found.flatten(-3).flatten(-3, -2)


def convolutions(weights: list[Tensor], x: Tensor) -> Tensor:
    """Return logits of two convolutions and a linear layer, of images' patches (..., n, 25, 25)."""
    batch = x.shape[:-2]
    first = torch.relu(linear(weights[:2], x.flatten(-3, -2)))
    first = first.unflatten(-2, (*batch[-1:], 5, 5))
    second = patches(first, 3, 2)
    second = torch.relu(linear(weights[2:4], second.flatten(-3, -2)))
    return linear(weights[4:], second.unflatten(-2, (*batch[-1:], 4)).flatten(-2))


def together(
    network: Network, model: Model, data: Examples, batches: list[Tensor], rate: float
) -> Floats:
    """Train all clients at once, each on its row of each batch; return what each changed."""
    x, y = torch.as_tensor(data.x), torch.as_tensor(data.y)
    first, clients = [torch.from_numpy(array) for array in model.values()], len(batches[0])
    mine = [w.expand(clients, *w.shape).clone().requires_grad_() for w in first]
    optimizer = torch.optim.SGD(mine, lr=rate)
    for own in batches:
        logits = network(mine, x[own])
        # A mean for each client: no gradient of one reaches another.
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y[own].flatten())
        optimizer.zero_grad()
        (loss * clients).backward()
        optimizer.step()
    changes = [(m.detach() - w).flatten(1) for m, w in zip(mine, first, strict=True)]
    return torch.cat(changes, dim=1).numpy()


@dataclass(frozen=True)
class Torch:
    """An app whose clients take steps of gradient descent on all their examples."""

    clients: int
    start: Callable[[int], Model]
    network: Network
    steps: int
    rate: float

    def initial(self, seed: int) -> Model:
        """Return the model before training."""
        return self.start(seed)

    def updates(self, model: Model, data: Examples, parts: NDArray[np.int64]) -> Floats:
        """Return what the training of each client changes."""
        whole = [torch.from_numpy(parts)] * self.steps
        return together(self.network, model, data, whole, self.rate)

    def accuracy(self, model: Model, data: Examples) -> float:
        """Return the share of labels that are right."""
        weights = [torch.from_numpy(array)[None] for array in model.values()]
        with torch.no_grad():
            logits = self.network(weights, torch.from_numpy(data.x)[None])[0]
        return float((logits.argmax(dim=-1).numpy() == data.y).mean())


@dataclass(frozen=True)
class Existing:
    """``examples/existing_app``."""

    clients: int = 100

    def initial(self, seed: int) -> Model:
        """Return a model of zeros."""
        weights, biases = task.initial_weights().to_numpy_ndarrays()
        return {"weights": weights, "biases": biases}

    def updates(self, model: Model, data: Examples, parts: NDArray[np.int64]) -> Floats:
        """Return what ``task.fit`` changes: scikit-learn's descent, of all clients at once."""
        weights = np.repeat(model["weights"][None], len(parts), axis=0)
        biases = np.repeat(model["biases"][None], len(parts), axis=0)
        signs = np.where(np.eye(10, dtype=bool)[data.y], 1.0, -1.0)
        rng = np.random.default_rng()
        for _ in range(5):
            order = rng.permuted(parts, axis=1)
            for column in order.T:
                x, sign = data.x[column], signs[column]
                margins = sign * (np.einsum("nkf,nf->nk", weights, x) + biases)
                slope = 0.1 * sign / (1.0 + np.exp(margins))
                weights *= 1.0 - 0.1 * 1e-4
                weights += slope[:, :, None] * x[:, None, :]
                biases += slope
        changes = (weights - model["weights"]).reshape(len(parts), -1), biases - model["biases"]
        return np.concatenate(changes, axis=1).astype(np.float32)

    def accuracy(self, model: Model, data: Examples) -> float:
        """Return the share of labels that are right."""
        logits = data.x @ model["weights"].T + model["biases"]
        return float((logits.argmax(axis=1) == data.y).mean())


#: The numbers of the rule were chosen on the tenth that is held out of each.
APPS: dict[str, App] = {
    "asked_once": Torch(205, zeros((28, 10)), linear, steps=10, rate=2.0),
    "existing_app": Existing(),
    "cancer": Torch(91, zeros((30, 2), (2,)), linear, steps=5, rate=0.1),
    "digits_mlp": Torch(400, usual((64, 32), (32, 10)), hidden, steps=10, rate=0.1),
    "mnist_cnn": Torch(1000, usual((25, 8), (72, 16), (64, 10)), convolutions, steps=5, rate=0.1),
    "cifar_head": Torch(1000, zeros((256, 10), (10,)), linear, steps=5, rate=0.02),
    "mnist_pixels": Torch(1000, zeros((196, 10), (10,)), linear, steps=5, rate=0.1),
    "cifar_mlp": Torch(1000, usual((256, 16), (16, 10)), hidden, steps=5, rate=0.05),
}


def split(x: NDArray[Any], y: NDArray[Any], test: Examples) -> Split:
    """Return examples with every tenth, at random, given to the server."""
    mine, held, y_mine, y_held = train_test_split(x, y, test_size=0.1, stratify=y, random_state=0)
    return Split(Examples(mine, y_mine), Examples(held, y_held), test)


def load(name: str, mnist: Path, cifar: Path) -> Split:
    """Return the examples of an app."""
    x: NDArray[Any]
    x_test: NDArray[Any]
    if name == "existing_app":
        x, x_test, y, y_test = task.load_data()
    elif name in ("asked_once", "digits_mlp"):
        images, y = load_digits(return_X_y=True)
        found = images.reshape(-1, 8, 8) / 16
        if name == "asked_once":
            found = head.features((found - 0.305) / 0.376)
        rows = ((found - 0.305) / 0.376 if name == "digits_mlp" else found).reshape(len(y), -1)
        x, x_test, y, y_test = train_test_split(
            rows.astype(np.float32), y, test_size=0.2, stratify=y, random_state=0
        )
    elif name == "cancer":
        rows, y = load_breast_cancer(return_X_y=True)
        x, x_test, y, y_test = train_test_split(rows, y, test_size=0.2, stratify=y, random_state=0)
        mean, deviation = x.mean(axis=0), x.std(axis=0)
        x, x_test = (((part - mean) / deviation).astype(np.float32) for part in (x, x_test))
    else:
        of_mnist = name.startswith("mnist")
        raw = read(mnist if of_mnist else cifar)
        shown = {"mnist_pixels": pixels, "mnist_cnn": seen_squares}.get(name, as_they_are)
        most = 16_667 if of_mnist else 33_334
        x, x_test = shown(raw.x[:most]), shown(raw.held_x[:4_000])
        y, y_test = np.asarray(raw.y[:most]), np.asarray(raw.held_y[:4_000])
    labels, test = np.asarray(y, dtype=np.int64), Examples(x_test, np.asarray(y_test, np.int64))
    return split(x, labels, test)


def as_they_are(rows: NDArray[Any]) -> Floats:
    """Return features."""
    return rows.astype(np.float32)


def pixels(images: NDArray[np.uint8]) -> Floats:
    """Return images at half their resolution, in [0, 1], as rows."""
    small = nn.functional.avg_pool2d(torch.from_numpy(images).float()[:, None] / 255, 2)
    return small.flatten(1).numpy()


def seen_squares(images: NDArray[np.uint8]) -> Floats:
    """Return the squares that the first convolution sees of standardized images at that size."""
    small = (torch.from_numpy(pixels(images)).unflatten(1, (14, 14, 1)) - 0.1307) / 0.3081
    return patches(small, 5, 2).numpy().copy()


def shares(data: Examples, clients: int, seed: int) -> NDArray[np.int64]:
    """Return each client's examples, equally many, shape (clients, examples)."""
    order = np.random.default_rng(seed).permutation(len(data.y))
    each = len(order) // clients
    return order[: each * clients].reshape(clients, each)
