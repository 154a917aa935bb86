r"""Private reports of class probabilities as a score: rows with noise, or codes of a codebook.

The codes come from public proxy rows. These are the model's own outputs on inputs that are public:
open data, generated data, or records that were released. They are no part of the guarantee, and
they need not be distributed as the clients' rows are: the reports say how often each code occurs.

A codebook by **confidence**: for every class, the proxy rows of that class are cut into
levels of equal size by their largest entry, and each level's mean is a code. Scores of clusters
by class depend mostly on how confident the rows are, so few codes suffice, and few codes
are what k-ary response needs: its noise grows with their number.

The way back is **not** to the codes. A code is its cell's mean, and means lie nearer to each other
than rows do, so scores of codes are too good. Each code's share is spread over the proxy rows of
its cell instead (post-stratification): the shares come from the clients, the
shape within a cell from the proxy.

**Trust.** A score that is made with the help of proxy rows can be right for the wrong reason: it
may repeat what the proxy scores by itself. The test is an experiment that needs no client and costs
no privacy. Let pretended clients differ from the proxy in a known way (the less confident half of
its rows three times as frequent as the other), send their codes through the mechanism, and look
what the whole estimate makes of them:

* **recovery** :math:`(\bar s - s_0)/(s_1 - s_0)`: what part of the way the mean estimated score
  goes from the proxy's score :math:`s_0` to the pretended clients' own :math:`s_1`. 1 follows the
  clients, 0 echoes the proxy.
* **error**: the root mean square of :math:`s/s_1 - 1`, noise and bias together.

Not seen is a difference *within* cells between the clients' rows and the proxy's, for which no
report says anything; docs/codebook.md gives what it cost in experiments.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import ArrayLike, NDArray

from flower_ldp.bounds import check_in
from flower_ldp.mechanisms.codebook import CodebookResponse
from flower_ldp.mechanisms.laplace import Laplace, check_simplex_rows, project_to_simplex
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.strategies.evaluation_scores import ClusterScore

Rows = NDArray[np.float64]
#: Levels of confidence for each class; chosen on held-out data (benchmarks/evaluation.py).
DEFAULT_LEVELS = 2
Shares = NDArray[np.float64]
#: Least part of a known difference that a score must show.
LEAST_RECOVERY = 0.8
#: Largest relative error of a score that is worth reading.
LARGEST_ERROR = 0.05
#: Least confidence of a model, from 0 (uniform rows) to 1, whose clusters mean anything.
LEAST_CONFIDENCE = 0.2
_WEIGHT_OF_UNSURE_HALF = 3.0


def confidence_codebook(proxy: NDArray[np.floating[Any]], levels: int = DEFAULT_LEVELS) -> Rows:
    """Return codes for each class at several levels of confidence.

    Parameters
    ----------
    proxy : ndarray of float, shape (n, k)
        Public rows on the simplex.
    levels : int
        Codes for each class, at least 1. A class with fewer than two proxy rows a level
        gets codes that are even apart from their largest entry, as confident as the proxy as a
        whole.

    Returns
    -------
    ndarray of float64, shape (m, k)
        At most ``k * levels`` codes, by class and rising confidence, all different.

    Raises
    ------
    ValueError
        If the proxy is empty or not on the simplex, or ``levels`` is not positive.
    """
    rows = _check_proxy(proxy)
    check_in("[1, inf)", "levels", levels, int)
    tops, labels = rows.max(axis=1), rows.argmax(axis=1)
    cuts = np.arange(1, levels) / levels
    everywhere = np.quantile(tops, (np.arange(levels) + 0.5) / levels)
    codes: list[Rows] = []
    for label in range(rows.shape[1]):
        own = labels == label
        if own.sum() < 2 * levels:
            codes.extend(_even_row(float(top), label, rows.shape[1]) for top in everywhere)
            continue
        level = np.searchsorted(np.quantile(tops[own], cuts), tops[own])
        codes.extend(rows[own][level == i].mean(axis=0) for i in np.unique(level))
    return _distinct(np.array(codes))


def kmeans_codebook(proxy: NDArray[np.floating[Any]], codes: int, *, seed: int = 0) -> Rows:
    """Return the centres of k-means on proxy rows; needs scikit-learn.

    Parameters
    ----------
    proxy : ndarray of float, shape (n, k)
        Public rows on the simplex, at least as many as codes.
    codes : int
        Number of codes, m, at least 2.
    seed : int
        Of the initial centres; nothing here is private.

    Returns
    -------
    ndarray of float64, shape (m, k)
        Fewer where centres coincide.

    Raises
    ------
    ValueError
        If the proxy is not on the simplex, or smaller than the codebook.
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
    """Public rows that stand for the codes' cells.

    Parameters
    ----------
    rows : ndarray of float64, shape (n, k)
        Rows on the simplex; each cell has at least one.
    cells : ndarray of int64, shape (n,)
        The code of each row, in [0, codes).
    codes : int
        Number of codes, m.
    """

    rows: Rows
    cells: NDArray[np.int64]
    codes: int

    @classmethod
    def of(cls, mechanism: CodebookResponse, proxy: NDArray[np.floating[Any]]) -> ProxySupport:
        """Return the proxy rows with their cells; an empty cell is given its code as a row."""
        rows = check_simplex_rows("proxy", proxy, mechanism.classes)
        cells = mechanism.encode(rows)
        empty = np.flatnonzero(np.bincount(cells, minlength=mechanism.codes) == 0)
        return cls(
            np.concatenate([rows, mechanism.codebook[empty]]),
            np.concatenate([cells, empty]),
            mechanism.codes,
        )

    def spread(self, shares: ArrayLike) -> Rows:
        """Return each row's share: its code's, divided evenly among the rows of the cell.

        Parameters
        ----------
        shares : array_like of float, shape (m,)
            As :meth:`CodebookResponse.estimate` returns them.

        Returns
        -------
        ndarray of float64, shape (n,)
            They add up to what ``shares`` add up to.

        Raises
        ------
        ValueError
            If there are not as many shares as codes.
        """
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


