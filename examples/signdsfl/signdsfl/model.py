"""The models: logistic regression, a small CNN, and LeNet-5."""

from __future__ import annotations

import torch
from torch import nn

from signdsfl.dataset import Images


def build(name: str, side: int, seed: int) -> nn.Module:
    """Return a freshly initialized model for ten classes.

    Parameters
    ----------
    name : {"logistic", "small-cnn", "lenet5"}
        Which; LeNet-5 takes images of 28 x 28 only.
    side : int
        Width and height of an image.
    seed : int
        Of the initial weights.

    Raises
    ------
    ValueError
        If there is no such model for such images.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "logistic":
            return nn.Sequential(nn.Flatten(), nn.Linear(side * side, 10))
        if name == "small-cnn" and side == 8:
            return _small_cnn()
        if name == "lenet5" and side == 28:
            return _lenet5()
    raise ValueError(f"there is no model {name!r} for {side} x {side} images")


def _small_cnn() -> nn.Module:
    """3,658 weights."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def _lenet5() -> nn.Module:
    """61,706 weights."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU()),
        *(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def train(model: nn.Module, mine: Images, epochs: int, batch_size: int, rate: float) -> None:
    """Train a model on a client's images, by plain SGD."""
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(mine.labels)).split(batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(mine.images[batch]), mine.labels[batch])
            loss.backward()
            optimizer.step()


def accuracy(model: nn.Module, held_out: Images) -> float:
    """Return the fraction of images that get their label."""
    model.eval()
    with torch.inference_mode():
        logits = torch.cat([model(batch) for batch in held_out.images.split(2_000)])
    return float((logits.argmax(dim=1) == held_out.labels).float().mean())
