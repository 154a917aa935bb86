r"""Randomized response: on one bit and on one of k categories.

A bit is kept with probability :math:`P = e^\epsilon / (1 + e^\epsilon)` and flipped otherwise. On k
categories, with probability :math:`t = (e^\epsilon - 1)/(e^\epsilon + k - 1)` the report is the
value, otherwise uniform on all k.

**Relation**: any two values.

**Unit**: the bit or value, of the client or the example that ``unit`` names.

**Guarantee**: one report is epsilon-LDP, and tight.

**Proof**: a report has the larger probability under one value at most and the smaller under every
other; their ratio is :math:`1 + kt/(1-t) = e^\epsilon`.

**Exactness**: the sampler rounds the flip probability up and t down to multiples of
:math:`2^{-256}`. Both make the ratio smaller, so it never exceeds :math:`e^\epsilon`.

**Invalid input**: anything else gets a fair bit or a uniform category, randomized, which is fair or
uniform again.

**Estimate**: of C ones among N reports, :math:`(C - N (1 - P)) / (2P - 1)`, with standard deviation
:math:`\sqrt{N P (1-P)} / (2P - 1)`; of :math:`C_j` reports of j, :math:`(C_j - N (1-t)/k)/t`.

**Source**: Warner 1965; Kairouz, Bonawitz, Ramage 2016.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.errors import quoted
from flower_ldp.mechanisms import inputs, random
from flower_ldp.mechanisms.base import Mechanism
from flower_ldp.mechanisms.random import BLOCK, COIN_BITS, EXP_BITS, Floats, Ints, RandomSource
from flower_ldp.parameter_bounds import Bounded, check_in
from flower_ldp.privacy import Unit

MAX_CATEGORIES = 2**31
#: One for all values, of nothing.
_NO_PRIOR = np.empty((1, 0))


class LabelMechanism(Mechanism[Any, Any]):
    """Randomizes one of some categories, each value independently; the base of frozen dataclasses.

    Class, epsilon, categories and ``law_terms`` fix the law up to the prior. In a ledger,
    mechanisms that are equal in these count as the same.
    """

    #: Whether labels are randomized, and reports read, with a prior: always, or never.
    needs_prior: ClassVar[bool] = False

    categories: int
    #: Where all categories but the first begin, if they are bins of numbers.
    edges: tuple[float, ...] = ()
    #: How many of them a report holds. A public name would take over a subclass's own field.
    _report_size: int = 1

    @property
    def law_terms(self) -> tuple[float, ...]:
        """Further terms that fix the law."""
        return ()

    @property
    def report_end(self) -> int:
        """Exclusive upper end of the reports."""
        return self.categories

    @property
    def keep_probability(self) -> float:
        """P(the report holds the value) without a prior."""
        return 1.0 / (1.0 + (self.categories / self._report_size - 1.0) * math.exp(-self.epsilon))

    @cached_property
    def _truth_weight(self) -> int:
        return truth_weight(self.epsilon, self.categories, self._report_size)

    @property
    def truth(self) -> float:
        """The probability t."""
        gain = -self._report_size * math.expm1(-self.epsilon)
        return gain / (gain + self.categories * math.exp(-self.epsilon))

    def read(self, values: object) -> Ints:
        """Return the category of each value, int64, -1 for what names none. **Private**."""
        return inputs.read_labels(values, self.categories, np.int64)

    def randomize(self, value: SupportsIndex | None, rng: RandomSource) -> int:
        """Return a report of one value."""
        return int(self._draw(np.array(inputs.read_label(value, self.categories)), rng))

    def randomize_array(
        self, values: ArrayLike, rng: RandomSource, prior: ArrayLike | None = None
    ) -> Ints:
        """Return independent reports of many values, int64 of their shape, each costing epsilon.

        Parameters
        ----------
        values : array_like of integers, any shape
            In [0, categories).
        prior : array_like of float, optional
            One for all values, or one for each; only for a mechanism that needs one.

        Raises
        ------
        ValueError
            If the prior is wrong, missing where one is needed, or given where none is.
        """
        inputs.refuse_prior(self.name, prior)
        return self._draw(self.read(values), rng)

    def _draw(self, labels: Ints, rng: RandomSource, priors: Floats = _NO_PRIOR) -> Ints:
        reports = inputs.fill_labels(labels, self.categories, rng, self.name)
        flat = reports.reshape(-1)
        for start in range(0, flat.size, BLOCK):
            part = flat[start : start + BLOCK]
            rows = priors if len(priors) == 1 else priors[start : start + BLOCK]
            part[:] = self._answer(part, rng, rows)
        return reports

    def _answer(self, labels: Ints, rng: RandomSource, priors: Floats) -> Ints:
        truthful = random.toss((self._truth_weight,), np.zeros(labels.size, dtype=np.intp), rng)
        # Arithmetic and not a mask: as many steps whatever the coins say.
        return labels + (random.uniform(self.categories, labels.size, rng) - labels) * ~truthful

    def _log_law(self, *, is_read: bool, is_held: bool) -> float:
        reports = math.comb(self.categories, self._report_size)
        if not is_read:
            return -math.log(reports)
        weight = ((1 << COIN_BITS) - self._truth_weight) * self._report_size
        if is_held:
            weight += self.categories * self._truth_weight
        return math.log(weight) - math.log(self._report_size * reports << COIN_BITS)

    @abstractmethod
    def likelihood(self, reports: ArrayLike, prior: ArrayLike | None = None) -> Floats:
        """Return P(report | value, prior), float64, with every value along a last axis.

        Raises
        ------
        ValueError
            As for :meth:`randomize_array`, or if one is no report.
        """


@dataclass(frozen=True)
class BinaryResponse(Mechanism[Any, int]):
    """Randomized response on one bit.

    Parameters
    ----------
    epsilon : float
        Per release of one bit; in (0, 100].
    unit : Unit
        Whose bit it is.

    Examples
    --------
    >>> from flower_ldp.mechanisms.random import RandomSource
    >>> BinaryResponse(epsilon=100.0).randomize(1, RandomSource.seeded(0))
    1
    """

    epsilon: Annotated[float, Bounded("(0, 100]")]
    name: str = "binary_response"
    unit: Unit = Unit.CLIENT

    @cached_property
    def _flip_weight(self) -> int:
        one = 1 << EXP_BITS
        return -(-(one << COIN_BITS) // (one + random.exp_lower(self.epsilon)))

    @property
    def keep_probability(self) -> float:
        """P(report = bit), as a double."""
        return 1.0 / (1.0 + math.exp(-self.epsilon))

    @property
    def _gain(self) -> float:
        return math.tanh(self.epsilon / 2.0)

    def randomize(self, value: int | None, rng: RandomSource) -> int:
        """Return a report of one bit."""
        bit = inputs.read_label(value, 2)
        if bit == inputs.INVALID:
            inputs.note(self.name, "the value is neither 0 nor 1")
            bit = rng.bits(1)
        flip = rng.bits(COIN_BITS) < self._flip_weight
        return bit ^ int(flip)

    def randomize_array(self, values: ArrayLike, rng: RandomSource) -> NDArray[np.uint8]:
        """Return independent reports of bits, uint8 of their shape, each costing epsilon."""
        bits = inputs.fill_labels(inputs.read_labels(values, 2, np.int8), 2, rng, self.name)
        flips = random.toss((self._flip_weight,), np.zeros(bits.size, dtype=np.intp), rng)
        return bits.astype(np.uint8) ^ flips.reshape(bits.shape).astype(np.uint8)

    def log_prob(self, report: int, value: int | None) -> float:
        """Return log P(report | value), or ValueError for no bit."""
        if report not in (0, 1):
            raise ValueError(f"report must be 0 or 1, got {quoted(report)}")
        bit = inputs.read_label(value, 2)
        if bit == inputs.INVALID:
            return -math.log(2)
        whole = 1 << COIN_BITS
        weight = whole - self._flip_weight if report == bit else self._flip_weight
        return math.log(weight) - math.log(whole)

    def estimate(self, ones: int, total: int) -> float:
        """Return an unbiased estimate of the true number of ones.

        ``ones`` of ``total`` reports are 1; impossible counts raise ValueError.
        """
        check_in(f"[0, {total}]", "ones", ones)
        return (ones - total * (1.0 - self.keep_probability)) / self._gain

    def standard_deviation(self, total: int) -> float:
        """Return the deviation of :meth:`estimate` by the noise."""
        keep = self.keep_probability
        return math.sqrt(total * keep * (1.0 - keep)) / self._gain


@dataclass(frozen=True)
class KaryResponse(LabelMechanism):
    """Randomized response on one of ``categories`` values, numbered from 0.

    Parameters
    ----------
    epsilon : float
        Per release of one value; in (0, 100].
    categories : int
        In [2, 2^31].
    unit : Unit
        Whose value it is.

    Examples
    --------
    >>> from flower_ldp.mechanisms.random import RandomSource
    >>> KaryResponse(epsilon=100.0, categories=10).randomize(7, RandomSource.seeded(0))
    7
    """

    epsilon: Annotated[float, Bounded("(0, 100]")]
    categories: Annotated[int, Bounded("[2, 2^31]")]
    name: str = "kary_response"
    unit: Unit = Unit.CLIENT

    def log_prob(self, report: SupportsIndex, value: SupportsIndex | None) -> float:
        """Return log P(report | value), or ValueError for no category."""
        report = inputs.check_category("report", report, self.categories)
        found = inputs.read_label(value, self.categories)
        return self._log_law(is_read=found != inputs.INVALID, is_held=report == found)

    def likelihood(self, reports: ArrayLike, prior: ArrayLike | None = None) -> Floats:
        """Return P(report | value); there must be no prior."""
        inputs.refuse_prior(self.name, prior)
        # The matrix is symmetric: a row by value is a column by report.
        found = inputs.check_labels("reports", reports, self.categories)
        return np.asarray(self.transition()[found])

    def transition(self) -> Floats:
        """Return P(report j | value i) in row i and column j."""
        other = 1.0 / (math.exp(self.epsilon) + self.categories - 1)
        matrix = np.full((self.categories, self.categories), other)
        np.fill_diagonal(matrix, self.keep_probability)
        return matrix

    def estimate(self, counts: ArrayLike) -> Floats:
        """Return unbiased estimates of how often each category is true, float64.

        They add up to the number of reports; single ones may be negative. ``counts`` of shape
        (categories,) are the reports of each.

        Raises
        ------
        ValueError
            If the counts have another shape, or one is no integer of at least 0.
        """
        found = inputs.check_counts(counts, self.categories)
        total = int(found.sum())
        return np.asarray((found - total * (1.0 - self.truth) / self.categories) / self.truth)


def truth_weight(epsilon: float, categories: int, held: int = 1) -> int:
    """Return t in units of 2^-256, rounded down, for ``held`` categories a report."""
    one = 1 << EXP_BITS
    # A smaller e^epsilon makes the fraction smaller, so both roundings are to the safe side.
    gain = held * (random.exp_lower(epsilon) - one)
    return (gain << COIN_BITS) // (gain + categories * one)
