"""Codebook response: a row of class probabilities becomes one code, sent by k-ary response.

A public codebook holds m rows on the simplex. A client replaces its row by the nearest code, in
Euclidean distance among the codes of the same largest entry, if any, else among all.

**Relation**: any two rows.

**Unit**: one row; a client that sends n rows pays n epsilon.

**Guarantee**: a row is epsilon-LDP; tight if two codes can be reached.

**Proof**: the nearest code is a deterministic function of the row and of public data, and the
response to it is epsilon-LDP (:mod:`flower_ldp.mechanisms.randomized_response`).

**Exactness**: that of the response.

**Invalid input**: a row off the simplex gets a uniform code, and all rows do if there are not as
many rows and entries as agreed.

**Estimate**: shares by maximum likelihood in closed form, which docs/codebook.md derives.

**Source**: k-ary response, Kairouz, Bonawitz, Ramage 2016.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.mechanisms.base import Mechanism
from flower_ldp.mechanisms.inputs import INVALID, check_counts, check_labels
from flower_ldp.mechanisms.laplace import check_simplex_rows, read_simplex_rows
from flower_ldp.mechanisms.random import Floats, Ints, RandomSource
from flower_ldp.mechanisms.randomized_response import KaryResponse
from flower_ldp.parameter_bounds import Bounded
from flower_ldp.privacy import PrivacyEvent

# Distances are computed for this many pairs at a time, to bound memory.
_PAIRS = 1 << 22


@dataclass(frozen=True, eq=False)
class CodebookResponse(Mechanism[object, Any]):
    """K-ary response on the nearest of m public codes.

    Parameters
    ----------
    codebook : ndarray of float, shape (m, k)
        Distinct rows on the simplex, m at least 2; copied. It must come from public data: the
        guarantee does not cover it.
    epsilon : float
        Per row and per client, for any change of the row; in (0, 100].
    rows : int
        Rows of one release, n, at least 1. Public.

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

    codebook: Floats = field(repr=False)
    epsilon: Annotated[float, Bounded("(0, 100]")]
    rows: Annotated[int, Bounded("[1, inf)")] = 1
    name: str = "codebook_response"

    def __post_init__(self) -> None:
        codes = check_simplex_rows("codebook", np.asarray(self.codebook), None)
        if len(codes) < 2 or len(np.unique(codes, axis=0)) < len(codes):
            raise ValueError("codebook must hold at least 2 rows, all different")
        codes.flags.writeable = False
        object.__setattr__(self, "codebook", codes)
        super().__post_init__()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CodebookResponse):
            return NotImplemented
        mine, theirs = (self.epsilon, self.rows, self.name), (other.epsilon, other.rows, other.name)
        return mine == theirs and np.array_equal(self.codebook, other.codebook)

    def __hash__(self) -> int:
        return hash((self.epsilon, self.rows, self.name, self.codebook.tobytes()))

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release: epsilon for each row, per client."""
        return (PrivacyEvent(self.name, self.epsilon, count=self.rows),)

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

    def encode(self, rows: NDArray[np.floating[Any]]) -> Ints:
        """Return the number of each row's code. **Private** wherever the rows are.

        Int64 in [0, m), shape (n,), for rows of shape (n, k); among equally near codes the first.

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

    def _encoded(self, value: object) -> Ints:
        """Return the code of each row, -1 off the simplex."""
        rows, good = read_simplex_rows(value, (self.rows, self.classes))
        return np.where(good, self.encode(rows), INVALID)

    def randomize(self, value: object, rng: RandomSource) -> Ints:
        """Return a report of rows of class probabilities: int64 numbers of codes, shape (rows,).

        Parameters
        ----------
        value : ndarray of float, shape (rows, classes)
            Each row on the simplex, its sum within 1e-3 of 1.
        """
        return self.response.randomize_array(self._encoded(value), rng)

    def log_prob(self, report: ArrayLike, value: object) -> float:
        """Return log P(report | value), or ValueError for no report."""
        named = check_labels("report", report, self.codes)
        if named.shape != (self.rows,):
            raise ValueError(f"report must have shape ({self.rows},), got {named.shape}")
        pairs = zip(named.tolist(), self._encoded(value).tolist(), strict=True)
        return math.fsum(self.response.log_prob(reported, true) for reported, true in pairs)

    def count(self, reports: ArrayLike) -> Ints:
        """Return the reports of each code, shape (m,)."""
        named = check_labels("reports", reports, self.codes)
        return np.bincount(named.reshape(-1), minlength=self.codes).astype(np.int64)

    def estimate(self, reports: ArrayLike) -> Floats:
        """Return the likeliest share of each code, float64 on the simplex, shape (m,).

        ``reports`` are of any shape and number of clients.

        Raises
        ------
        ValueError
            If a report names no code, or there is none.
        """
        return maximum_likelihood(self.count(reports), self.epsilon)


def maximum_likelihood(counts: ArrayLike, epsilon: float) -> Floats:
    """Return the likeliest shares, float64 on the simplex; ValueError without reports."""
    found = check_counts(counts, max(np.size(counts), 2)).astype(np.float64)
    if not found.any():
        raise ValueError("counts must name at least one report")
    noise = 1.0 / math.expm1(epsilon)  # q/t, which does not depend on the number of categories
    falling = np.sort(found)[::-1]
    scale = np.cumsum(falling) / (1.0 + noise * np.arange(1, len(found) + 1))
    kept = int((falling > noise * scale).sum())
    shares = np.maximum(found / scale[kept - 1] - noise, 0.0)
    return np.asarray(shares / shares.sum())
