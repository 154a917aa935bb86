"""Codes of two parties that complement each other.

A bottom's linear layer gives a posterior over labels; its code is a function of that.

* **Centres**, where epsilon is large: more codes than labels. The code is the nearest of k
  centres in relative entropy, which keeps as much as k codes can of what the posterior says
  about the label (the information bottleneck, by Lloyd's iteration; Banerjee et al. 2005).
  Where one party has doubts its code says between what, and the other's code decides. Each
  party finds its centres alone, from its own records.
* **Groups**, where epsilon is small: fewer codes than labels, which randomized response keeps
  more often. The code is the most likely group of labels. The groups of one party cut across
  those of the other, so that two groups name one label or few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import _bottoms as bottoms
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_ldp.split import ForwardCorrected

_SAMPLE, _ITERATIONS, _LEAST = 10_000, 30, 1e-6


class CodeBottom(nn.Module):
    """A linear layer, and a table of what each label speaks for.

    Parameters
    ----------
    features : int
    classes : int
    codes : int
        How many codes; at least 2.
    """

    def __init__(self, features: int, classes: int, codes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, classes)
        self.table: Tensor
        self.register_buffer("table", torch.zeros(classes, codes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return a score for each code, linear in the posterior p.

        With 0 and 1 in the table the scores are the groups' probabilities. With logarithms of
        centres c they are sum p log c, largest for the centre nearest in relative entropy,
        sum p log p - sum p log c, whose first term all centres share.
        """
        return torch.softmax(self.linear(inputs), 1) @ self.table


class TrainCodes:
    """Trains the linear layer of a :class:`CodeBottom`, then fills its table.

    The layer is kept: further bottoms, told the same labels, share it.

    Parameters
    ----------
    groups : sequence of int
        The group of each label, for bottoms with as many codes as there are groups; others
        have centres.
    seed : int
        Of the sample that centres are found from.
    """

    def __init__(self, groups: Sequence[int], seed: int) -> None:
        self._groups, self._seed = groups, seed
        self._state: dict[str, Tensor] | None = None

    def __call__(
        self, bottom: nn.Module, features: NDArray[Any], labels: Tensor, loss: ForwardCorrected
    ) -> None:
        """Train ``bottom``."""
        if not isinstance(bottom, CodeBottom):
            raise TypeError("this training is for a CodeBottom")
        if self._state is None:
            bottoms.adam(bottom.linear, features, labels, loss)
            self._state = {k: v.clone() for k, v in bottom.linear.state_dict().items()}
        bottom.linear.load_state_dict(self._state)
        classes, codes = bottom.table.shape
        if codes == max(self._groups) + 1:
            bottom.table.zero_()[torch.arange(classes), torch.tensor(self._groups)] = 1
            return
        rng = np.random.default_rng(self._seed)
        rows = rng.choice(len(features), min(_SAMPLE, len(features)), replace=False)
        with torch.no_grad():
            scores = bottom.linear(torch.from_numpy(features[rows].astype(np.float32)))
        beliefs = torch.softmax(scores, 1).double().numpy()
        bottom.table.copy_(torch.from_numpy(np.log(centres_of(beliefs, codes, rng))).T)


def centres_of(
    beliefs: NDArray[np.float64], codes: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return centres that are near to the beliefs in relative entropy: k-means++ and Lloyd.

    Parameters
    ----------
    beliefs : ndarray of float64, shape (n, classes)
        Rows are distributions.
    codes : int
    rng : Generator

    Returns
    -------
    ndarray of float64, shape (codes, classes)
        Positive rows that add up to 1.
    """
    rows = beliefs + _LEAST
    rows /= rows.sum(axis=1, keepdims=True)
    own = (rows * np.log(rows)).sum(axis=1)
    centres = rows[rng.integers(len(rows))][None]
    for _ in range(codes - 1):
        far = np.maximum(own - (rows @ np.log(centres).T).max(axis=1), 1e-12)
        centres = np.vstack([centres, rows[rng.choice(len(rows), p=far / far.sum())]])
    for _ in range(_ITERATIONS):
        nearest = (rows @ np.log(centres).T).argmax(axis=1)
        for code in np.unique(nearest):
            centres[code] = rows[nearest == code].mean(axis=0)
    return np.asarray(centres)
