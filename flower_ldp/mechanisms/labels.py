r"""Mechanisms for labels, and the methods by name.

**Subset selection** (Wang et al. 2016; Ye, Barg 2018) reports a set Z of w of the k categories.
With probability :math:`t = w(e^\epsilon - 1)/(w(e^\epsilon - 1) + k)` it is uniform on the sets
that hold the value, otherwise uniform on all sets. Every value takes the same steps.
**RRWithPrior** (Ghazi et al. 2021, Algorithms 2 and 3) takes the j categories :math:`S_j` of the
largest prior and applies j-ary response on them, with a uniform member for values outside. j
maximizes the probability of a true report,

.. math:: w_j = \frac{e^\epsilon}{e^\epsilon + j - 1} \sum_{i \in S_j} p_i ,

which no epsilon-LDP report exceeds (their Theorem 3). j counts from 1.

**Relation**: any two values, for a fixed prior.

**Unit**: the label, or what ``unit`` names.

**Guarantee**: one release is epsilon-LDP, and tight (a constant for j = 1).

**Proof**: subset selection: a report has the larger probability under the values that it holds, and
the ratio is :math:`1 + (k/w)\,t/(1-t) = e^\epsilon`. RRTop-j: a report in :math:`S_j` has
probability :math:`t + (1-t)/j` under itself, :math:`(1-t)/j` under other members, :math:`1/j` under
values outside; the largest ratio is :math:`1 + jt/(1-t) = e^\epsilon`.

**Exactness**: t is rounded *down* to a multiple of :math:`2^{-256}`, and the ratio grows with t.

**Invalid input**: anything but a category gets a uniform category, randomized: a uniform set, or a
uniform member of :math:`S_j`.

**The prior is public**: it must not depend on the private value, unless through reports that are
paid for, about this value (both costs add up) or about others (they do not).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, ClassVar, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.mechanisms import inputs
from flower_ldp.mechanisms.random import COIN_BITS, Bools, Floats, Ints, RandomSource, toss, uniform
from flower_ldp.mechanisms.randomized_response import KaryResponse, LabelMechanism, truth_weight
from flower_ldp.parameter_bounds import Bounded, check_in
from flower_ldp.privacy import Unit

#: The most categories: a report is a number with a bit for each.
MAX_SET_CATEGORIES = 62
# Below this epsilon the size is chosen as at it: what sizes tell differs by less than rounding.
_LEAST_TOLD = 1e-6


@dataclass(frozen=True)
class SubsetSelection(LabelMechanism):
    """A set of ``size`` of ``categories`` values, which holds the private one more often.

    A report is a number whose bit j says whether category j is in the set.

    Parameters
    ----------
    epsilon : float
        Per release of one value; in (0, 100].
    categories : int
        In [2, 62].
    size : int
        Of the sets; in [1, categories - 1]. 0 is replaced by the size with the largest mutual
        information.
    unit : Unit
        Whose value it is.

    Examples
    --------
    >>> from flower_ldp.mechanisms.random import RandomSource
    >>> SubsetSelection(epsilon=1.0, categories=10).size
    3
    >>> report = SubsetSelection(100.0, 10, size=2).randomize(7, RandomSource.seeded(0))
    >>> report.bit_count(), bool(report >> 7 & 1)
    (2, True)
    """

    epsilon: Annotated[float, Bounded("(0, 100]")]
    # A report is a number with a bit for each.
    categories: Annotated[int, Bounded(f"[2, {MAX_SET_CATEGORIES}]")]
    size: int = 0
    name: str = "subset_selection"
    unit: Unit = Unit.CLIENT

    def __post_init__(self) -> None:
        super().__post_init__()
        check_in(f"[0, {self.categories})", "size", self.size, int)
        if self.size == 0:
            object.__setattr__(self, "size", best_size(self.epsilon, self.categories))

    @property
    def report_end(self) -> int:
        """Exclusive upper end of the reports: 2^categories."""
        return 1 << self.categories

    @property
    def _report_size(self) -> int:  # type: ignore[override]
        return self.size

    @property
    def law_terms(self) -> tuple[int, ...]:
        """The size."""
        return (self.size,)

    @property
    def mutual_information(self) -> float:
        """Mutual information with a uniform value, in nats."""
        return mutual_information(self.epsilon, self.categories, self.size)

    def _answer(self, labels: Ints, rng: RandomSource, priors: Floats) -> Ints:
        return self._joined(super()._answer(labels, rng, priors), rng)

    def _joined(self, first: Ints, rng: RandomSource) -> Ints:
        others = np.zeros(first.size, dtype=np.int64)
        # Floyd's sample of size - 1 numbers below categories - 1 (Bentley, Floyd 1987).
        for last in range(self.categories - self.size, self.categories - 1):
            drawn = uniform(last + 1, first.size, rng)
            taken = others >> drawn & 1
            others |= np.int64(1) << drawn + (last - drawn) * taken
        # The numbers name the categories other than the first, in order.
        below = others & (np.int64(1) << first) - 1
        return below | others >> first << first + 1 | np.int64(1) << first

    def log_prob(self, report: SupportsIndex, value: SupportsIndex | None) -> float:
        """Return log P(report | value); ValueError as :meth:`members`."""
        told = inputs.check_category("report", report, self.report_end)
        if told.bit_count() != self.size:
            raise ValueError(f"report must be a set of {self.size} categories, got {told}")
        found = inputs.read_label(value, self.categories)
        is_read = found != inputs.INVALID
        return self._log_law(is_read=is_read, is_held=is_read and bool(told >> found & 1))

    def members(self, reports: ArrayLike) -> Bools:
        """Return which categories each report holds, bool, along a further axis.

        Raises
        ------
        ValueError
            If a report is no set of ``size`` categories.
        """
        found = inputs.check_labels("reports", reports, self.report_end)
        bits = found[..., np.newaxis] >> np.arange(self.categories) & 1
        if (bits.sum(axis=-1) != self.size).any():
            raise ValueError(f"reports must be sets of {self.size} categories")
        return bits.astype(np.bool_)

    def likelihood(self, reports: ArrayLike, prior: ArrayLike | None = None) -> Floats:
        """Return P(report | value); there must be no prior."""
        inputs.refuse_prior(self.name, prior)
        # p is shared by the sets that hold the value, 1 - p by the others.
        sets = math.comb(self.categories, self.size)
        held = self.keep_probability * self.categories / (self.size * sets)
        return np.where(self.members(reports), held, held * math.exp(-self.epsilon))

    def estimate(self, counts: ArrayLike, total: int) -> Floats:
        """Return unbiased estimates of how often each category is true, float64.

        They add up to the number of reports, ``total``; single ones may be negative. ``counts`` of
        shape (categories,) is ``members(reports).sum(axis=0)``.

        Raises
        ------
        ValueError
            If the counts have another shape, one is no integer in [0, total], or they do not add up
            to ``size`` times the total.
        """
        found = inputs.check_counts(counts, self.categories)
        if (found > total).any() or int(found.sum()) != self.size * total:
            raise ValueError(f"counts must add up to {self.size} for each of {total} reports")
        truth, share = self.truth, self.size / self.categories
        joined = (self.size - 1) / (self.categories - 1)
        other = truth * joined + (1.0 - truth) * share
        return np.asarray((found - total * other) / (truth * (1.0 - joined)))


def mutual_information(epsilon: float, categories: int, size: int) -> float:
    """Return the mutual information of a set with a uniform value, in nats."""
    share = size / categories
    held = 1.0 / (1.0 + (1.0 / share - 1.0) * math.exp(-epsilon))
    # The logarithms of p/share and (1 - p)/(1 - share) have this in common.
    return held * epsilon - math.log1p(share * math.expm1(epsilon))


def best_size(epsilon: float, categories: int) -> int:
    """Return the size with the largest mutual information."""
    told = max(epsilon, _LEAST_TOLD)
    sizes = range(1, categories)
    return max(sizes, key=lambda size: mutual_information(told, categories, size))


@dataclass(frozen=True)
class RRWithPrior(LabelMechanism):
    """Randomized response on one of ``categories`` values with a known prior.

    ``prior`` has shape ``(categories,)``, one for all values, or the shape of the values with
    ``categories`` appended. Entries are at least 0 and need not add up to 1; all zeros count as
    uniform.

    Parameters
    ----------
    epsilon : float
        Per release of one value; in (0, 100].
    categories : int
        In [2, 2^20].
    unit : Unit
        Whose value it is.

    Examples
    --------
    >>> RRWithPrior(epsilon=1.0, categories=3).sizes([0.6, 0.3, 0.1])
    array(2)
    """

    needs_prior: ClassVar[bool] = True

    epsilon: Annotated[float, Bounded("(0, 100]")]
    # A prior holds a number for each.
    categories: Annotated[int, Bounded("[2, 2^20]")]
    name: str = "rr_with_prior"
    unit: Unit = Unit.CLIENT

    @cached_property
    def _truth_weights(self) -> tuple[int, ...]:
        """t, for j of 1 and up, in units of 2^-256."""
        return tuple(truth_weight(self.epsilon, j) for j in range(1, self.categories + 1))

    def randomize(
        self, value: SupportsIndex | None, rng: RandomSource, prior: ArrayLike | None = None
    ) -> int:
        """Return a report of one value; ValueError if ``prior`` is no prior."""
        label = np.array(inputs.read_label(value, self.categories))
        return int(self._draw(label, rng, self._rows(prior, ())))

    def randomize_array(
        self, values: ArrayLike, rng: RandomSource, prior: ArrayLike | None = None
    ) -> Ints:
        """Return independent reports; there must be a prior."""
        labels = self.read(values)
        told = () if prior is None else np.shape(prior)[:-1]
        if told and labels.shape != told:
            # The priors are public and the values are not, so it is these that are wrong.
            labels = np.full(told, inputs.INVALID, dtype=np.int64)
        return self._draw(labels, rng, self._rows(prior, labels.shape))

    def _answer(self, labels: Ints, rng: RandomSource, priors: Floats) -> Ints:
        order, size = self._choose(priors)
        size = np.broadcast_to(size, labels.shape)
        row = np.arange(len(order))
        rank = np.argsort(order, axis=1)[row, labels]
        truthful = toss(self._truth_weights, size - 1, rng) & (rank < size)
        rank = np.where(truthful, rank, uniform(size, labels.size, rng))
        return order[row, rank]

    def sizes(self, prior: ArrayLike) -> Ints:
        """Return j for each prior, int64; ``prior`` has the shape (..., categories)."""
        shape = np.shape(prior)[:-1]
        return self._choose(self._rows(prior, shape))[1].reshape(shape)

    def likelihood(self, reports: ArrayLike, prior: ArrayLike | None = None) -> Floats:
        """Return P(report | value, prior); there must be a prior."""
        found = inputs.check_labels("reports", reports, self.categories)
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
        self, report: SupportsIndex, value: SupportsIndex | None, prior: ArrayLike | None = None
    ) -> float:
        """Return log P(report | value, prior) of the sampler as built.

        Raises
        ------
        ValueError
            If ``report`` is no integer in [0, categories), or ``prior`` no prior.
        """
        report = inputs.check_category("report", report, self.categories)
        found = inputs.read_label(value, self.categories)
        (order,), (size,) = self._choose(self._rows(prior, ()))
        members = order[:size].tolist()
        if report not in members:
            return -math.inf
        weight = 1 << COIN_BITS
        if found in members:  # outside of them, or no category at all: uniform
            truth = self._truth_weights[size - 1]
            weight += (len(members) * (report == found) - 1) * truth
        return math.log(weight) - math.log(len(members) << COIN_BITS)

    def _rows(self, prior: ArrayLike | None, shape: tuple[int, ...]) -> Floats:
        return inputs.read_prior(self.name, prior, self.categories, shape)

    def _choose(self, rows: Floats) -> tuple[NDArray[np.intp], Ints]:
        largest = rows.max(axis=1, keepdims=True)
        # Divided by the largest, so that no sum can overflow; equal priors keep their order.
        rows = np.where(largest > 0, rows / np.where(largest > 0, largest, 1.0), 1.0)
        order = np.argsort(-rows, axis=1, kind="stable")
        found = np.cumsum(np.take_along_axis(rows, order, axis=1), axis=1)
        found /= 1.0 + np.arange(self.categories) * math.exp(-self.epsilon)
        return order, (np.argmax(found, axis=1) + 1).astype(np.int64)


#: Every method by its name in a configuration: what makes the mechanism of each of its stages, of
#: epsilon, the number of categories and a unit. A method of one stage has its mechanism's name.
LABEL_METHODS: Mapping[str, tuple[Callable[..., LabelMechanism], ...]] = MappingProxyType(
    {
        "kary_response": (KaryResponse,),
        "rr_with_prior": (RRWithPrior,),
        "subset_selection": (SubsetSelection,),
        "lp_2st": (KaryResponse, RRWithPrior),
        "lp_2st_subset": (SubsetSelection, RRWithPrior),
        "lp_mst": (KaryResponse, RRWithPrior),
        "lp_mst_subset": (SubsetSelection, RRWithPrior),
    }
)
#: Methods of any number of stages, at least two: the last one's mechanism is repeated.
MULTI_STAGE = ("lp_mst", "lp_mst_subset")


def label_mechanisms(
    method: str, epsilon: float, categories: int, stages: int = 2
) -> tuple[LabelMechanism, ...]:
    """Return the mechanism of each stage; KeyError for an unknown method.

    ``stages`` is their number where the method has any number.
    """
    made = LABEL_METHODS[method]
    if method in MULTI_STAGE:
        made = (*made[:-1], *[made[-1]] * (stages - 1))
    return tuple(build(epsilon, categories, unit=Unit.LABEL) for build in made)


def reports_are_labels(mechanism: LabelMechanism) -> bool:
    """Return whether a report may stand in the place of the true label."""
    return mechanism.report_end == mechanism.categories and not mechanism.edges
