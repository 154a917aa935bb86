r"""One k-ary response on a learned code per record: an embedding that is cheap to release.

A party's model gives each of k codes a score. The code with the largest score goes through
k-ary randomized response (:mod:`~flower_ldp.mechanisms.kary_response`): it is reported with
probability :math:`e^\epsilon/(e^\epsilon+k-1)`.

**Theorem.** Whatever two records are, their codes are two values at most, so one release of a
record is epsilon-LDP, pure and tight: *in all*, where m bits under unary encoding cost
:math:`m\epsilon/2`. As there, the function that scores is held fixed (docs/embedding.md).

**Invalid input.** A record with a score that is no number, or without scores, is answered by a
uniform code.

**Limit.** If codes are classes, no use of a record's report can name the class of k equally
likely ones with a probability above :math:`e^\epsilon/(e^\epsilon+k-1)`, by this mechanism or any
other that is epsilon-LDP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.errors import quoted
from flower_ldp.mechanisms.inputs import INVALID, read_records
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
            raise TypeError(f"codes must be an integer, got {quoted(self.codes)}")
        if not 2 <= self.codes <= MAX_CODES:
            raise ValueError(f"codes must be in [2, {MAX_CODES}], got {self.codes}")
        _ = self.response  # checks epsilon

    @property
    def response(self) -> KaryResponse:
        """The randomizer of a code."""
        return KaryResponse(self.epsilon, self.codes, self.name, Unit.EXAMPLE)

    @property
    def width(self) -> int:
        """Length of an embedding."""
        return self.codes

    @property
    def entries(self) -> str:
        """What an embedding is made of, in words."""
        return "codes"

    @property
    def record_epsilon(self) -> float:
        """Epsilon of one release of one record."""
        return self.epsilon

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release of one record."""
        return self.response.events()

    def unread(self, scores: object) -> NDArray[np.bool_]:
        """Return which records of many have no code that can be read, shape (n,). **Private**."""
        return np.asarray(self.encode(scores) == INVALID)

    def encode(self, scores: object, shape: tuple[int, ...] | None = None) -> NDArray[np.int64]:
        """Return the code of one record or of many: the first of the largest scores.

        **Private**: without noise.

        Parameters
        ----------
        scores : array_like of real numbers, shape (codes,) or (n, codes)
            Never changed.
        shape : tuple of int, optional
            The public shape, where another one must not tell. By default as many rows as there
            are.

        Returns
        -------
        ndarray of int64, shape () or (n,)
            -1 for a record that has no code, since its scores hold NaN or are no such scores.
        """
        found, shape = read_records(scores, self.codes, shape)
        if found is None:
            return np.full(shape[:-1], INVALID, dtype=np.int64)
        missing = (found != found).any(axis=-1)
        return np.asarray(np.where(missing, INVALID, found.argmax(axis=-1)), dtype=np.int64)

    def randomize(
        self, values: object, rng: RandomSource, shape: tuple[int, ...] | None = None
    ) -> NDArray[np.int64]:
        """Return the randomized codes of one record or of many; see :meth:`encode`."""
        return self.response.randomize_array(self.encode(values, shape), rng)

    def log_prob(self, report: ArrayLike, value: object) -> float:
        """Return log P(report | value) of the sampler as built, over all records told of.

        Raises
        ------
        ValueError
            If ``report`` is none.
        """
        reported = check_labels("report", report, self.codes)
        codes = self.encode(value, (*reported.shape, self.codes))
        response, lost = self.response, int((codes == INVALID).sum())
        kept = int((codes == reported).sum())
        law = kept * response.log_prob(0, 0) + lost * response.log_prob(0, None)
        return law + (codes.size - kept - lost) * response.log_prob(1, 0)

    def estimate(self, reports: ArrayLike) -> NDArray[np.float64]:
        """Return unbiased estimates of the true codes as one-hot rows.

        Parameters
        ----------
        reports : array_like of integers, shape (n,) or ()

        Returns
        -------
        ndarray of float64, shape (n, codes) or (codes,)
            Each row adds up to 1.

        Raises
        ------
        ValueError
            If reports say nothing, since epsilon is as good as 0; or one names no code.
        """
        reported = check_labels("reports", reports, self.codes)
        gain = -math.expm1(-self.epsilon)
        truth = gain / (gain + self.codes * math.exp(-self.epsilon))
        if truth == 0 or not math.isfinite(1.0 / truth):
            raise ValueError(f"at epsilon {self.epsilon:g} reports say nothing about the codes")
        return np.asarray((np.eye(self.codes)[reported] - (1.0 - truth) / self.codes) / truth)


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
