"""Five sites of images, for ``hospitals.py``: at random, or with classes by a Dirichlet law."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _asked_once import shares
from _images import read
from _networks import small_cnn
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
        of one length; ``cnn`` images and a CNN with tanh.
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
    raw = read(path)
    split = raw.each(*_rows(kind, raw.x, raw.held_x, cache)).evaluated_on(evaluate_on)
    x, y = split.x, split.y
    # Without a law as the random split always was: the same seeds have the same sites.
    parts = (
        np.random.default_rng(seed).permutation(len(y)).reshape(SITES, -1)
        if alpha is None
        else shares(y, SITES, alpha, seed)
    )
    return Sites(
        rows=[
            list(zip(torch.from_numpy(x[p]), torch.from_numpy(y[p]), strict=True)) for p in parts
        ],
        held=(torch.from_numpy(split.held_x), torch.from_numpy(split.held_y)),
        like=(torch.zeros(x.shape[1:]), torch.tensor(0)),
        model=_model(kind, x.shape[1]),
        loss=nn.functional.cross_entropy,
        right=lambda output, target: output.argmax(dim=1) == target,
        optimizer=lambda parameters, rate, _: torch.optim.SGD(parameters, lr=rate),
    )


def _rows(
    kind: str, x: NDArray[Any], held_x: NDArray[Any], cache: Path | None
) -> list[NDArray[np.float32]]:
    """Return rows as they are trained on; each is made by itself."""
    if kind == "cnn":
        half, most = np.float32(0.5), np.float32(255)
        return [(one.astype(np.float32) / most - half)[:, None] for one in (x, held_x)]
    if kind == "mnist" and cache is not None:
        along = coordinates({"train": x, "test": held_x}, cache)
        spread = along["variances"]
        rows = [features(along[part], spread, _AXES, _POWER) for part in ("train", "test")]
    else:
        rows = [with_constant(one.astype(np.float32)) for one in (x, held_x)]
    return [_LENGTH[kind] * one for one in rows]


def _model(kind: str, columns: int) -> Callable[[], nn.Module]:
    if kind != "cnn":
        return lambda: _zeros(columns)
    torch.manual_seed(0)  # each site and round begins from the same weights
    first = small_cnn(nn.Tanh).state_dict()

    def make() -> nn.Module:
        model = small_cnn(nn.Tanh)
        model.load_state_dict(first)
        return model

    return make


def _zeros(columns: int) -> nn.Module:
    model = nn.Linear(columns, 10, bias=False)
    nn.init.zeros_(model.weight)
    return model