def _even_row(top: float, label: int, classes: int) -> Rows:
    # At 1/k the row would be uniform and belong to class 0.
    top = max(top, 1.0 / classes + 1e-3)
    row = np.full(classes, (1.0 - top) / (classes - 1))
    row[label] = top
    return row


def _distinct(codes: Rows) -> Rows:
    _, first = np.unique(codes, axis=0, return_index=True)
    return codes[np.sort(first)]


class UntrustedScoreWarning(UserWarning):
    """A score says more about noise or about the proxy than about the clients."""


@dataclass(frozen=True)
class ScoreTrust:
    """What became of pretended clients that differ from the proxy in a known way.

    Parameters
    ----------
    proxy_score, true_score : float
        Of the proxy, and of the pretended clients.
    recovery : float
        Part of the difference that the estimate shows, on average.
    error : float
        Root mean square relative error of the estimate.
    """

    proxy_score: float
    true_score: float
    recovery: float
    error: float

    @property
    def echoes_proxy(self) -> bool:
        """Whether the score stays with the proxy instead of following the clients."""
        return not self.recovery >= LEAST_RECOVERY

    @property
    def is_noise(self) -> bool:
        """Whether the score misses by more than 5 %."""
        return not self.error <= LARGEST_ERROR

    @property
    def complaint(self) -> str:
        """Why the score is not to be believed; empty where it is."""
        if not (self.echoes_proxy or self.is_noise):
            return ""
        return (
            f"the score shows {self.recovery:.0%} of a known difference from the proxy, with "
            f"an error of {self.error:.1%}: more clients or a larger epsilon are needed"
        )

    def warn(self) -> None:
        """Warn with :class:`UntrustedScoreWarning` where the score is not to be believed."""
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
    """Return how far a score of ``total`` reported rows follows clients, and how closely.

    Parameters
    ----------
    mechanism, support, score
        As they are used on real reports.
    total : int
        Reported rows, N, at least 2.
    rng : RandomSource
        Of the pretended clients and their noise.
    repeats : int
        Experiments, at least 2. Each costs one scoring.
    estimate : callable, optional
        From reports to shares of codes; the mechanism's own by default.

    Returns
    -------
    ScoreTrust
        With NaN where a score is not defined; then it is not trusted.

    Raises
    ------
    ValueError
        If a number is outside its interval.
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
    found = []
    for _ in range(repeats):
        codes = _draw(shares, total, rng)
        reports = mechanism.response.randomize_array(codes, rng)
        found.append(scored((estimate or mechanism.estimate)(reports)))
    way = true_score - proxy_score
    recovery = (float(np.mean(found)) - proxy_score) / way if way else math.nan
    error = math.sqrt(float(np.mean((np.array(found) / true_score - 1.0) ** 2)))
    return ScoreTrust(proxy_score, true_score, recovery, error)


def confidence(rows: NDArray[np.float64], shares: Shares | None = None) -> float:
    """Return how far rows are from uniform: mean largest entry, 1/k scaled to 0 and 1 to 1.

    Parameters
    ----------
    rows : ndarray of float, shape (n, k)
        On the simplex; noisy ones after projection.
    shares : array_like of float, shape (n,), optional
        How often each row occurs; once each by default.
    """
    classes = int(rows.shape[1])
    top = float(np.average(rows.max(axis=1), weights=shares))
    return (top - 1.0 / classes) / (1.0 - 1.0 / classes)


def warn_if_near_uniform(rows: NDArray[np.float64], shares: Shares | None = None) -> None:
    """Warn if a model is too unsure for its clusters to mean anything.

    For ten classes that is a mean largest probability below 0.28. Parameters are those of
    :func:`confidence`.
    """
    found = confidence(rows, shares)
    if found < LEAST_CONFIDENCE:
        warnings.warn(
            f"the model is near uniform (confidence {found:.2f} of 1): its clusters are hardly "
            "there, and a score of them has a large relative error",
            UntrustedScoreWarning,
            stacklevel=2,
        )


def _draw(shares: Shares, total: int, rng: RandomSource) -> NDArray[np.int64]:
    """Return independent codes by their shares, to a double's precision."""
    # Pretended clients only: nothing private is drawn here.
    uniform = rng.words(total) / 2.0**64
    ends = np.cumsum(shares)
    return np.minimum(np.searchsorted(ends / ends[-1], uniform, side="right"), len(shares) - 1)


