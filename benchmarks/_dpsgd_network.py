"""The tanh network that DP-SGD is usually tried on: for ``_hospital_images.py``."""

from __future__ import annotations

from torch import nn


def network() -> nn.Module:
    """Return 26,010 weights of two convolutions and two layers (Papernot et al. 2021)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )
