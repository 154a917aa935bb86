"""Small split models on MNIST, as attacks find them: a party's bottom, the cut, a server's top.

``cnn`` is the first block of the network that UnSplit's authors attack: 8 filters of 5 by 5 and
max-pooling, 1,152 numbers. ``mlp`` is one linear layer to 128 numbers. Codes add a ReLU and a
linear layer to ten scores, and their bottom learns at home from labels randomized once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import numpy as np
import torch
from _networks import batches, descend, outputs
from _split_bench import CLASSES, Data, new_top
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_ldp.mechanisms import CodebookEmbedding, KaryResponse, RandomSource, UnaryEncoding
from flower_ldp.privacy import Unit
from flower_ldp.split import EmbeddingDP, ForwardCorrected
from flower_ldp.strategies import CodeTop

WIDTHS = {"cnn": 1_152, "mlp": 128}
EPOCHS, BATCH, RATE = 3, 128, 1e-3

Labels = NDArray[np.int64]
#: Called with the step, the rows of its block and the gradient that came back.
Watch = Callable[[int, Tensor, Tensor], None]


@dataclass(frozen=True)
class Cut:
    """What crosses the cut.

    Parameters
    ----------
    kind : {"float", "bits", "codes"}
    epsilon : float or None
        The published label of ``bits``, None for no noise; of a record for ``codes``.
    labels : float or None
        Epsilon of each label that trains the bottom; None for true labels.
    bottom : {"cnn", "mlp"}
        Of images; a bottom over features is as wide as ``mlp``.
    releases : int
        How many independent releases of each record the attacker has.
    """

    kind: Literal["float", "bits", "codes"]
    epsilon: float | None = None
    labels: float | None = None
    bottom: Literal["cnn", "mlp"] = "cnn"
    releases: int = 1

    @property
    def width(self) -> int:
        """Length of an embedding."""
        return CLASSES if self.kind == "codes" else WIDTHS[self.bottom]

    @property
    def name(self) -> str:
        """For tables."""
        if self.kind == "float":
            return f"{self.width:,} numbers"
        if self.kind == "codes":
            return f"one code of {self.width}"
        noise = "no noise" if self.epsilon is None else f"label {self.epsilon:g}"
        return f"{self.width:,} bits, {noise}"

    @property
    def record_epsilon(self) -> float | None:
        """Return what the releases of one record cost in all; None if nothing bounds it."""
        if self.epsilon is None:
            return None
        if self.kind == "codes":
            return self.releases * self.codebook().record_epsilon
        return self.releases * UnaryEncoding(self.epsilon, self.width).record_epsilon

    def codebook(self) -> CodebookEmbedding:
        """Return the randomizer of codes."""
        if self.epsilon is None:
            raise ValueError("codes need an epsilon")
        return CodebookEmbedding(self.epsilon, self.width)

    def new_bottom(self) -> nn.Module:
        """Return an untrained bottom: the architecture, which the server knows."""
        found: list[nn.Module] = [nn.Flatten(), nn.Linear(784, WIDTHS["mlp"])]
        if self.bottom == "cnn":
            found = [nn.Conv2d(1, 8, 5), nn.MaxPool2d(2), nn.Flatten()]
        if self.kind == "codes":
            found += [nn.ReLU(), nn.Linear(WIDTHS[self.bottom], CLASSES)]
        return nn.Sequential(*found)

    def layer(self, *, noise: bool = True) -> nn.Module:
        """Return the layer between bottom and top; of codes there is none."""
        if self.kind == "bits":
            return EmbeddingDP(self.epsilon if noise else None)
        return nn.Identity()

    def release(self, embeddings: Tensor, *, noise: bool = True) -> Tensor:
        """Return one release of each record; a code as a one-hot row."""
        if self.kind != "codes":
            found: Tensor = self.layer(noise=noise)(embeddings)
            return found
        scores = embeddings.numpy().astype(np.float64)
        codebook = self.codebook()
        codes = (
            codebook.randomize(scores, RandomSource.from_os()) if noise else codebook.encode(scores)
        )
        return torch.eye(self.width)[torch.from_numpy(codes)]


@dataclass(frozen=True)
class Target:
    """A trained bottom and top.

    Parameters
    ----------
    cut : Cut
    bottom : Module
    predict : callable
        The server's labels for releases.
    """

    cut: Cut
    bottom: nn.Module
    predict: Callable[[Tensor], Labels]

    def accuracy(self, images: Tensor, labels: Labels, bottom: nn.Module, *, noise: bool) -> float:
        """Return the accuracy of the top over a bottom, each record released once."""
        sent = self.cut.release(embeddings(bottom, images), noise=noise)
        return float((self.predict(sent) == labels).mean())


def as_images(data: Data, table: str, rows: int | None = None) -> Tensor:
    """Return the first images of a table, in [0, 1], of shape (n, 1, 28, 28)."""
    return torch.from_numpy(data.images[table][:rows, None].astype(np.float32) / np.float32(255))


def embeddings(bottom: nn.Module, inputs: Tensor) -> Tensor:
    """Return a bottom's outputs."""
    return outputs(lambda some: bottom(some.float()), inputs)


