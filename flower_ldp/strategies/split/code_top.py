"""A top model for released codes: Bayes' rule over counted codes and pairs of codes.

From reports of codes (one-hot rows) of records with known labels it counts, for each party,
how often each code is reported with each label, and the same for pairs of parties. What is
counted has passed the randomizer, and so has what is predicted. The law of *reports* given the
label is therefore all that a prediction needs: the channel is part of it and need not be
inverted. A pair that was seen seldom falls back to the product of the two parties' own laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]


class CodeTop:
    """Counts what parties report with each label, and predicts the most likely label.

    Parameters
    ----------
    classes : int
        Number of labels; at least 2.
    smoothing : float
        Weight, in records, of what the single parties' laws say about a pair of codes;
        positive. More for fewer records.
    """

    def __init__(self, classes: int, smoothing: float = 10.0) -> None:
        if classes < 2:
            raise ValueError(f"classes must be at least 2, got {classes}")
        if not smoothing > 0:
            raise ValueError(f"smoothing must be positive, got {smoothing}")
        self.classes = classes
        self.smoothing = smoothing
        self.at: str | None = None
        self._labels = np.zeros(classes)
        self._single: list[NDArray[np.float64]] = []
        self._pairs: dict[tuple[int, int], NDArray[np.float64]] = {}

    def step(self, embeddings: Sequence[Rows], labels: NDArray[np.int64]) -> tuple[float, None]:
        """Count a block; the loss is that of predicting it before. No gradients come back."""
        if not self._single:
            widths = [rows.shape[1] for rows in embeddings]
            self._single = [np.zeros((self.classes, width)) for width in widths]
            self._pairs = {
                (i, j): np.zeros((self.classes, widths[i], widths[j]))
                for i, j in combinations(range(len(widths)), 2)
            }
        loss = self.loss(embeddings, labels)
        np.add.at(self._labels, labels, 1.0)
        for counts, rows in zip(self._single, embeddings, strict=True):
            np.add.at(counts, (labels, rows.argmax(axis=1)), 1.0)
        for (i, j), counts in self._pairs.items():
            codes = embeddings[i].argmax(axis=1), embeddings[j].argmax(axis=1)
            np.add.at(counts, (labels, *codes), 1.0)
        return loss, None

    def log_posterior(self, embeddings: Sequence[Rows]) -> NDArray[np.float64]:
        """Return log P(label | reports), shape (records, classes)."""
        if not self._single:
            raise ValueError("there is nothing to predict from: no block was counted yet")
        prior = (self._labels + 1.0) / (self._labels.sum() + self.classes)
        single = [
            (counts + 1.0) / (counts.sum(axis=1, keepdims=True) + counts.shape[1])
            for counts in self._single
        ]
        codes = [rows.argmax(axis=1) for rows in embeddings]
        found = np.log(prior) + sum(
            np.log(law[:, code]).T for law, code in zip(single, codes, strict=True)
        )
        for (i, j), counts in self._pairs.items():
            alone = single[i][:, :, None] * single[j][:, None, :]
            total = counts.sum(axis=(1, 2), keepdims=True)
            both = (counts + self.smoothing * alone) / (total + self.smoothing)
            # with more than two parties each pair corrects the product of its own two laws
            ratio = np.log(both / alone) / max(1, len(codes) - 1)
            found = found + ratio[:, codes[i], codes[j]].T
        high = found.max(axis=1, keepdims=True)
        return np.asarray(found - high - np.log(np.exp(found - high).sum(axis=1, keepdims=True)))

    def predict(self, embeddings: Sequence[Rows]) -> NDArray[np.int64]:
        """Return the most likely label of each record."""
        return np.asarray(self.log_posterior(embeddings).argmax(axis=1), dtype=np.int64)

    def loss(self, embeddings: Sequence[Rows], labels: NDArray[np.int64]) -> float:
        """Return the mean of -log P(label | reports)."""
        return -float(np.mean(self.log_posterior(embeddings)[np.arange(len(labels)), labels]))
