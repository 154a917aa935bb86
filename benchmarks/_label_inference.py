"""Labels from embeddings with 40 known ones, and from gradients that a server sends back.

Embeddings: logistic regression, the three nearest neighbours, and logistic regression on ten
principal components, which learn from records without labels too. Gradients: ten clusters, by
cosine or by sign, of each record's gradient.

A share of the records has a uniform label in place of their own. An image says nothing about
such a label, and whoever names more than a tenth of them learned them from labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from _split_bench import CLASSES
from _split_targets import Labels
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

KNOWN, COMPONENTS, NEIGHBOURS = 40, 10, 3

Rows = NDArray[np.float32]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Records:
    """What an attacker infers the labels of.

    Parameters
    ----------
    labels : ndarray of int64, shape (n,)
        True ones.
    uniform : ndarray of bool, shape (n,)
        Whose label is uniform.
    known : ndarray of int64, shape (40,)
        Places of the records whose labels are known, four of each class.
    """

    labels: Labels
    uniform: Flags
    known: Labels

    @classmethod
    def of(cls, labels: Labels, uniform: Flags, seed: int) -> Records:
        """Choose the known records among those with a label of their own."""
        draws = np.random.default_rng(seed)
        known = [
            draws.choice(np.flatnonzero((labels == label) & ~uniform), KNOWN // CLASSES, False)
            for label in range(CLASSES)
        ]
        return cls(labels, uniform, np.concatenate(known))

    def accuracy(self, guessed: Labels) -> tuple[float, float]:
        """Return the accuracy on the rest: on labels of the record's own, and on uniform ones."""
        rest = np.ones(len(self.labels), dtype=bool)
        rest[self.known] = False
        right = guessed == self.labels
        return float(right[rest & ~self.uniform].mean()), float(right[rest & self.uniform].mean())


def from_embeddings(rows: Rows, records: Records) -> dict[str, float]:
    """Learn from 40 labelled embeddings; return accuracies on the rest."""
    names = records.labels[records.known]
    simple = {
        "logistic": LogisticRegression(max_iter=300),
        "nearest": KNeighborsClassifier(NEIGHBOURS),
    }
    guesses = {
        name: model.fit(rows[records.known], names).predict(rows) for name, model in simple.items()
    }
    reduced = PCA(min(COMPONENTS, rows.shape[1]), random_state=0).fit_transform(rows)
    reduced /= reduced.std() + 1e-12
    model = LogisticRegression(max_iter=300)
    guesses["components"] = model.fit(reduced[records.known], names).predict(reduced)
    found = {name: records.accuracy(guess) for name, guess in guesses.items()}
    return {
        **{name: own for name, (own, _) in found.items()},
        "uniform": max(uniform for _, uniform in found.values()),
    }


def from_gradients(rows: Rows, records: Records, used: Labels) -> dict[str, float]:
    """Cluster gradients; return accuracies.

    Parameters
    ----------
    rows : ndarray of float32, shape (n, width)
    records : Records
    used : ndarray of int64, shape (n,)
        Labels that the gradients are of.
    """
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    cosine = _clusters(rows / np.maximum(lengths, 1e-12))
    sign = _clusters(np.sign(rows))
    best, uniform = records.accuracy(_named_best(cosine, records.labels))
    return {
        "cosine": records.accuracy(_named_by_known(cosine, records))[0],
        "sign": records.accuracy(_named_by_known(sign, records))[0],
        "best": best,
        "uniform": uniform,
        "used": float((_named_best(cosine, used) == used).mean()),
    }


def _clusters(rows: Rows) -> Labels:
    return np.asarray(KMeans(CLASSES, n_init=4, random_state=0).fit_predict(rows), dtype=np.int64)


def _named_by_known(clusters: Labels, records: Records) -> Labels:
    """Give each cluster the label that most of its known records have."""
    counts = np.zeros((CLASSES, CLASSES), dtype=np.int64)
    np.add.at(counts, (clusters[records.known], records.labels[records.known]), 1)
    return np.asarray(counts.argmax(axis=1)[clusters], dtype=np.int64)


def _named_best(clusters: Labels, labels: Labels) -> Labels:
    """Give the clusters different labels, as many right as possible, which needs them all."""
    counts = np.zeros((CLASSES, CLASSES), dtype=np.int64)
    np.add.at(counts, (clusters, labels), 1)
    _, names = linear_sum_assignment(-counts)
    return np.asarray(names[clusters], dtype=np.int64)