def randomized(labels: Labels, epsilon: float | None) -> Labels:
    """Return the labels that the server trains with: randomized once, or as they are."""
    if epsilon is None:
        return labels
    return _response(epsilon).randomize_array(labels, RandomSource.from_os())


def _response(epsilon: float) -> KaryResponse:
    return KaryResponse(epsilon, CLASSES, unit=Unit.LABEL)


def trained(
    cut: Cut,
    inputs: Tensor,
    labels: Labels,
    used: Labels,
    seed: int,
    watch: Watch | None = None,
    *,
    bottom: Callable[[], nn.Module] | None = None,
    epochs: int = EPOCHS,
    rate: float = RATE,
) -> Target:
    """Train bottom and top: through the cut, or for codes at home.

    Parameters
    ----------
    cut : Cut
    inputs : Tensor, shape (n, 1, 28, 28)
        Images in [0, 1], or rows of features.
    labels : ndarray of int64, shape (n,)
        True labels; a top that counts codes is the server's own and counts with them.
    used : ndarray of int64, shape (n,)
        Labels that the gradients, or the party's own training, are of.
    seed : int
        Of weights and batches.
    watch : callable, optional
        Sees each step.
    bottom : callable, optional
        Makes another bottom than the cut's.
    epochs, rate
        How long, and the bottom's rate.
    """
    torch.manual_seed(seed)
    below = (bottom or cut.new_bottom)()
    top = nn.Identity() if cut.kind == "codes" else new_top(cut.width)
    layer, seen, steps = cut.layer(), torch.from_numpy(used), count()
    loss_of: Any = nn.functional.cross_entropy
    if cut.labels is not None:
        loss_of = ForwardCorrected(_response(cut.labels))
    groups = [{"params": below.parameters(), "lr": rate}, {"params": top.parameters(), "lr": RATE}]

    def loss(rows: Tensor) -> Tensor:
        sent = layer(below(inputs[rows].float()))
        if watch is not None:
            step = next(steps)
            sent.register_hook(lambda gradient: watch(step, rows, gradient))
        found: Tensor = loss_of(top(sent), seen[rows])
        return found

    descend(torch.optim.Adam(groups), batches(len(seen), BATCH, epochs), loss)
    if cut.kind == "codes":
        return Target(cut, below, _counted(cut, below, inputs, labels))

    def predict(sent: Tensor) -> Labels:
        with torch.no_grad():
            return np.asarray(top(sent).argmax(1).numpy(), dtype=np.int64)

    return Target(cut, below, predict)


def _counted(
    cut: Cut, bottom: nn.Module, images: Tensor, labels: Labels
) -> Callable[[Tensor], Labels]:
    top = CodeTop(CLASSES)
    top.step([cut.release(embeddings(bottom, images)).numpy()], labels)
    return lambda sent: top.predict([sent.numpy()])


def first_of_each(labels: Labels, most: int) -> Labels:
    """Return the places of the first records of each class."""
    return np.concatenate([np.flatnonzero(labels == label)[:most] for label in range(CLASSES)])
