"""Two small convolutional networks."""

from __future__ import annotations

import torch
from sklearn.metrics import roc_auc_score
from torch import nn


def small_cnn(side: int) -> nn.Module:
    """Return a CNN of 3,658 parameters for 8 x 8 images, 5,994 for 28 x 28."""
    if side <= 8:
        return nn.Sequential(
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
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(10),
    )


def lenet5() -> nn.Module:
    """Return LeNet-5 with 61,706 parameters, for 28 x 28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def build(name: str, side: int, seed: int) -> nn.Module:
    """Return a freshly initialized model.

    Parameters
    ----------
    name : {"small-cnn", "lenet5"}
        Which.
    side : int
        Width and height of an image.
    seed : int
        Of the initial weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "small-cnn":
            model = small_cnn(side)
        elif name == "lenet5" and side == 28:
            model = lenet5()
        else:
            raise ValueError(f"no model {name!r} for {side} x {side} images")
        model(torch.zeros(1, 1, side, side))
    return model


def accuracy_and_loss(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor
) -> tuple[float, float]:
    """Return the fraction of correct labels and the mean cross-entropy."""
    model.eval()
    with torch.inference_mode():
        logits = torch.cat([model(batch) for batch in images.split(2_000)])
        correct = (logits.argmax(dim=1) == labels).float().mean()
        loss = nn.functional.cross_entropy(logits, labels)
    return float(correct), float(loss)


def macro_auc(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the mean over labels of the area under the curve of one label against the rest."""
    model.eval()
    with torch.inference_mode():
        found = torch.cat([model(batch) for batch in images.split(2_000)]).double().softmax(dim=1)
    return float(roc_auc_score(labels.numpy(), found.numpy(), multi_class="ovr"))
