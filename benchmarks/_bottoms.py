"""Training of a linear bottom on randomized labels: without privacy, and by DP-SGD."""

from __future__ import annotations

import math
from functools import cache
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import torch
from _networks import batches as batches_of
from _networks import descend
from _opacus import made_private
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from flower_ldp.accounting.dpsgd import SampledGaussian, noise_multiplier
from flower_ldp.split import ForwardCorrected

DELTA = 1e-5
LOT, EPOCHS, RATE, MOMENTUM, CLIP, AVERAGED = 4_096, 7, 1.0, 0.9, 1.0, 0.2


def adam(bottom: nn.Module, features: NDArray[Any], labels: Tensor, loss: ForwardCorrected) -> None:
    """Train for eight epochs of 256 records with AdamW and one cycle of the rate."""
    size, epochs, rate = 256, 8, 1e-3
    optimizer = torch.optim.AdamW(bottom.parameters(), rate, weight_decay=1e-2)
    steps = epochs * math.ceil(len(labels) / size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps)

    def loss_of(rows: Tensor) -> Tensor:
        inputs = torch.from_numpy(features[rows.numpy()].astype(np.float32))
        return loss(bottom(inputs), labels[rows])

    descend(optimizer, batches_of(len(labels), size, epochs), loss_of, schedule)


class DpSgd:
    """DP-SGD of a linear bottom by Opacus, with the noise of this package's accounting.

    The mean of the last fifth of the iterates is kept, which costs nothing more. The bottom
    starts at zero.

    Parameters
    ----------
    epsilon : float
        Of the whole training, at delta 1e-5, for one record **replaced**.
    """

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon
        #: Noise, sampling rate and steps of the training; None before it.
        self.plan: SampledGaussian | None = None

    def __call__(
        self, bottom: nn.Module, features: NDArray[Any], labels: Tensor, loss: ForwardCorrected
    ) -> None:
        """Train ``bottom``."""
        parameters = list(bottom.parameters())
        for parameter in parameters:
            nn.init.zeros_(parameter)
        lot = min(LOT, len(labels))
        rate, steps = lot / len(labels), max(1, round(len(labels) / lot)) * EPOCHS
        noise = noise_multiplier(self.epsilon, DELTA, sample_rate=rate, steps=steps)
        self.plan = SampledGaussian(noise, rate, steps)
        sgd = torch.optim.SGD(parameters, RATE, MOMENTUM)
        loader = DataLoader(TensorDataset(torch.from_numpy(features), labels), lot)
        with made_private(bottom, sgd, loader, noise, CLIP) as (private, optimizer, batches):
            kept, last = [torch.zeros_like(p) for p in parameters], max(1, int(AVERAGED * steps))
            drawn = islice(chain.from_iterable(repeat(batches)), steps)
            for step, (inputs, told) in enumerate(drawn, start=1):
                optimizer.zero_grad()
                loss(private(inputs.float().requires_grad_()), told).backward()
                optimizer.step()
                if steps - step < last:
                    for total, parameter in zip(kept, parameters, strict=True):
                        total += parameter.detach() / last
            private.to_standard_module()
        with torch.no_grad():
            for total, parameter in zip(kept, parameters, strict=True):
                parameter.copy_(total)


@cache
def replace_one(epsilon: float, records: int) -> float:
    """Return what costs ``epsilon`` for one record added or removed, for one replaced.

    The noise that is (epsilon, 1e-5) under add-or-remove-one is searched; what it is worth
    under replace-one at the same delta is returned.
    """
    lot = min(LOT, records)
    rate, steps = lot / records, max(1, round(records / lot)) * EPOCHS
    low, high = 0.3, 30.0
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        if SampledGaussian(middle, rate, steps).delta(epsilon, replace=False) > DELTA:
            low = middle
        else:
            high = middle
    return SampledGaussian(high, rate, steps).epsilon(DELTA)