_log = logging.getLogger("flower_ldp")

Values: TypeAlias = dict[str, float]


@dataclass(frozen=True)
class NoisyRows:
    """Rows with Laplace noise, projected onto the simplex and scored as they are."""

    mechanism: Laplace

    def scored(self, reports: NDArray[np.int64], score: ClusterScore) -> Values:
        """Return ``score``."""
        return {"score": score.of_rows(project_to_simplex(self.mechanism.estimate(reports)))}


@dataclass(frozen=True)
class ProxyCodebook:
    """Rows told by numbers of codes, with a codebook from the round's model and public inputs.

    The server runs the model on inputs that are public; the outputs make the codebook, and
    stand for the clients' rows when the shares of the codes are scored. See
    :mod:`flower_ldp.strategies.evaluation_codebooks`.

    Parameters
    ----------
    epsilon : float
        Per row and per client, for any change of the row; in (0, 100].
    proxy : callable
        From the arrays of a model to its rows of class probabilities on the public inputs,
        shape (any number, classes).
    rows : int
        Rows that a client releases at a time.
    levels : int
        Codes per class.
    trust_repeats : int
        Simulated experiments that tell how far the score follows clients
        (:func:`~flower_ldp.strategies.evaluation_codebooks`), at least 2, or 0 for none. Each
        costs one scoring; none touches private data.

    Raises
    ------
    ValueError
        If ``trust_repeats`` is negative or 1, or another parameter is outside its interval.
    """

    epsilon: float
    proxy: Callable[[ArrayRecord], NDArray[np.floating[Any]]]
    rows: int = 1
    levels: int = DEFAULT_LEVELS
    trust_repeats: int = 20

    def __post_init__(self) -> None:
        CodebookResponse(np.eye(2), self.epsilon, self.rows)  # their domains
        check_in("[1, inf)", "levels", self.levels, int)
        if self.trust_repeats < 0 or self.trust_repeats == 1:
            raise ValueError(f"trust_repeats must be 0 or at least 2, got {self.trust_repeats}")

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release: epsilon for each row, per client."""
        return CodebookResponse(np.eye(2), self.epsilon, self.rows).events()

    def for_model(self, arrays: ArrayRecord) -> CodebookRows:
        """Return the codebook that a model makes, and the rows that stand for its codes."""
        proxy = np.asarray(self.proxy(arrays))
        codebook = confidence_codebook(proxy, self.levels)
        mechanism = CodebookResponse(codebook, self.epsilon, self.rows)
        return CodebookRows(mechanism, ProxySupport.of(mechanism, proxy), self.trust_repeats)


@dataclass(frozen=True, eq=False)
class CodebookRows:
    """Codes of one round: their shares are estimated, and spread over the proxy's rows."""

    mechanism: CodebookResponse
    support: ProxySupport
    trust_repeats: int

    def scored(self, reports: NDArray[np.int64], score: ClusterScore) -> Values:
        """Return ``score``, and ``score-recovery`` and ``score-error`` if they are asked for."""
        shares = self.support.spread(self.mechanism.estimate(reports))
        warn_if_near_uniform(self.support.rows, shares)
        values = {"score": score.of_law(self.support.rows, shares, len(reports))}
        if self.trust_repeats and len(reports) > 1:
            total, rng, repeats = len(reports), RandomSource.from_os(), self.trust_repeats
            trust = score_trust(self.mechanism, self.support, score, total, rng, repeats=repeats)
            values |= {"score-recovery": trust.recovery, "score-error": trust.error}
            if trust.complaint:
                _log.warning("%s", trust.complaint)
        return values


#: What one round asks for, and how its reports are read.
RoundRows: TypeAlias = NoisyRows | CodebookRows
