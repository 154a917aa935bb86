"""Training of a linear bottom on randomized labels: without privacy, and by DP-SGD."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from _split_bench import Uncounted
from flwr.app import Context, RecordDict
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from flower_ldp.accounting.dpsgd import SampledGaussian
from flower_ldp.split import ForwardCorrected
from flower_ldp.training import make_private

DELTA = 1e-5
LOT, EPOCHS, RATE, MOMENTUM, CLIP, AVERAGED = 4_096, 7, 1.0, 0.9, 1.0, 0.2


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
    """DP-SGD of a linear bottom by the package's own ``make_private``, so through Opacus.

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
        context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
        parameters = list(bottom.parameters())
        for parameter in parameters:
            nn.init.zeros_(parameter)
        training = make_private(
            bottom,
            torch.optim.SGD(parameters, RATE, MOMENTUM),
            DataLoader(TensorDataset(torch.from_numpy(features), labels), min(LOT, len(labels))),
            context=context,
            epsilon=self.epsilon,
            delta=DELTA,
            epochs=EPOCHS,
            max_grad_norm=CLIP,
            admission=Uncounted(),
        )
        self.plan = training.plan
        kept, last = (
            [torch.zeros_like(p) for p in parameters],
            max(1, int(AVERAGED * self.plan.steps)),
        )
        for _ in range(EPOCHS):
            for inputs, told in training.loader:
                training.optimizer.zero_grad()
                loss(training.model(inputs.float().requires_grad_()), told).backward()
                training.optimizer.step()
                if training.optimizer.steps_left < last:
                    for total, parameter in zip(kept, parameters, strict=True):
                        total += parameter.detach() / last
        training.model.to_standard_module()
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
