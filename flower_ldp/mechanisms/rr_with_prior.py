r"""Randomized response that uses a prior: RRWithPrior (Ghazi et al. 2021, Algorithms 2 and 3).

Given a prior p on k categories, let :math:`S_j` be the j categories with the largest prior.
RRTop-j reports a value in :math:`S_j` by j-ary randomized response on :math:`S_j`, and any
other value as a uniform member of :math:`S_j`. Under the prior its report is true with
probability

.. math:: w_j = \frac{e^\epsilon}{e^\epsilon + j - 1} \sum_{i \in S_j} p_i ,

and RRWithPrior is RRTop-j with the j that makes this largest. No other epsilon-LDP report is
true with a larger probability (their Theorem 3). The penalty of the j-th term is
:math:`e^\epsilon + j - 1` with j counted from 1; counting it from 0 picks a j too small.

**Theorem.** Fix the prior. Two values are neighbours if they differ. With t as in
:mod:`~flower_ldp.mechanisms.kary_response`, a report in :math:`S_j` has probability
:math:`t + (1-t)/j` under itself, :math:`(1-t)/j` under the other members and :math:`1/j` under
values outside. The largest ratio is the first by the second, :math:`1 + jt/(1-t) = e^\epsilon`,
so one release is epsilon-LDP; it is tight for j of at least 2, and for j = 1 the report is
constant.

**Invalid input.** What names no category is answered by a uniform member of :math:`S_j`, as a
value outside is. It is also what a uniform category, randomized, comes to: by symmetry the
reports of a uniform member are uniform on :math:`S_j`, and so are those of the others.

**The prior is public.** The theorem holds for a prior that does not depend on the private
value: a public one, or one computed from reports that are already paid for, about this value
(then both costs add up) or about others (then they do not).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.mechanisms.inputs import (
    INVALID,
    fill_labels,
    read_label,
    read_labels,
    read_prior,
)
from flower_ldp.mechanisms.kary_response import (
    check_categories,
    check_category,
    check_labels,
    truth_weight,
)
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.coin import BLOCK, COIN_BITS, toss, uniform
from flower_ldp.privacy import PrivacyEvent, Unit

#: The most categories: a prior holds a number for each.
MAX_PRIOR_CATEGORIES = 2**20


@dataclass(frozen=True)
class RRWithPrior:
    """Randomized response on one of ``categories`` values of which a prior is known.

    Everywhere, ``prior`` has shape ``(categories,)``, one for all values, or the shape of
    the values with ``categories`` appended, one for each. Entries are at least 0 and need
    not add up to 1. Where all are 0 the prior is taken to be uniform.

    Parameters
    ----------
    epsilon : float
        Per release of one value; in (0, 100].
    categories : int
        How many values there are; in [2, 2^20].
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
    >>> RRWithPrior(epsilon=1.0, categories=3).sizes([0.6, 0.3, 0.1])
    array(2)
    """

    needs_prior: ClassVar[bool] = True
    law_terms: ClassVar[tuple[int, ...]] = ()

    epsilon: float
    categories: int
    name: str = "rr_with_prior"
    unit: Unit = Unit.CLIENT

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 100:
            raise ValueError(f"epsilon must be in (0, 100], got {self.epsilon}")
        check_categories(self.categories)
        if self.categories > MAX_PRIOR_CATEGORIES:
            raise ValueError(f"categories must be at most 2^20, got {self.categories}")

    @cached_property
    def _truth_weights(self) -> tuple[int, ...]:
        """The probability t of RRTop-j, for j of 1 and up, in units of 2^-256."""
        return tuple(truth_weight(self.epsilon, j) for j in range(1, self.categories + 1))

    @property
    def report_end(self) -> int:
        """Exclusive upper end of the reports: ``categories``, since a report is a value."""
        return self.categories

    @property
    def keep_probability(self) -> float:
        """P(report = value) where nothing is known: under a uniform prior."""
        return 1.0 / (1.0 + (self.categories - 1) * math.exp(-self.epsilon))

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release, given the prior: epsilon per unit."""
        return (PrivacyEvent(self.name, self.epsilon, unit=self.unit),)

    def randomize(self, value: SupportsIndex | None, rng: RandomSource, prior: ArrayLike) -> int:
        """Return a report of one value.

        Raises
        ------
        ValueError
            If ``prior`` is no prior.
        """
        label = np.array(read_label(value, self.categories))
        return int(self._draw(label, self._rows(prior, ()), rng))

    def randomize_array(
        self, values: ArrayLike, rng: RandomSource, prior: ArrayLike | None = None
    ) -> NDArray[np.int64]:
        """Return independent reports of many values, each costing epsilon.

        Parameters
        ----------
        values : array_like of integers, any shape
            In [0, categories); each other entry is answered by the neutral law.
        prior : array_like of float
            One for all values, or one for each; required.

        Returns
        -------
        ndarray of int64, shape of ``values``

        Raises
        ------
        ValueError
            If ``prior`` is no prior.
        """
        labels = read_labels(values, self.categories, np.int64)
        told = () if prior is None else np.shape(prior)[:-1]
        if told and labels.shape != told:
            # The priors are public and the values are not, so it is these that are wrong.
            labels = np.full(told, INVALID, dtype=np.int64)
        return self._draw(labels, self._rows(prior, labels.shape), rng)

    def _draw(
        self, labels: NDArray[np.int64], priors: NDArray[np.float64], rng: RandomSource
    ) -> NDArray[np.int64]:
        """Put reports in place of labels, -1 where there is none, and return them."""
        reports = fill_labels(labels, self.categories, rng, self.name)
        flat = reports.reshape(-1)
        for start in range(0, flat.size, BLOCK):
            part = flat[start : start + BLOCK]
            rows = priors if len(priors) == 1 else priors[start : start + BLOCK]
            order, size = self._choose(rows)
            size = np.broadcast_to(size, part.shape)
            rank = _ranks(order, part)
            truthful = toss(self._truth_weights, size - 1, rng) & (rank < size)
            rank = np.where(truthful, rank, uniform(size, part.size, rng))
            order = np.broadcast_to(order, (part.size, self.categories))
            part[:] = np.take_along_axis(order, rank[:, np.newaxis], axis=1)[:, 0]
        return reports

    def sizes(self, prior: ArrayLike) -> NDArray[np.int64]:
        """Return the number of categories that may be reported, for each prior.

        Parameters
        ----------
        prior : array_like of float, shape (..., categories)

        Returns
        -------
        ndarray of int64, shape ``prior.shape[:-1]``
        """
        shape = np.shape(prior)[:-1]
        return self._choose(self._rows(prior, shape))[1].reshape(shape)

    def likelihood(self, reports: ArrayLike, prior: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return P(report | value, prior) for each report and every value.

        Parameters
        ----------
        reports : array_like of integers, any shape
        prior : array_like of float
            One for all reports, or one for each; required.

        Returns
        -------
        ndarray of float64, the shape of ``reports`` with ``categories`` appended
        """
        found = check_labels("reports", reports, self.categories)
        order, size = self._choose(self._rows(prior, found.shape))
        flat = found.reshape(-1)
        rank = np.broadcast_to(np.argsort(order, axis=1), (flat.size, self.categories))
        within = rank < size[:, np.newaxis]
        other = np.exp(-self.epsilon) / (1.0 + (size - 1) * np.exp(-self.epsilon))
        law = np.where(within, other[:, np.newaxis], 1.0 / size[:, np.newaxis])
        own = np.arange(flat.size), flat
        law[own] = 1.0 / (1.0 + (np.broadcast_to(size, flat.shape) - 1) * np.exp(-self.epsilon))
        law[~within[own]] = 0.0
        return law.reshape((*found.shape, self.categories))

    def log_prob(
        self, report: SupportsIndex, value: SupportsIndex | None, prior: ArrayLike
    ) -> float:
        """Return log P(report | value, prior) of the sampler as built, roundings included.

        Raises
        ------
        ValueError
            If ``report`` is no integer in [0, categories), or ``prior`` no prior.
        """
        report = check_category("report", report, self.categories)
        found = read_label(value, self.categories)
        (order,), (size,) = self._choose(self._rows(prior, ()))
        members = order[:size].tolist()
        if report not in members:
            return -math.inf
        weight = 1 << COIN_BITS
        if found in members:  # outside of them, or no category at all: uniform
            truth = self._truth_weights[size - 1]
            weight += (len(members) * (report == found) - 1) * truth
        return math.log(weight) - math.log(len(members) << COIN_BITS)

    def _rows(self, prior: ArrayLike | None, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return read_prior(self.name, prior, self.categories, shape)

    def _choose(self, rows: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Return the categories in the order of each prior, and how many of them to use."""
        largest = rows.max(axis=1, keepdims=True)
        # Divided by the largest, so that no sum can overflow; equal priors keep their order.
        rows = np.where(largest > 0, rows / np.where(largest > 0, largest, 1.0), 1.0)
        order = np.argsort(-rows, axis=1, kind="stable")
        found = np.cumsum(np.take_along_axis(rows, order, axis=1), axis=1)
        found /= 1.0 + np.arange(self.categories) * math.exp(-self.epsilon)
        return order, (np.argmax(found, axis=1) + 1).astype(np.int64)


def _ranks(order: NDArray[np.intp], values: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the place of each value in its order, or in the one order of all."""
    if len(order) > 1:
        places: NDArray[np.intp] = np.argmax(order == values[:, np.newaxis], axis=1)
        return places
    # With many categories a table of values by categories would not fit in memory.
    places = np.argsort(order[0])
    return places[values]
