"""Attackers that turn releases of records back into images, and how near they come.

The attacker is as strong as is sensible: it has the training images, the very bottom that made
the releases, and as many draws of releases of the training images as it wants. For bits and
floats it trains a network on fresh draws, for the least squared error. For codes no training
is needed: the reconstruction with the least squared error is the mean image given the report,
which Bayes' rule gives from the mean images of the codes and the known channel.

SSIM is ``skimage.metrics.structural_similarity`` with its defaults (a uniform 7 by 7 window,
sample covariances, K1 0.01, K2 0.03), for images in [0, 1], mean over images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from _networks import batches, descend
from _split_targets import WIDTHS
from numpy.typing import NDArray
from skimage.metrics import structural_similarity
from torch import Tensor, nn

from flower_ldp.mechanisms import CodebookEmbedding

HIDDEN, EPOCHS, BATCH, RATE = 512, 8, 256, 2e-3

Images = NDArray[np.float32]
Rows = NDArray[np.int64]
#: Releases the embeddings of some rows of a table once more, as rows of numbers.
Draw = Callable[[str, Rows], Tensor]


@dataclass(frozen=True)
class Nearness:
    """How near reconstructions are, on average.

    Parameters
    ----------
    mse : float
        Mean squared error of a pixel in [0, 1].
    ssim : float
        Structural similarity; 1 for the image itself.
    """

    mse: float
    ssim: float


def nearness(images: Images, found: Images) -> Nearness:
    """Compare images with their reconstructions, both of shape (n, height, width)."""
    similar = [
        structural_similarity(one, other, data_range=1.0)
        for one, other in zip(images, found, strict=True)
    ]
    return Nearness(float(((images - found) ** 2).mean()), float(np.mean(similar)))


def decode(draw: Draw, releases: int, images: Images, test_rows: Rows, seed: int) -> Images:
    """Train a decoder on fresh draws of the training records; reconstruct test records.

    Parameters
    ----------
    draw : callable
        One release of rows of a table.
    releases : int
        How many releases of each record the attacker has; it takes their mean.
    images : ndarray of float32, shape (n, height, width)
        Those of the training records.
    test_rows : ndarray of int64
        Test records to reconstruct.
    seed : int
        Of the decoder's first weights and batches.
    """
    torch.manual_seed(seed)
    pixels = torch.from_numpy(images.reshape(len(images), -1))
    model = nn.Sequential(
        nn.Linear(WIDTHS["mlp"], HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, pixels.shape[1]),
        nn.Sigmoid(),
    )
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    steps = EPOCHS * math.ceil(len(pixels) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps)

    def loss(rows: Tensor) -> Tensor:
        seen = _mean_of(draw, releases, "train", rows.numpy())
        return nn.functional.mse_loss(model(seen), pixels[rows])

    descend(optimizer, batches(len(pixels), BATCH, EPOCHS), loss, schedule)
    with torch.no_grad():
        found = model(_mean_of(draw, releases, "test", test_rows))
    return np.asarray(found.numpy().reshape(len(test_rows), *images.shape[1:]))


def _mean_of(draw: Draw, releases: int, table: str, rows: Rows) -> Tensor:
    return torch.stack([draw(table, rows) for _ in range(releases)]).mean(0)


def mean_given_report(mechanism: CodebookEmbedding, codes: Rows, images: Images) -> Images:
    """Return the mean image given each report, from the training records' true codes.

    Returns
    -------
    ndarray of float32, shape (codes, height, width)
    """
    counts = np.bincount(codes, minlength=mechanism.codes).astype(np.float64)
    sums = np.stack(
        [images[codes == code].sum(axis=0, dtype=np.float64) for code in range(mechanism.codes)]
    )
    channel = np.exp(
        [
            [mechanism.response.log_prob(report, code) for code in range(mechanism.codes)]
            for report in range(mechanism.codes)
        ]
    )
    weights = channel @ counts
    return np.asarray(np.tensordot(channel, sums, 1) / weights[:, None, None], dtype=np.float32)
