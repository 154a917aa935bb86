r"""Codebook response: a row of class probabilities becomes one code, told by k-ary response.

A public codebook holds m rows on the simplex. A client replaces its row by the nearest code
and reports the code's number through k-ary randomized response.

**Theorem.** Two rows are neighbours if they differ in any way. Which code is nearest is a
deterministic function of the row and of public data, and the response to that code is
epsilon-LDP (:mod:`flower_ldp.mechanisms.kary_response`), so one row is epsilon-LDP; tight if two
codes can be reached. A client that sends n rows pays n epsilon.

"Nearest" is in Euclidean distance among the codes whose largest entry is where the row's is, if
there are any, and among all codes otherwise. Scores group rows by their largest entry, so a
code on the other side of that border would cost more than its distance says. Privacy does
not depend on the rule.

**Invalid input.** Each row that is not on the simplex is answered by a uniform code, and all of
them if there are not as many rows and entries as agreed.

**Estimate.** The share of each code among the clients, by maximum likelihood
(:mod:`flower_ldp.mechanisms.unfolding`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.errors import quoted
from flower_ldp.mechanisms.inputs import INVALID
from flower_ldp.mechanisms.kary_response import KaryResponse, check_labels
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.simplex import check_simplex_rows, read_simplex_rows
from flower_ldp.mechanisms.unfolding import maximum_likelihood
from flower_ldp.privacy import PrivacyEvent

# Distances are computed for this many pairs at a time, to bound memory.
_PAIRS = 1 << 22


@dataclass(frozen=True, eq=False)
class CodebookResponse:
    """K-ary response on the nearest of m public codes.

    Parameters
    ----------
    codebook : ndarray of float, shape (m, k)
        Distinct rows on the simplex, m at least 2; a read-only copy is kept. It must come from
        public data: it is no part of the guarantee.
    epsilon : float
        Per row and per client, for any change of the row; in (0, 100].
    rows : int
        Rows that a client releases at a time, n, at least 1. Public.
    name : str
        What the events are called in a ledger.

    Raises
    ------
    ValueError
        If a parameter is outside its interval, or two codes are equal.

    Examples
    --------
    >>> import numpy as np
    >>> mechanism = CodebookResponse(np.eye(3), epsilon=100.0)
    >>> mechanism.randomize(np.array([[0.1, 0.7, 0.2]]), RandomSource.from_os()).tolist()
    [1]
    """

    codebook: NDArray[np.float64] = field(repr=False)
    epsilon: float
    rows: int = 1
    name: str = "codebook_response"

    def __post_init__(self) -> None:
        codes = check_simplex_rows("codebook", np.asarray(self.codebook), None)
        if len(codes) < 2 or len(np.unique(codes, axis=0)) < len(codes):
            raise ValueError("codebook must hold at least 2 rows, all different")
        codes.flags.writeable = False
        object.__setattr__(self, "codebook", codes)
        if not isinstance(self.rows, int) or self.rows < 1:
            raise ValueError(f"rows must be an integer of at least 1, got {quoted(self.rows)}")
        if not 0 < self.epsilon <= 100:
            raise ValueError(f"epsilon must be in (0, 100], got {self.epsilon}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CodebookResponse):
            return NotImplemented
        mine, theirs = (self.epsilon, self.rows, self.name), (other.epsilon, other.rows, other.name)
        return mine == theirs and np.array_equal(self.codebook, other.codebook)

    def __hash__(self) -> int:
        return hash((self.epsilon, self.rows, self.name, self.codebook.tobytes()))

    @property
    def codes(self) -> int:
        """Number of codes, m."""
        return len(self.codebook)

    @property
    def classes(self) -> int:
        """Entries of a row, k."""
        return int(self.codebook.shape[1])

    @cached_property
    def response(self) -> KaryResponse:
        """The randomizer of a code's number."""
        return KaryResponse(self.epsilon, self.codes, name=self.name)

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release: epsilon for each row, per client."""
        return (PrivacyEvent(self.name, self.epsilon, count=self.rows),)

    def encode(self, rows: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
        """Return the number of each row's code. **Private** wherever the rows are.

        Parameters
        ----------
        rows : ndarray of float, shape (n, k)
            Any number of rows on the simplex.

        Returns
        -------
        ndarray of int64, shape (n,)
            In [0, m); among equally near codes the first.

        Raises
        ------
        ValueError
            If the rows are not on the simplex or of another width.
        """
        given = check_simplex_rows("rows", rows, self.classes)
        found = np.empty(len(given), dtype=np.int64)
        step = max(1, _PAIRS // self.codes)
        tops = self.codebook.argmax(axis=1)
        squares = (self.codebook**2).sum(axis=1)
        for start in range(0, len(given), step):
            part = given[start : start + step]
            distance = squares - 2.0 * part @ self.codebook.T
            # Distances differ by at most 4, so a code of another class loses to any of this one.
            distance += 8.0 * (tops != part.argmax(axis=1)[:, None])
            found[start : start + step] = distance.argmin(axis=1)
        return found

    def _encoded(self, value: object) -> NDArray[np.int64]:
        """Return the number of each row's code, and -1 for rows off the simplex."""
        rows, good = read_simplex_rows(value, (self.rows, self.classes))
        return np.where(good, self.encode(rows), INVALID)

    def randomize(self, value: object, rng: RandomSource) -> NDArray[np.int64]:
        """Return a report of rows of class probabilities.

        Parameters
        ----------
        value : ndarray of float, shape (rows, classes)
            Each row on the simplex, its sum within 1e-3 of 1; not modified. Any other row is
            answered by a uniform code.
        rng : RandomSource
            Source of the noise.

        Returns
        -------
        ndarray of int64, shape (rows,)
            Numbers of codes.
        """
        return self.response.randomize_array(self._encoded(value), rng)

    def log_prob(self, report: ArrayLike, value: object) -> float:
        """Return log P(report | value) of the sampler as built, roundings included.

        Raises
        ------
        ValueError
            If the report is malformed.
        """
        named = check_labels("report", report, self.codes)
        if named.shape != (self.rows,):
            raise ValueError(f"report must have shape ({self.rows},), got {named.shape}")
        pairs = zip(named.tolist(), self._encoded(value).tolist(), strict=True)
        return math.fsum(self.response.log_prob(reported, true) for reported, true in pairs)

    def count(self, reports: ArrayLike) -> NDArray[np.int64]:
        """Return how many reported rows name each code, shape (m,).

        Raises
        ------
        ValueError
            If a report names no code.
        """
        named = check_labels("reports", reports, self.codes)
        return np.bincount(named.reshape(-1), minlength=self.codes).astype(np.int64)

    def estimate(self, reports: ArrayLike) -> NDArray[np.float64]:
        """Return the share of each code among the clients' rows, by maximum likelihood.

        Parameters
        ----------
        reports : array_like of integers, any shape
            Numbers of codes, from any number of clients.

        Returns
        -------
        ndarray of float64, shape (m,)
            On the simplex. No prior enters: :func:`~flower_ldp.mechanisms.unfolding.unfold`
            takes one.

        Raises
        ------
        ValueError
            If a report names no code, or there is none.
        """
        return maximum_likelihood(self.count(reports), self.epsilon)
