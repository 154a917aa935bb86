r"""Normal noise on the sums of many columns over examples, in one release.

Each of n examples has a value in public bounds in each of k columns. It is rounded to an integer
from 0 to s. The report of the sum :math:`S_j` of column j is

.. math:: y_j = \left\lfloor \frac{S_j + \lfloor 2^{33} Z_j \rfloor}{2^{29}}
          + \tfrac12 \right\rfloor

with independent standard normal :math:`Z_j`. Here s is the largest integer with
:math:`s \sqrt k \le 2R`, for the radius R of :mod:`flower_ldp.mechanisms.gaussian` at this epsilon
and delta.

**Relation**: data sets of n examples that differ in the content of one; n is public.

**Unit**: example.

**Guarantee**: (epsilon, delta)-DP for an example, and for the shift :math:`s \sqrt k / 2^{33}` zCDP
of half its square.

**Proof**: replacing an example moves each sum by at most s, so all of them by at most
:math:`s \sqrt k \le 2R` in L2; no other example's integers move. Sums are whole, so y is a function
of :math:`S + 2^{33} Z`: post-processing of the Gaussian mechanism with a shift of at most
:math:`2R / 2^{33}` deviations, which meets delta (Balle and Wang 2018, Theorem 8).

**Exactness**: s is found in integers, and sums and rounding are exact. The sampler's distance from
the law was taken off delta before R was chosen, for more entries than k.

**Invalid input**: a value that is no number counts as ``lower``, for its example alone.

**Estimate**: lower + :math:`2^{29} y / (n s)` (upper - lower) is unbiased for the mean of rounded
values, and may lie outside the bounds. Of a column's range, its sum has the deviation
:math:`\sqrt k / \mu` for the curve's largest shift :math:`\mu`. Laplace noise has
:math:`\sqrt 2\, k / \epsilon`, and delta 0: it is better for
:math:`k < (\epsilon / (\sqrt 2\, \mu))^2`.

**Source**: Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", 2018.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np

from flower_ldp.mechanisms import gaussian
from flower_ldp.mechanisms.base import Mechanism
from flower_ldp.mechanisms.example_sums import check_bounds, on_grid
from flower_ldp.mechanisms.random import Floats, Ints, RandomSource
from flower_ldp.parameter_bounds import Bounded, check_in
from flower_ldp.privacy import PrivacyEvent, Unit, as_fraction


@dataclass(frozen=True)
class GaussianMeans(Mechanism[Iterable[Iterable[object]], Ints]):
    """Normal noise on the sums of some bounded numbers of each example.

    Parameters
    ----------
    epsilon : float
        Per release and per example, for all columns together; in [0.001, 100].
    delta : float
        Per release and per example; in [1e-18, 0.5] and below one over ``examples``.
    examples : int
        n, public; in [1, 10^12].
    bounds : sequence of (float, float)
        For each column, lower and upper, that values are clipped to: public and finite. At most
        2^20 columns.

    Examples
    --------
    >>> mechanism = GaussianMeans(1.0, 1e-5, examples=3, bounds=[(0.0, 1.0), (0.0, 100.0)])
    >>> columns = [[1.0, 0.0, None], [70.0, 20.0, 45.0]]
    >>> mechanism.estimate(mechanism.randomize(columns, RandomSource.from_os())).shape
    (2,)
    """

    name = "example_mean"
    unit = Unit.EXAMPLE

    epsilon: Annotated[float, Bounded("[0.001, 100]")]
    delta: Annotated[float, Bounded("[1e-18, 0.5]")]
    examples: Annotated[int, Bounded("[1, 10^12]")]
    bounds: Sequence[tuple[float, float]] = ((0.0, 1.0),)

    def __post_init__(self) -> None:
        super().__post_init__()
        if as_fraction(self.delta) * self.examples >= 1:  # one of them could be told in full
            raise ValueError(f"delta must be below one over examples, got {self.delta}")
        # With the most columns, the range of each still has a thousand steps.
        check_in("[1, 2^20]", "columns", len(self.bounds), int)
        for lower, upper in self.bounds:
            check_bounds(lower, upper)

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release per example: epsilon and delta, and rho of the shift."""
        rho = gaussian.rho_of_sums(len(self.bounds) * self.steps**2)
        return (PrivacyEvent(self.name, self.epsilon, self.delta, self.unit, rho=rho),)

    @cached_property
    def steps(self) -> int:
        """Steps of a column's range, s."""
        distance = 2 * gaussian.Gaussian(self.epsilon, self.delta).radius
        return math.isqrt(distance**2 // len(self.bounds))

    @property
    def deviation(self) -> float:
        """Deviation of a column's noisy sum over the column's range, roundings included."""
        return gaussian.SUM_DEVIATION / self.steps

    def total(self, columns: Iterable[Iterable[object]]) -> list[int]:
        """Return the sums before noise; **private**."""
        each = zip(columns, self.bounds, strict=True)
        return [sum([on_grid(one, *ends, self.steps) or 0 for one in of]) for of, ends in each]

    def randomize(self, columns: Iterable[Iterable[object]], rng: RandomSource) -> Ints:
        """Return a report of the columns' values, one of each example; int64, shape (k,)."""
        return gaussian.noisy_sums(self.total(columns), rng)

    def log_prob(self, report: Ints, columns: Iterable[Iterable[object]]) -> float:
        """Return log P(report | columns), of the law that the sampler approximates."""
        return gaussian.log_rounded(report, self.total(columns), gaussian.SUM_BITS)

    def estimate(self, report: Ints) -> Floats:
        """Return an unbiased estimate of the mean of each column, float64, shape (k,)."""
        lower, upper = np.asarray(self.bounds, dtype=np.float64).T
        share = math.ldexp(1.0, gaussian.SUM_BITS) / (self.steps * self.examples)
        return np.asarray(lower + np.asarray(report, dtype=np.float64) * share * (upper - lower))
