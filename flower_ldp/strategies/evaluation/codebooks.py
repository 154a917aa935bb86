"""Codebooks from public proxy rows, and the way back from codes to rows.

Proxy rows are the model's own outputs on inputs that are public: open data, generated data, or
records that were released. They are no part of the guarantee, and they need not be distributed as
the clients' rows are: the reports say how often each code occurs.

A codebook by **confidence**: for every class, the proxy rows of that class are cut into
levels of equal size by their largest entry, and each level's mean is a code. Scores of clusters
by class depend mostly on how confident the rows are, so few codes suffice, and few codes
are what k-ary response needs: its noise grows with their number.

The way back is **not** to the codes. A code is its cell's mean, and means lie nearer to each other
than rows do, so scores of codes are too good. Each code's share is spread over the proxy rows of
its cell instead (post-stratification): the shares come from the clients, the
shape within a cell from the proxy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.mechanisms.codebook import CodebookResponse
from flower_ldp.mechanisms.laplace import check_simplex_rows

Rows = NDArray[np.float64]
#: Levels of confidence for each class; chosen on held-out data (benchmarks/evaluation.py).
DEFAULT_LEVELS = 2


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
    if levels < 1:
        raise ValueError(f"levels must be at least 1, got {levels}")
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
