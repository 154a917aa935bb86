r"""One k-ary response on a learned code per record: an embedding that is cheap to release.

A party's model gives each of k codes a score. The code with the largest score goes through
k-ary randomized response (:mod:`~flower_ldp.mechanisms.kary_response`): it is reported with
probability :math:`e^\epsilon/(e^\epsilon+k-1)`.

**Theorem.** Whatever two records are, their codes are two values at most, so one release of a
record is epsilon-LDP, pure and tight: *in all*, where m bits under unary encoding cost
:math:`m\epsilon/2`. As there, the function that scores is held fixed (docs/embedding.md).

**Limit.** If codes are classes, no use of a record's report can name the class of k equally
likely ones with a probability above :math:`e^\epsilon/(e^\epsilon+k-1)`, by this mechanism or any
other that is epsilon-LDP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.mechanisms.kary_response import KaryResponse, check_labels
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent, Unit

#: The most codes that a codebook may have.
MAX_CODES = 2**16


@dataclass(frozen=True)
class CodebookEmbedding:
    """k-ary randomized response on the code with the largest score.

    Parameters
    ----------
    epsilon : float
        Per release of one record, in all; in (0, 100].
    codes : int
        Number of codes k; in [2, 2^16].
    name : str
        What the events are called in a ledger.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.

    Examples
    --------
    >>> CodebookEmbedding(epsilon=8.0, codes=10).record_epsilon
    8.0
    """

    epsilon: float
    codes: int
    name: str = "codebook_embedding"

    def __post_init__(self) -> None:
        if isinstance(self.codes, bool) or not isinstance(self.codes, int):
            raise TypeError(f"codes must be an integer, got {self.codes!r}")
        if not 2 <= self.codes <= MAX_CODES:
            raise ValueError(f"codes must be in [2, {MAX_CODES}], got {self.codes}")
        _ = self.response  # checks epsilon

    @property
    def response(self) -> KaryResponse:
        """The randomizer of a code."""
        return KaryResponse(self.epsilon, self.codes, self.name, Unit.EXAMPLE)

    @property
    def record_epsilon(self) -> float:
        """Epsilon of one release of one record."""
        return self.epsilon

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release of one record."""
        return self.response.events()

    def encode(self, scores: ArrayLike) -> NDArray[np.int64]:
        """Return the code of one record or of many: the first of the largest scores.

        Parameters
        ----------
        scores : array_like of real numbers, shape (codes,) or (n, codes)
            Never changed.

        Returns
        -------
        ndarray of int64, shape () or (n,)

        Raises
        ------
        ValueError
            If the shape or kind is another, or a score is NaN.
        """
        found = np.asarray(scores)
        if found.dtype.kind not in "biuf":
            raise ValueError(f"scores must be real numbers, got dtype {found.dtype}")
        if found.ndim not in (1, 2) or found.shape[-1] != self.codes:
            raise ValueError(
                f"scores must have shape ({self.codes},) or (n, {self.codes}), got {found.shape}"
            )
        if found.dtype.kind == "f" and np.isnan(found).any():
            raise ValueError("scores must not hold NaN")
        return np.asarray(found.argmax(axis=-1), dtype=np.int64)

    def randomize(self, values: ArrayLike, rng: RandomSource) -> NDArray[np.int64]:
        """Return the randomized codes of one record or of many; see :meth:`encode`."""
        return self.response.randomize_array(self.encode(values), rng)

    def log_prob(self, report: ArrayLike, value: ArrayLike) -> float:
        """Return log P(report | value) of the sampler as built, over all records given.

        Raises
        ------
        ValueError
            If the two are of different numbers of records, or are not what
            :meth:`randomize` takes and gives.
        """
        codes, told = self.encode(value), check_labels("report", report, self.codes)
        if codes.shape != told.shape:
            raise ValueError(f"report has shape {told.shape}, the codes {codes.shape}")
        response, kept = self.response, int((codes == told).sum())
        return kept * response.log_prob(0, 0) + (codes.size - kept) * response.log_prob(1, 0)

    def estimate(self, reports: ArrayLike) -> NDArray[np.float64]:
        """Return unbiased estimates of the true codes as one-hot rows.

        Parameters
        ----------
        reports : array_like of integers, shape (n,) or ()

        Returns
        -------
        ndarray of float64, shape (n, codes) or (codes,)
            Each row adds up to 1.
        """
        told = check_labels("reports", reports, self.codes)
        gain = -math.expm1(-self.epsilon)
        truth = gain / (gain + self.codes * math.exp(-self.epsilon))
        return np.asarray((np.eye(self.codes)[told] - (1.0 - truth) / self.codes) / truth)


def best_accuracy(epsilon: float, classes: int) -> float:
    """Return how often any epsilon-LDP report of a record can name its class, at most.

    For classes that are equally likely: e^epsilon / (e^epsilon + classes - 1).

    Raises
    ------
    ValueError
        If epsilon is negative or NaN, or there is less than one class.
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be at least 0, got {epsilon}")
    if classes < 1:
        raise ValueError(f"classes must be at least 1, got {classes}")
    return 1.0 / (1.0 + (classes - 1) * math.exp(-epsilon))
