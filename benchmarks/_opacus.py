"""Opacus's engine, without its warnings: that its generator may be predicted, and of its hooks."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader


@contextlib.contextmanager
def made_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    noise: float,
    clip: float,
) -> Iterator[tuple[Any, Any, Any]]:
    """Yield a model, an optimizer and batches that clip each row and add noise."""
    from opacus import PrivacyEngine

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=noise,
            max_grad_norm=clip,
        )
