"""Five sites of images, for ``hospitals.py``: at random, or with classes by a Dirichlet law."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _asked_once import shares
from _dpsgd_network import network
from _sites import Sites
from _strokes import coordinates, features, with_constant
from numpy.typing import NDArray
from torch import nn

SITES = 5
#: Of a row: gradients of those that are not yet learned are longer than the clipping length.
_LENGTH = {"cifar": np.float32(2), "mnist": np.float32(4)}
#: Axes of strokes that MNIST's images are told along, and the power of their spread.
_AXES, _POWER = 300, 0.5


def sites_of(
    kind: str,
    path: Path,
    evaluate_on: str,
    seed: int,
    alpha: float | None,
    cache: Path | None = None,
) -> Sites:
    """Return five sites of equally many images, and what is held out.

    Parameters
    ----------
    kind : {"cifar", "mnist", "cnn"}
        ``cifar`` and ``mnist`` have a linear layer over features for which no data was used, all
        of one length; ``cnn`` images and the network of ``_dpsgd_network.py``.
    path : Path
        An npz file in MNIST's layout, of images or of features.
    evaluate_on : {"test", "validation"}
        Whether the held-out ones are the test set, or a tenth of the training rows.
    seed : int
        Of the split among sites.
    alpha : float or None
        Of a Dirichlet law of the classes of a site; None for a random split.
    cache : Path or None
        Where the coordinates of MNIST's images along strokes are kept; for ``mnist``.
    """
    with np.load(path) as file:
        x, held_x = _read(kind, {part: file[f"x_{part}"] for part in ("train", "test")}, cache)
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


def _read(
    kind: str, found: dict[str, NDArray[Any]], cache: Path | None
) -> tuple[NDArray[np.float32], ...]:
    """Return rows as they are trained on; each is made by itself."""
    if kind == "cnn":
        half, most = np.float32(0.5), np.float32(255)
        return tuple((one.astype(np.float32) / most - half)[:, None] for one in found.values())
    if kind == "mnist" and cache is not None:
        along = coordinates(found, cache)
        spread = along["variances"]
        return tuple(_LENGTH[kind] * features(along[one], spread, _AXES, _POWER) for one in found)
    return tuple(_LENGTH[kind] * with_constant(one.astype(np.float32)) for one in found.values())


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
