"""Networks that several benchmarks train, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

PIECE = 2_000


def small_cnn(activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return the CNN of DP-SGD's tutorials, 26,010 weights (Papernot et al. 2021 with tanh)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 32),
        activation(),
        nn.Linear(32, 10),
    )


def outputs(model: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Return what a model makes of inputs, in pieces."""
    with torch.no_grad():
        return torch.cat([model(some) for some in inputs.split(PIECE)])


def batches(count: int, size: int, epochs: int, *, whole: bool = False) -> Iterator[Tensor]:
    """Yield the rows of each step, in an order of each epoch's own; of ``whole`` no rest."""
    most = count // size * size if whole else count
    for _ in range(epochs):
        yield from torch.randperm(count)[:most].split(size)


def descend(
    optimizer: torch.optim.Optimizer,
    rows: Iterable[Tensor],
    loss: Callable[[Tensor], Tensor],
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> None:
    """Take a step for each batch of rows."""
    for some in rows:
        optimizer.zero_grad()
        loss(some).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
