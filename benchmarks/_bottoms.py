"""Training of a linear bottom on randomized labels: without privacy, and by DP-SGD."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import dp_accounting
import numpy as np
import torch
from dp_accounting.pld import PLDAccountant
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_ldp.split import ForwardCorrected

DELTA = 1e-5
LOT, EPOCHS, RATE, MOMENTUM, CLIP, AVERAGED = 2_048, 15, 1.0, 0.9, 1.0, 0.2


def adam(bottom: nn.Module, features: NDArray[Any], labels: Tensor, loss: ForwardCorrected) -> None:
    """Train for eight epochs of 256 records with AdamW and one cycle of the rate."""
    size, epochs, rate = 256, 8, 1e-3
    optimizer = torch.optim.AdamW(bottom.parameters(), rate, weight_decay=1e-2)
    steps = epochs * math.ceil(len(labels) / size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(size):
            inputs = torch.from_numpy(features[rows.numpy()].astype(np.float32))
            optimizer.zero_grad()
            loss(bottom(inputs), labels[rows]).backward()
            optimizer.step()
            schedule.step()


class DpSgd:
    """DP-SGD for one linear layer: Poisson lots, gradients clipped per record, Gaussian noise.

    For a linear layer a record's gradient is the outer product of its input and of the gradient
    of its scores, so its length is known without computing it. The mean of the last fifth of
    the iterates is kept, which costs nothing more.

    **For measuring only**: the noise is torch's, which is seeded. A deployment needs a
    cryptographic source (Opacus in secure mode).
    """

    def __init__(self, noise: float, seed: int) -> None:
        self.noise = noise
        self._lots = np.random.default_rng(seed)
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(
        self, bottom: nn.Module, features: NDArray[Any], labels: Tensor, loss: ForwardCorrected
    ) -> None:
        """Train ``bottom``, an ``nn.Linear``."""
        if not isinstance(bottom, nn.Linear):
            raise TypeError("this training is for one linear layer")
        shape = (bottom.out_features, bottom.in_features + 1)
        weights, speed, kept = (torch.zeros(shape) for _ in range(3))
        rate = LOT / len(labels)
        steps = int(EPOCHS / rate)
        first = steps - int(AVERAGED * steps)
        for step in range(steps):
            rows = np.flatnonzero(self._lots.random(len(labels)) < rate)
            inputs = nn.functional.pad(
                torch.from_numpy(features[rows].astype(np.float32)), (0, 1), value=1.0
            )
            clipped = _clipped_sum(weights, inputs, labels[rows], loss)
            noise = torch.randn(shape, generator=self._generator) * self.noise * CLIP
            speed = MOMENTUM * speed + (clipped + noise) / LOT
            weights = weights - RATE * speed
            if step >= first:
                kept += weights / (steps - first)
        with torch.no_grad():
            bottom.weight.copy_(kept[:, :-1])
            bottom.bias.copy_(kept[:, -1])


def _clipped_sum(weights: Tensor, inputs: Tensor, labels: Tensor, loss: ForwardCorrected) -> Tensor:
    scores = (inputs @ weights.T).requires_grad_()
    # the sum over records, so that each row of the gradient is one record's own
    (gradient,) = torch.autograd.grad(loss(scores, labels) * len(labels), scores)
    length = gradient.norm(dim=1) * inputs.norm(dim=1)
    total: Tensor = (gradient / (length / CLIP).clamp(min=1)[:, None]).T @ inputs
    return total


@cache
def epsilon_of(noise: float, records: int, relation: dp_accounting.NeighboringRelation) -> float:
    """Return what the training costs at delta 1e-5, by privacy loss distributions."""
    accountant = PLDAccountant(relation)
    step = dp_accounting.PoissonSampledDpEvent(LOT / records, dp_accounting.GaussianDpEvent(noise))
    accountant.compose(step, int(EPOCHS * records / LOT))
    return float(accountant.get_epsilon(DELTA))


@cache
def noise_for(epsilon: float, records: int, relation: dp_accounting.NeighboringRelation) -> float:
    """Return the least noise multiplier, to half a percent, that costs at most epsilon."""
    low, high = 0.5, 20.0
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        if epsilon_of(middle, records, relation) > epsilon:
            low = middle
        else:
            high = middle
    return high
