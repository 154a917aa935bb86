"""Cluster scores of class probabilities: of rows and of distributions (docs/codebook.md).

A score that is not defined (fewer than two clusters, or as many as rows) is NaN. Of a distribution
it is the score of N drawn rows on average, to leading order: the silhouette weighted by shares, and
:math:`1 + N B / ((K - 1) W)` for Calinski-Harabasz.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.mechanisms.codebook import CodebookResponse
from flower_ldp.mechanisms.laplace import check_simplex_rows
from flower_ldp.mechanisms.random import RandomSource, uniform_subset
from flower_ldp.parameter_bounds import check_in

Rows = NDArray[np.float64]
Labels = NDArray[np.int64]
Shares = NDArray[np.float64]
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
        ``SILHOUETTE_SCORE``, ``CALINSKI_HARABASZ_SCORE``, or ``score(rows, labels) -> float``; else
        ValueError.
    clusterer : object, optional
        Like those of ``sklearn.cluster``; by default labels are rows' largest entries.

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
        """Return the score of rows, shape (n, k), by scikit-learn.

        Above 10,000 rows the silhouette uses 10,000 of them, drawn with a fixed seed.
        """
        given = _check_rows(rows)
        labels = self._label(given, None)
        return float((self.score if callable(self.score) else _OF_ROWS[self.score])(given, labels))

    def of_law(self, rows: Rows, shares: ArrayLike, total: int) -> float:
        """Return the expected score of ``total`` rows, at least 1, drawn from a distribution.

        ``rows`` have the shape (n, k); ``shares``, shape (n,), are not negative, with sum 1; else
        ValueError. A callable score, or a clusterer without ``sample_weight``, gets copies in
        proportion.
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
        of_law = None if callable(self.score) else _OF_LAW.get(self.score)
        if of_law is None or not takes_weights:
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
    """Return ``total`` as whole counts in proportion to shares."""
    exact = np.asarray(shares, dtype=np.float64) * total / np.sum(shares)
    counts = np.floor(exact).astype(np.int64)
    missing = int(total - counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return np.asarray(counts)


def _silhouette_of_law(rows: Rows, labels: Labels, shares: Rows, _: int) -> float:
    member, place = _members(labels, shares)
    sizes, squares = member.sum(axis=0), (rows**2).sum(axis=1)
    if len(sizes) < 2:
        return float("nan")
    total = 0.0
    step = max(1, _BLOCK // len(rows))
    for start in range(0, len(rows), step):
        part = np.arange(start, min(start + step, len(rows)))
        square = squares[part, None] + squares - 2.0 * rows[part] @ rows.T
        distance = np.sqrt(np.maximum(square, 0.0))
        own = np.arange(len(part)), place[part]
        # Rounding leaves about 1e-8 where a row meets itself.
        distance[own[0], part] = 0.0
        means = distance @ member / sizes
        a = means[own]
        means[own] = np.inf
        b = means.min(axis=1)
        larger = np.maximum(a, b)
        width = np.divide(b - a, larger, out=np.zeros_like(larger), where=larger > 0)
        total += float(shares[part] @ width)
    return total / float(shares.sum())


def _calinski_harabasz_of_law(rows: Rows, labels: Labels, shares: Rows, total: int) -> float:
    member, place = _members(labels, shares)
    sizes, mean = member.sum(axis=0), shares @ rows / shares.sum()
    if len(sizes) < 2:
        return float("nan")
    centres = member.T @ rows / sizes[:, None]
    within = float(shares @ ((rows - centres[place]) ** 2).sum(axis=1))
    between = float(sizes @ ((centres - mean) ** 2).sum(axis=1))
    return 1.0 + total * between / ((len(sizes) - 1) * within) if within else float("inf")


def _members(labels: Labels, weights: Rows) -> tuple[Rows, Labels]:
    names, place = np.unique(labels, return_inverse=True)
    return (place[:, None] == np.arange(len(names))) * weights[:, None], place


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
    SILHOUETTE_SCORE: _silhouette_of_law,
    CALINSKI_HARABASZ_SCORE: _calinski_harabasz_of_law,
}


#: Levels of confidence for each class; chosen on held-out data (benchmarks/evaluation.py).
DEFAULT_LEVELS = 2
#: Least part of a known difference that a score must show.
LEAST_RECOVERY = 0.8
#: Largest relative error of a score that is worth reading.
LARGEST_ERROR = 0.05
#: Least confidence of a model, from 0 (uniform rows) to 1, whose clusters mean anything.
LEAST_CONFIDENCE = 0.2
_WEIGHT_OF_UNSURE_HALF = 3.0


def confidence_codebook(proxy: NDArray[np.floating[Any]], levels: int = DEFAULT_LEVELS) -> Rows:
    """Return at most ``k * levels`` codes, float64 of width k, at several levels of confidence.

    Parameters
    ----------
    proxy : ndarray of float, shape (n, k)
        Public rows on the simplex, at least one; else ValueError.
    levels : int
        Codes per class, at least 1. Classes with fewer than two proxy rows per level get codes with
        equal other entries.
    """
    rows = _check_proxy(proxy)
    check_in("[1, inf)", "levels", levels, int)
    tops, labels, classes = rows.max(axis=1), rows.argmax(axis=1), rows.shape[1]
    cuts = np.arange(1, levels) / levels
    everywhere = np.quantile(tops, (np.arange(levels) + 0.5) / levels)
    codes: list[Rows] = []
    for label in range(classes):
        own = labels == label
        if own.sum() < 2 * levels:
            # At 1/k a row would be uniform and belong to class 0.
            top = np.maximum(everywhere, 1.0 / classes + 1e-3)
            even = np.repeat((1.0 - top[:, None]) / (classes - 1), classes, axis=1)
            even[:, label] = top
            codes.extend(even)
            continue
        level = np.searchsorted(np.quantile(tops[own], cuts), tops[own])
        codes.extend(rows[own][level == i].mean(axis=0) for i in np.unique(level))
    return _distinct(np.array(codes))


def kmeans_codebook(proxy: NDArray[np.floating[Any]], codes: int, *, seed: int = 0) -> Rows:
    """Return the k-means centres of proxy rows, float64 of width k; needs scikit-learn.

    There are fewer than ``codes`` if centres coincide.

    Parameters
    ----------
    proxy : ndarray of float, shape (n, k)
        Public rows on the simplex; else ValueError.
    codes : int
        In [2, n].
    seed : int
        Of the initial centres.
    """
    from sklearn.cluster import KMeans

    rows = _check_proxy(proxy)
    if not 2 <= codes <= len(rows):
        raise ValueError(f"codes must be in [2, {len(rows)}], got {codes}")
    centres = np.asarray(KMeans(codes, n_init=1, random_state=seed).fit(rows).cluster_centers_)
    centres = np.maximum(centres, 0.0)
    return _distinct(centres / centres.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class ProxySupport:
    """Public rows that represent the codes' cells.

    Rows are float64 on the simplex, shape (n, k), and ``cells`` their codes, int64, each at least
    once.
    """

    rows: Rows
    cells: NDArray[np.int64]
    codes: int

    @classmethod
    def of(cls, mechanism: CodebookResponse, proxy: NDArray[np.floating[Any]]) -> ProxySupport:
        """Return the proxy rows with their cells; an empty cell gets its code."""
        rows = check_simplex_rows("proxy", proxy, mechanism.classes)
        cells = mechanism.encode(rows)
        empty = np.flatnonzero(np.bincount(cells, minlength=mechanism.codes) == 0)
        return cls(
            np.concatenate([rows, mechanism.codebook[empty]]),
            np.concatenate([cells, empty]),
            mechanism.codes,
        )

    def spread(self, shares: ArrayLike) -> Rows:
        """Divide each code's share, shape (m,), among its rows; ValueError for another shape."""
        given = np.asarray(shares, dtype=np.float64)
        if given.shape != (self.codes,):
            raise ValueError(f"shares must have shape ({self.codes},), got {given.shape}")
        sizes = np.bincount(self.cells, minlength=self.codes)
        return np.asarray((given / sizes)[self.cells])


def _check_proxy(proxy: NDArray[np.floating[Any]]) -> Rows:
    rows = check_simplex_rows("proxy", proxy, None)
    if not len(rows):
        raise ValueError("proxy must hold at least one row")
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


def _distinct(codes: Rows) -> Rows:
    _, first = np.unique(codes, axis=0, return_index=True)
    return codes[np.sort(first)]


class UntrustedScoreWarning(UserWarning):
    """A score reflects noise or the proxy more than the clients."""


@dataclass(frozen=True)
class ScoreTrust:
    """Result of an experiment with pretended clients that differ from the proxy in a known way.

    ``recovery`` is the part of the difference that the mean estimate shows, and ``error`` its root
    mean square relative error. The scores are of the proxy and of the pretended clients.
    """

    proxy_score: float
    true_score: float
    recovery: float
    error: float

    @property
    def echoes_proxy(self) -> bool:
        """Whether recovery is below 80 %."""
        return not self.recovery >= LEAST_RECOVERY

    @property
    def is_noise(self) -> bool:
        """Whether the error is above 5 %."""
        return not self.error <= LARGEST_ERROR

    @property
    def complaint(self) -> str:
        """Why the score is not trusted, or empty."""
        if not (self.echoes_proxy or self.is_noise):
            return ""
        return (
            f"the score shows {self.recovery:.0%} of a known difference from the proxy, with "
            f"an error of {self.error:.1%}: more clients or a larger epsilon are needed"
        )

    def warn(self) -> None:
        """Issue :class:`UntrustedScoreWarning` with the complaint, if any."""
        if self.complaint:
            warnings.warn(self.complaint, UntrustedScoreWarning, stacklevel=2)


def score_trust(
    mechanism: CodebookResponse,
    support: ProxySupport,
    score: ClusterScore,
    total: int,
    rng: RandomSource,
    *,
    repeats: int = 20,
    estimate: Callable[[NDArray[np.int64]], Shares] | None = None,
) -> ScoreTrust:
    """Return how closely a score of ``total`` reported rows follows clients, without any client.

    The pretended clients have the less confident half of the proxy's rows three times as often.
    Differences *within* cells stay unseen. An undefined score is not trusted, with NaN.

    Parameters
    ----------
    mechanism, support, score
        As used on real reports.
    total, repeats : int
        Reported rows, and experiments: at least 2 of each, or ValueError.
    estimate : callable, optional
        Maps reports to shares of codes.
    """
    check_in("[2, inf)", "total", total, int)
    check_in("[2, inf)", "repeats", repeats, int)
    turned = np.ones(len(support.rows))
    tops = support.rows.max(axis=1)
    turned[tops < np.median(tops)] = _WEIGHT_OF_UNSURE_HALF
    shares: Shares = np.bincount(support.cells, turned, minlength=support.codes) / turned.sum()
    even = np.bincount(support.cells, minlength=support.codes) / len(support.cells)

    def scored(codes: Shares) -> float:
        return score.of_law(support.rows, support.spread(codes), total)

    proxy_score, true_score = scored(even), scored(shares)
    found, ends = [], np.cumsum(shares)
    ends /= ends[-1]
    for _ in range(repeats):
        # Independent codes by their shares, to a double's precision: nothing private is drawn.
        uniform = rng.words(total) / 2.0**64
        codes = np.minimum(np.searchsorted(ends, uniform, side="right"), len(shares) - 1)
        reports = mechanism.response.randomize_array(codes, rng)
        found.append(scored((estimate or mechanism.estimate)(reports)))
    way = true_score - proxy_score
    recovery = (float(np.mean(found)) - proxy_score) / way if way else math.nan
    error = math.sqrt(float(np.mean((np.array(found) / true_score - 1.0) ** 2)))
    return ScoreTrust(proxy_score, true_score, recovery, error)


def warn_if_near_uniform(rows: NDArray[np.float64], shares: Shares | None = None) -> None:
    """Warn if a model is too unsure for its clusters to mean anything.

    That is below a mean largest entry of 0.2 on the scale from 1/k to 1: 0.28 for ten classes.
    ``rows`` have the shape (n, k), and ``shares`` (n,), by default equal.
    """
    even = 1.0 / rows.shape[1]
    found = (float(np.average(rows.max(axis=1), weights=shares)) - even) / (1.0 - even)
    if found < LEAST_CONFIDENCE:
        warnings.warn(
            f"the model is near uniform (confidence {found:.2f} of 1): its clusters are hardly "
            "there, and a score of them has a large relative error",
            UntrustedScoreWarning,
            stacklevel=2,
        )
