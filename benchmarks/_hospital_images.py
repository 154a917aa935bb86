"""Five sites of images, for ``hospitals.py``: at random, or with classes by a Dirichlet law."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _asked_once import shares
from _sites import Sites
from _strokes import with_constant
from dpsgd import network
from numpy.typing import NDArray
from torch import nn

SITES = 5
#: Of a row. Those that are not yet learned have a gradient longer than the clipping length.
_LENGTH = np.float32(2)


def sites_of(kind: str, path: Path, evaluate_on: str, seed: int, alpha: float | None) -> Sites:
    """Return five sites of equally many images, and what is held out.

    Parameters
    ----------
    kind : {"cifar", "mnist", "cnn"}
        ``cifar`` and ``mnist`` have unit vectors and a linear layer, ``cnn`` images and
        the network of ``dpsgd.py``.
    path : Path
        An npz file in MNIST's layout, of images or of features.
    evaluate_on : {"test", "validation"}
        Whether the held-out ones are the test set, or a tenth of the training rows.
    seed : int
        Of the split among sites.
    alpha : float or None
        Of a Dirichlet law of the classes of a site; None for a random split.
    """
    with np.load(path) as file:
        x, held_x = (_read(kind, file[f"x_{part}"]) for part in ("train", "test"))
        y, held_y = file["y_train"].astype(np.int64), file["y_test"].astype(np.int64)
    kept = np.arange(len(y))
    if evaluate_on == "validation":
        held, kept = np.split(np.random.default_rng(0).permutation(len(y)), [len(y) // 10])
        held_x, held_y = x[held], y[held]
    # Without a law as the random split always was: the same seeds have the same sites.
    parts = (
        np.random.default_rng(seed).permutation(kept).reshape(SITES, -1)
        if alpha is None
        else [kept[part] for part in shares(y[kept], SITES, alpha, seed)]
    )
    return Sites(
        rows=[
            list(zip(torch.from_numpy(x[p]), torch.from_numpy(y[p]), strict=True)) for p in parts
        ],
        held=(torch.from_numpy(held_x), torch.from_numpy(held_y)),
        like=(torch.zeros(x.shape[1:]), torch.tensor(0)),
        model=_model(kind, x.shape[1]),
        loss=nn.functional.cross_entropy,
        right=lambda output, target: output.argmax(dim=1) == target,
        optimizer=lambda parameters, rate, _: torch.optim.SGD(parameters, lr=rate),
    )


def _read(kind: str, found: NDArray[Any]) -> NDArray[np.float32]:
    """Return rows as they are trained on; each is made by itself."""
    if kind == "cnn":
        return (found.astype(np.float32) / np.float32(255) - np.float32(0.5))[:, None]
    return _LENGTH * with_constant(found.reshape(len(found), -1).astype(np.float32))


def _model(kind: str, columns: int) -> Callable[[], nn.Module]:
    if kind != "cnn":
        return lambda: _zeros(columns)
    torch.manual_seed(0)  # each site and round begins from the same weights
    first = network().state_dict()

    def make() -> nn.Module:
        model = network()
        model.load_state_dict(first)
        return model

    return make


def _zeros(columns: int) -> nn.Module:
    model = nn.Linear(columns, 10, bias=False)
    nn.init.zeros_(model.weight)
    return model
