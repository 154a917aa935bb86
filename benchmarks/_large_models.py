"""Models of which little is trained: a LeNet-5 in a subspace, and a head on a wide frozen trunk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from _messages import reply_to
from _networks import PIECE
from _strokes import AXES, stroke_axes, strokes
from _wavelets import wavelet_features
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from flower_ldp.clients import CodewordRelease, LdpMod

CLASSES = 10
HIDDEN, FEATURES = 2_500, 499
_STROKES = 8_000
_MEAN, _DEVIATION = 0.1307, 0.3081
#: Length of a feature vector: beside it the bias counts a tenth.
_LENGTH = 10.0
#: Features are divided by this power of their spread among strokes.
_POWER = 0.5


@dataclass(frozen=True)
class Local:
    """How a client trains: steps of gradient descent on all it has."""

    steps: int
    rate: float


@dataclass(frozen=True)
class Clients:
    """Inputs (n, ...) and labels (n,), with each client's part of them."""

    inputs: Tensor
    labels: Tensor
    parts: list[NDArray[np.int64]]


def pixels(images: NDArray[np.uint8]) -> Tensor:
    """Return images scaled, shape (n, 1, 28, 28)."""
    return (torch.tensor(images, dtype=torch.float32)[:, None] / 255 - _MEAN) / _DEVIATION


class Wide(nn.Module):
    """Wavelet features, a frozen trunk of 11 million weights, and a head of 5,000.

    The trunk's first layer is random directions among the axes of strokes, its second one the axes
    of what the first one makes of strokes: nobody's data was used for it. It is in half precision,
    as frozen weights often are.
    """

    def __init__(self) -> None:
        super().__init__()
        mean, axes, variances = (torch.tensor(part.copy()) for part in stroke_axes())
        chance = torch.Generator().manual_seed(0)
        mixing = torch.randn(AXES, HIDDEN, generator=chance) / variances[:, None] ** 0.25
        examples = _wavelets(strokes(_STROKES)) - mean
        hidden = _hidden(examples @ axes @ mixing)
        centre = hidden.mean(dim=0)
        hidden -= centre
        spread, directions = torch.linalg.eigh(hidden.T @ hidden / _STROKES)
        scaled = directions.flip(1)[:, :FEATURES] / spread.flip(0)[:FEATURES] ** (_POWER / 2)
        self.first = nn.Linear(len(mean), HIDDEN)
        self.second = nn.Linear(HIDDEN, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)
        with torch.no_grad():
            self.first.weight[:] = (axes @ mixing).T
            self.first.bias[:] = -self.first.weight @ mean
            self.second.weight[:] = scaled.T
            self.second.bias[:] = -self.second.weight @ centre
            self.head.weight.zero_()
            self.head.bias.zero_()
        self.first.half()
        self.second.half()

    def features(self, images: NDArray[np.uint8]) -> Tensor:
        """Return what the trunk makes of images, shape (n, 499)."""
        with torch.no_grad():
            parts = (images[i : i + PIECE] for i in range(0, len(images), PIECE))
            hidden = (_hidden(_layer(self.first, _wavelets(some))) for some in parts)
            return torch.cat([self._second(some) for some in hidden])

    def _second(self, hidden: Tensor) -> Tensor:
        return _LENGTH * normalize(_layer(self.second, hidden))


def _wavelets(images: NDArray[np.uint8]) -> Tensor:
    return torch.tensor(wavelet_features(images).astype(np.float32))


def _layer(layer: nn.Linear, rows: Tensor) -> Tensor:
    return rows @ layer.weight.float().T + layer.bias.float()


def _hidden(before: Tensor) -> Tensor:
    return normalize(before.relu())


def arrays_of(model: nn.Module) -> ArrayRecord:
    """Return a model's arrays by name."""
    return ArrayRecord({name: Array(one.numpy()) for name, one in model.state_dict().items()})


def load(model: nn.Module, record: ArrayRecord) -> None:
    """Put the arrays of a record into a model: all that the record has."""
    found = {name: torch.from_numpy(one.numpy().copy()) for name, one in record.items()}
    model.load_state_dict(found)


def client_app(model: nn.Module, part: str, clients: Clients, local: Local) -> ClientApp:
    """Return clients behind their gate, who train a part of a model (``""`` for all of it).

    ``model`` is that part, which takes a client's inputs. A reply has the part's arrays alone.
    """
    # A sure model has tiny gradients, which are slow, and what becomes of them is a thread's own.
    worker = ThreadPoolExecutor(1, initializer=torch.set_flush_denormal, initargs=(True,))
    app = ClientApp(mods=[LdpMod(train=CodewordRelease(trainable=f"{part}*" if part else None))])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        mine = torch.from_numpy(clients.parts[int(context.node_config["partition-id"])])
        sent = message.content.array_records["arrays"]
        load(model, ArrayRecord({name: sent[part + name] for name in model.state_dict()}))
        inputs, labels = clients.inputs[mine], clients.labels[mine]
        worker.submit(descend, model, inputs, labels, local).result()
        reply = {part + name: one for name, one in arrays_of(model).items()}
        return reply_to(message, ArrayRecord(reply), len(mine))

    return app


def descend(model: nn.Module, inputs: Tensor, labels: Tensor, local: Local) -> None:
    """Train a model by gradient descent on all of the inputs."""
    weights = list(model.parameters())
    for _ in range(local.steps):
        found = torch.autograd.grad(cross_entropy(model(inputs), labels), weights)
        with torch.no_grad():
            for weight, slope in zip(weights, found, strict=True):
                weight.sub_(local.rate * slope)
