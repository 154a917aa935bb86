r"""Randomized response on one of k categories (Warner 1965; Kairouz, Bonawitz, Ramage 2016).

With probability :math:`t = (e^\epsilon - 1)/(e^\epsilon + k - 1)` the report is the private
value, otherwise it is uniform on all k categories. So the value itself is reported with
probability :math:`e^\epsilon/(e^\epsilon + k - 1)` and each other category with
:math:`1/(e^\epsilon + k - 1)`: the usual k-ary randomized response.

**Theorem.** Two values are neighbours if they differ. A report has the larger probability
under one value at most and the smaller under every other, so the ratio is at most
:math:`1 + kt/(1-t) = e^\epsilon`: one release is epsilon-LDP and tight. The sampler rounds t
*down* to a multiple of :math:`2^{-256}`. The ratio grows with t and is never below 1, so it
never exceeds :math:`e^\epsilon`.

**Invalid input.** What names no category is answered by a uniform one: a uniform category,
randomized, which is uniform again.

**Estimate.** With N reports of which :math:`C_j` name category j,
:math:`(C_j - N (1-t)/k)/t` is an unbiased estimate of how often j is true.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.errors import quoted
from flower_ldp.mechanisms.inputs import (
    INVALID,
    fill_labels,
    note,
    read_label,
    read_labels,
    refuse_prior,
)
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.coin import BLOCK, COIN_BITS, toss, uniform
from flower_ldp.mechanisms.sampling.exact import EXP_BITS, exp_lower
from flower_ldp.privacy import PrivacyEvent, Unit

#: The most categories that a response may have.
MAX_CATEGORIES = 2**31


@dataclass(frozen=True)
class KaryResponse:
    """Randomized response on one of ``categories`` values, named 0, 1, and so on.

    Parameters
    ----------
    epsilon : float
        Per release of one value; in (0, 100].
    categories : int
        How many values there are; in [2, 2^31].
    name : str
        What the events are called in a ledger.
    unit : Unit
        Whose value it is.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.

    Examples
    --------
    >>> from flower_ldp.mechanisms.random import RandomSource
    >>> KaryResponse(epsilon=100.0, categories=10).randomize(7, RandomSource.seeded(0))
    7
    """

    needs_prior: ClassVar[bool] = False
    law_terms: ClassVar[tuple[int, ...]] = ()

    epsilon: float
    categories: int
    name: str = "kary_response"
    unit: Unit = Unit.CLIENT

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 100:
            raise ValueError(f"epsilon must be in (0, 100], got {self.epsilon}")
        check_categories(self.categories)

    @cached_property
    def _truth_weight(self) -> int:
        """The probability t in units of 2^-256, rounded down."""
        return truth_weight(self.epsilon, self.categories)

    @property
    def report_end(self) -> int:
        """Exclusive upper end of the reports: ``categories``, since a report is a value."""
        return self.categories

    @property
    def keep_probability(self) -> float:
        """P(report = value), as a double."""
        return 1.0 / (1.0 + (self.categories - 1) * math.exp(-self.epsilon))

    @property
    def _truth(self) -> float:
        """The probability t, without the cancellation that a small epsilon would bring."""
        gain = -math.expm1(-self.epsilon)
        return gain / (gain + self.categories * math.exp(-self.epsilon))

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release: epsilon per unit."""
        return (PrivacyEvent(self.name, self.epsilon, unit=self.unit),)

    def randomize(self, value: SupportsIndex | None, rng: RandomSource) -> int:
        """Return a report of one value; a uniform category for what is not in [0, categories)."""
        found = read_label(value, self.categories)
        if found == INVALID:
            note(self.name, f"the value is none of {self.categories} categories")
            found = rng.below(self.categories)
        if rng.bits(COIN_BITS) < self._truth_weight:
            return found
        return rng.below(self.categories)

    def randomize_array(
        self, values: ArrayLike, rng: RandomSource, prior: ArrayLike | None = None
    ) -> NDArray[np.int64]:
        """Return independent reports of many values, each costing epsilon.

        Parameters
        ----------
        values : array_like of integers, any shape
            In [0, categories); each other entry is answered by a uniform category.
        prior : None
            A mechanism of labels may need one; this one uses none.

        Returns
        -------
        ndarray of int64, same shape

        Raises
        ------
        ValueError
            If there is a prior.
        """
        refuse_prior(self.name, prior)
        reports = read_labels(values, self.categories, np.int64)
        fill_labels(reports, self.categories, rng, self.name)
        flat = reports.reshape(-1)
        for start in range(0, flat.size, BLOCK):
            part = flat[start : start + BLOCK]
            truthful = toss((self._truth_weight,), np.zeros(part.size, dtype=np.intp), rng)
            # Arithmetic and not a mask: as many steps whatever the coins say.
            part += (uniform(self.categories, part.size, rng) - part) * ~truthful
        return reports

    def log_prob(self, report: SupportsIndex, value: SupportsIndex | None) -> float:
        """Return log P(report | value) of the sampler as built, roundings included.

        Raises
        ------
        ValueError
            If ``report`` is no integer in [0, categories).
        """
        report = check_category("report", report, self.categories)
        found = read_label(value, self.categories)
        if found == INVALID:
            return -math.log(self.categories)
        weight = (1 << COIN_BITS) - self._truth_weight
        if report == found:
            weight += self.categories * self._truth_weight
        return math.log(weight) - math.log(self.categories << COIN_BITS)

    def likelihood(self, reports: ArrayLike, prior: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return P(report | value) for each report and every value.

        Parameters
        ----------
        reports : array_like of integers, any shape
        prior : None
            This mechanism uses none.

        Returns
        -------
        ndarray of float64, the shape of ``reports`` with ``categories`` appended
        """
        refuse_prior(self.name, prior)
        # The matrix is symmetric: a row by value is a column by report.
        law = self.transition()[check_labels("reports", reports, self.categories)]
        return np.asarray(law)

    def transition(self) -> NDArray[np.float64]:
        """Return P(report j | value i) in row i and column j, shape (categories, categories)."""
        other = 1.0 / (math.exp(self.epsilon) + self.categories - 1)
        matrix = np.full((self.categories, self.categories), other)
        np.fill_diagonal(matrix, self.keep_probability)
        return matrix

    def estimate(self, counts: ArrayLike) -> NDArray[np.float64]:
        """Return unbiased estimates of how often each category is true.

        Parameters
        ----------
        counts : array_like of integers, shape (categories,)
            How many reports name each category.

        Returns
        -------
        ndarray of float64, shape (categories,)
            They add up to the number of reports; single ones may be negative.

        Raises
        ------
        ValueError
            If the counts have another shape, or one is no integer of at least 0.
        """
        found = np.asarray(counts)
        if found.shape != (self.categories,):
            raise ValueError(f"counts must have shape ({self.categories},), got {found.shape}")
        if found.dtype.kind not in "iu" or (found < 0).any():
            raise ValueError("counts must be integers of at least 0")
        total = int(found.sum())
        return np.asarray((found - total * (1.0 - self._truth) / self.categories) / self._truth)


def truth_weight(epsilon: float, categories: int) -> int:
    """Return (e^epsilon - 1)/(e^epsilon + categories - 1) in units of 2^-256, rounded down."""
    one, power = 1 << EXP_BITS, exp_lower(epsilon)
    # A smaller e^epsilon makes the fraction smaller, so both roundings are to the safe side.
    return ((power - one) << COIN_BITS) // (power + (categories - 1) * one)


def check_categories(categories: int) -> None:
    """Raise ValueError unless ``categories`` is an integer in [2, 2^31]."""
    if not isinstance(categories, int) or not 2 <= categories <= MAX_CATEGORIES:
        raise ValueError(f"categories must be an integer in [2, 2^31], got {quoted(categories)}")


def check_category(name: str, value: SupportsIndex, categories: int) -> int:
    """Return ``value`` as an int, or raise ValueError unless it is in [0, categories)."""
    try:
        found = operator.index(value)
    except TypeError:
        found = -1
    if not 0 <= found < categories:
        raise ValueError(f"{name} must be an integer in [0, {categories}), got {quoted(value)}")
    return found


def check_labels(name: str, values: ArrayLike, categories: int) -> NDArray[np.int64]:
    """Return ``values`` as int64, or raise ValueError unless all are in [0, categories)."""
    found = np.asarray(values)
    if found.dtype.kind not in "biu" and found.size > 0:
        raise ValueError(f"{name} must be integers, got dtype {found.dtype}")
    if found.size and not (found.min() >= 0 and found.max() < categories):
        # The entries are private, so the text does not name them.
        raise ValueError(f"{name} must be integers in [0, {categories})")
    return found.astype(np.int64, order="C")
