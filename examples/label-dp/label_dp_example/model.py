"""A small convolutional network, and its training on targets of any kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from flwr.app import Context, Message
from numpy.typing import NDArray
from torch import Tensor, nn

from label_dp_example import data

#: A mean loss from logits (n, 10) and what was made of the reports, (n,) or (n, 10).
Loss = Callable[[Tensor, Tensor], Tensor]


def build(side: int, seed: int) -> nn.Module:
    """Return a new CNN with 3,658 weights for 8 x 8 images, 5,994 for 28 x 28."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if side <= 8:
            net = nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1),
                nn.MaxPool2d(2),
                nn.ReLU(),
                nn.Conv2d(8, 16, 3, padding=1),
                nn.MaxPool2d(2),
                nn.ReLU(),
                nn.Flatten(),
                nn.LazyLinear(32),
                nn.ReLU(),
                nn.Linear(32, 10),
            )
        else:
            net = nn.Sequential(
                nn.Conv2d(1, 8, 5, stride=2),
                nn.ReLU(),
                nn.Conv2d(8, 16, 5),
                nn.MaxPool2d(2),
                nn.ReLU(),
                nn.Flatten(),
                nn.LazyLinear(10),
            )
        net(torch.zeros(1, 1, side, side))
    return net


def received(message: Message, context: Context) -> nn.Module:
    """Return the model that a message holds."""
    _, held = data.load(*data.source(context))
    net = build(held.side, int(context.run_config["seed"]))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net


def probabilities(net: nn.Module, images: Tensor) -> NDArray[np.float64]:
    """Return a model's probabilities of each label, shape (n, 10)."""
    net.eval()
    with torch.inference_mode():
        logits = torch.cat([net(batch) for batch in images.split(2_000)])
    return np.asarray(logits.double().softmax(dim=1).numpy())


def fit(
    images: Tensor, targets: Tensor, loss: Loss, message: Message, context: Context
) -> tuple[nn.Module, float]:
    """Train the server's model on this client's images; return it and the last loss."""
    config = context.run_config
    torch.set_num_threads(1)
    net = received(message, context)
    optimizer = torch.optim.Adam(net.parameters(), lr=_learning_rate(message, context))
    net.to(memory_format=torch.channels_last).train()
    value = torch.zeros(())
    for batch in _batches(len(images), int(config["local-steps"]), int(config["batch-size"])):
        optimizer.zero_grad()
        value = loss(net(images[batch]), targets[batch])
        value.backward()
        optimizer.step()
    return net, float(value.detach())


def accuracy(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the fraction of labels that a model predicts."""
    right = torch.from_numpy(probabilities(net, images)).argmax(dim=1) == labels
    return float(right.float().mean())


def _learning_rate(message: Message, context: Context) -> float:
    """Return the rate of this round, which falls linearly over the rounds of a stage."""
    first = float(context.run_config["learning-rate"])
    last = float(context.run_config["final-learning-rate"])
    rounds = int(message.content["config"]["rounds"])
    server_round = int(message.content["config"]["server-round"])
    return first + (last - first) * (server_round - 1) / max(rounds - 1, 1)


def _batches(n: int, steps: int, batch_size: int) -> Iterator[Tensor]:
    """Yield ``steps`` batches, going through all images before any comes again."""
    passes = -(-steps * batch_size // n)
    order = torch.cat([torch.randperm(n) for _ in range(passes)])
    return iter(order.split(batch_size)[:steps])
