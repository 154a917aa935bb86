r"""How well class probabilities cluster: of rows, and of a distribution over rows.

Rows are grouped by their largest entry or by a clustering, and scored with the silhouette, with
the index of Calinski and Harabasz, or with any callable ``score(rows, labels)``.

**Of rows**: scikit-learn's functions. Above 10,000 rows the silhouette, whose cost is quadratic,
is that of 10,000 rows drawn without replacement by a fixed seed.

**Of counts** :math:`n_i`: exactly what scikit-learn gives for row i copied :math:`n_i` times, in
closed form, for fractional counts too. With :math:`n_C` the count of cluster C,

.. math:: a_i = \frac{\sum_{j \in C(i)} n_j d_{ij}}{n_{C(i)} - 1}, \qquad
          b_i = \min_{C \ne C(i)} \frac{\sum_{j \in C} n_j d_{ij}}{n_C}, \qquad
          s = \sum_i \frac{n_i}{n} \frac{b_i - a_i}{\max(a_i, b_i)}.

**Of a law** with shares :math:`w_i`: what N rows drawn from it score on average, to leading order.
A drawn row is no copy of its neighbours, so the silhouette is the limit of many copies (no "- 1"
above). For Calinski-Harabasz, N draws have on average (N - K) W within clusters and
N B + (K - 1) W between them (of one variance in all clusters), so it is
:math:`1 + N B / ((K - 1) W)`. An estimated distribution over codes is such a law.

A score that is not defined (fewer than two clusters, or as many as rows) is NaN.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.bounds import check_in
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.exact import uniform_subset

Rows = NDArray[np.float64]
Labels = NDArray[np.int64]
Score = Callable[[Rows, Labels], float]

SILHOUETTE_SCORE = "SILHOUETTE_SCORE"
CALINSKI_HARABASZ_SCORE = "CALINSKI_HARABASZ_SCORE"
#: From more rows than this the silhouette is that of a sample.
SILHOUETTE_ROWS = 10_000
_SAMPLING_SEED = 0
_WORKING_MEMORY_MIB = 32
# Distances are computed for this many pairs at a time, to bound memory.
_BLOCK = 1 << 19


@dataclass(frozen=True)
class ClusterScore:
    """A labelling and a score of it.

    Parameters
    ----------
    score : str or callable
        ``SILHOUETTE_SCORE``, ``CALINSKI_HARABASZ_SCORE``, or ``score(rows, labels) -> float``.
    clusterer : object, optional
        Of ``sklearn.cluster``, or alike; a fresh copy is fitted each time. Without it rows are
        labelled by their largest entry.

    Raises
    ------
    ValueError
        If the score is neither callable nor known.

    Examples
    --------
    >>> rows = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.3, 0.7]])
    >>> round(ClusterScore(CALINSKI_HARABASZ_SCORE).of_rows(rows), 1)
    33.8
    """

    score: str | Score = SILHOUETTE_SCORE
    clusterer: Any = None

    def __post_init__(self) -> None:
        if not callable(self.score) and self.score not in _OF_ROWS:
            raise ValueError(
                f"score must be a callable or one of {sorted(_OF_ROWS)}, got {self.score!r}"
            )

    def of_rows(self, rows: Rows) -> float:
        """Return the score of rows, shape (n, k), each counted once."""
        given = _check_rows(rows)
        labels = self._label(given, None)
        return float((self.score if callable(self.score) else _OF_ROWS[self.score])(given, labels))

    def of_law(self, rows: Rows, shares: ArrayLike, total: int) -> float:
        """Return the score that ``total`` clients are expected to have.

        Parameters
        ----------
        rows : ndarray of float, shape (n, k)
            What a client's row may be.
        shares : array_like of float, shape (n,)
            How often each is; not negative, adding up to 1.
        total : int
            Rows that the score is to be of, N, at least 1.

        Returns
        -------
        float
            A score whose law is not known here, any callable among them, and a clustering that
            takes no ``sample_weight``, are given rows copied in proportion to their shares,
            ``total`` in all.

        Raises
        ------
        ValueError
            If the arguments are malformed.
        """
        given, law = _check_rows(rows), np.asarray(shares, dtype=np.float64)
        if law.shape != (len(given),) or not (np.isfinite(law) & (law >= 0)).all():
            raise ValueError(f"shares must be {len(given)} finite numbers of at least 0")
        if abs(law.sum() - 1.0) > 1e-6:
            raise ValueError(f"shares must add up to 1, got {law.sum()}")
        check_in("[1, inf)", "total", total, int)
        takes_weights = (
            self.clusterer is None
            or "sample_weight" in inspect.signature(self.clusterer.fit_predict).parameters
        )
        known = not callable(self.score) and takes_weights
        of_law = _OF_LAW.get(str(self.score)) if known else None
        if of_law is None:
            return self.of_rows(np.repeat(given, apportion(law, total), axis=0))
        used = law > 0
        given, law = given[used], law[used] / law[used].sum()
        return of_law(given, self._label(given, law * total), law, total)

    def _label(self, rows: Rows, counts: Rows | None) -> Labels:
        if self.clusterer is None:
            return np.asarray(rows.argmax(axis=1), dtype=np.int64)  # among equals the first
        from sklearn.base import clone

        fresh = clone(self.clusterer)
        weights = {} if counts is None else {"sample_weight": counts}
        return np.asarray(fresh.fit_predict(rows, **weights), dtype=np.int64)


def apportion(shares: ArrayLike, total: int) -> Labels:
    """Return whole counts in proportion to shares, by largest remainders, ``total`` in all."""
    exact = np.asarray(shares, dtype=np.float64) * total / np.sum(shares)
    counts = np.floor(exact).astype(np.int64)
    missing = int(total - counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return np.asarray(counts)


def silhouette_of_counts(rows: Rows, labels: Labels, counts: ArrayLike) -> float:
    """Return the mean silhouette of row i taken ``counts[i]`` times.

    Parameters
    ----------
    rows : ndarray of float, shape (n, k)
    labels : ndarray of integers, shape (n,)
    counts : array_like of float, shape (n,)
        Not negative. Whole ones give what scikit-learn gives for the copies.

    Returns
    -------
    float
        NaN if fewer than two labels have a count.
    """
    weights = np.asarray(counts, dtype=np.float64)
    used = weights > 0
    return _silhouette(np.asarray(rows)[used], np.asarray(labels)[used], weights[used], itself=1.0)


def calinski_harabasz_of_counts(rows: Rows, labels: Labels, counts: ArrayLike) -> float:
    """Return the Calinski-Harabasz index of row i taken ``counts[i]`` times.

    Parameters are those of :func:`silhouette_of_counts`, and so is what is not defined.
    """
    weights = np.asarray(counts, dtype=np.float64)
    used = weights > 0
    within, between, clusters = _dispersion(
        np.asarray(rows)[used], np.asarray(labels)[used], weights[used]
    )
    total = float(weights.sum())
    if not 2 <= clusters < total:
        return float("nan")
    # scikit-learn's convention where no cluster has any width
    return between / within * (total - clusters) / (clusters - 1) if within else 1.0


def _silhouette(rows: Rows, labels: Labels, weights: Rows, *, itself: float) -> float:
    """Weighted mean silhouette; ``itself`` is what a row's own copy counts in its cluster."""
    names, place = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        return float("nan")
    member = np.zeros((len(rows), len(names)))
    member[np.arange(len(rows)), place] = weights
    sizes, squares = member.sum(axis=0), (rows**2).sum(axis=1)
    total = 0.0
    step = max(1, _BLOCK // len(rows))
    for start in range(0, len(rows), step):
        part = np.arange(start, min(start + step, len(rows)))
        square = squares[part, None] + squares - 2.0 * rows[part] @ rows.T
        distance = np.sqrt(np.maximum(square, 0.0))
        # Rounding leaves about 1e-8 where a row meets itself.
        distance[np.arange(len(part)), part] = 0.0
        sums = distance @ member
        own = place[part]
        others = sums / sizes
        others[np.arange(len(part)), own] = np.inf
        b, left = others.min(axis=1), sizes[own] - itself
        alone = left <= 0
        a = sums[np.arange(len(part)), own] / np.where(alone, 1.0, left)
        larger = np.maximum(a, b)
        width = np.where(alone | (larger == 0), 0.0, (b - a) / np.where(larger == 0, 1.0, larger))
        total += float(weights[part] @ width)
    return total / float(weights.sum())


def _dispersion(rows: Rows, labels: Labels, weights: Rows) -> tuple[float, float, int]:
    """Weighted sums of squares within and between clusters, and how many clusters there are."""
    names, place = np.unique(labels, return_inverse=True)
    mean = weights @ rows / weights.sum()
    within = between = 0.0
    for cluster in range(len(names)):
        own = place == cluster
        size = weights[own].sum()
        centre = weights[own] @ rows[own] / size
        within += float(weights[own] @ ((rows[own] - centre) ** 2).sum(axis=1))
        between += float(size * ((centre - mean) ** 2).sum())
    return within, between, len(names)


def _silhouette_of_rows(rows: Rows, labels: Labels) -> float:
    from sklearn import config_context
    from sklearn.metrics import silhouette_score

    if len(rows) > SILHOUETTE_ROWS:
        drawn = uniform_subset(RandomSource.seeded(_SAMPLING_SEED), len(rows), SILHOUETTE_ROWS)
        rows, labels = rows[drawn], labels[drawn]
    if not _is_defined(labels):
        return float("nan")
    with config_context(working_memory=_WORKING_MEMORY_MIB):
        return float(silhouette_score(rows, labels))


def _calinski_harabasz_of_rows(rows: Rows, labels: Labels) -> float:
    from sklearn.metrics import calinski_harabasz_score

    return float(calinski_harabasz_score(rows, labels)) if _is_defined(labels) else float("nan")


def _calinski_harabasz_of_law(rows: Rows, labels: Labels, shares: Rows, total: int) -> float:
    within, between, clusters = _dispersion(rows, labels, shares)
    if clusters < 2:
        return float("nan")
    return float(1.0 + total * between / ((clusters - 1) * within)) if within else float("inf")


def _is_defined(labels: Labels) -> bool:
    return 2 <= len(np.unique(labels)) < len(labels)


def _check_rows(rows: Rows) -> Rows:
    given = np.asarray(rows, dtype=np.float64)
    if given.ndim != 2 or 0 in given.shape:
        raise ValueError(f"rows must have shape (n, k), got {given.shape}")
    if not np.isfinite(given).all():
        raise ValueError("rows must be finite, got NaN or infinity")
    return given


#: A score by name, of rows.
_OF_ROWS: dict[str, Score] = {
    SILHOUETTE_SCORE: _silhouette_of_rows,
    CALINSKI_HARABASZ_SCORE: _calinski_harabasz_of_rows,
}
#: The same of a law; a score that is not here is given copies of rows.
_OF_LAW: dict[str, Callable[[Rows, Labels, Rows, int], float]] = {
    SILHOUETTE_SCORE: lambda rows, labels, shares, _: _silhouette(rows, labels, shares, itself=0.0),
    CALINSKI_HARABASZ_SCORE: _calinski_harabasz_of_law,
}
