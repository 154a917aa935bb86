r"""Noise on several tables of counts over examples, in one release.

Each table sorts every row into one of its cells. An example of m rows shares its weight G among
them in each table: with :math:`c_k` of its rows in the first k cells, cell k gets
:math:`\lfloor G c_k / m \rfloor - \lfloor G c_{k-1} / m \rfloor`. Of T tables at once, each count
S gets discrete Laplace noise of rate :math:`\epsilon / 2GT`, or normal noise:

.. math:: y = \left\lfloor \frac{w S + \lfloor 2^{33} Z \rfloor}{2^{29}} + \tfrac12 \right\rfloor

with a standard normal Z and the largest integer w with :math:`w G \sqrt{2T} \le 2R`, for the
radius R of :mod:`flower_ldp.mechanisms.gaussian` at this epsilon and delta. The law with the
smaller deviation is taken; the public numbers decide.

**Relation**: data sets that differ in the rows of one example.

**Unit**: example.

**Guarantee**: epsilon-DP for Laplace noise, tight; (epsilon, delta)-DP for normal noise, and zCDP
of half the square of its shift :math:`w G \sqrt{2T} / 2^{33}`.

**Proof**: in a table, an example's weights are integers of at least 0 with the sum G, or 0 without
rows. For two such vectors :math:`|a - b|_1 \le 2G`, and :math:`|a - b|_2^2 \le |a|^2 + |b|^2 \le
2G^2`, since no product is negative. Over T tables the counts move by at most 2GT in L1 and
:math:`G \sqrt{2T}` in L2; no other example's weights move. Both are met by one row that leaves its
cell in each table. Normal noise is post-processing of the Gaussian mechanism with a shift of at
most :math:`2R / 2^{33}` deviations (Balle and Wang 2018, Theorem 8).

**Exactness**: integers and exact noise (:mod:`flower_ldp.mechanisms.integer_noise`).

**Invalid input**: the caller gives a row without a readable value a cell of its own.

**Estimate**: S/G is the number of examples in a cell, where one with several rows counts in parts.
The noise of an estimate has the deviation :math:`2 \sqrt 2\, T / \epsilon`, or
:math:`\sqrt{2T} / \mu` for the curve's largest shift :math:`\mu`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, TypeAlias

import numpy as np

from flower_ldp.mechanisms import gaussian
from flower_ldp.mechanisms.base import Mechanism
from flower_ldp.mechanisms.integer_noise import DiscreteLaplace
from flower_ldp.mechanisms.laplace import check_epsilon
from flower_ldp.mechanisms.random import Floats, Ints, RandomSource
from flower_ldp.parameter_bounds import Bounded, check_in
from flower_ldp.privacy import PrivacyEvent, Unit, as_fraction

#: Cells of each row in each table, int64, shape (rows, T), and whose each row is, shape (rows,).
PlacedRows: TypeAlias = tuple[Ints, Ints]


@dataclass(frozen=True)
class JointCounts(Mechanism[PlacedRows, Ints]):
    """Noise on the numbers of examples in the cells of some tables.

    Parameters
    ----------
    epsilon : float
        Per release and per example, for all tables together; in [1e-6, 1000].
    cells : sequence of int
        The number of cells of each table, **public**: 1 to 100 tables of 2^20 cells together.
    delta : float
        The most that normal noise may cost; in [0, 0.5]. 0 for Laplace noise.
    steps : int
        G, the weight of an example in a table; in [1, 2^16].

    Examples
    --------
    >>> mechanism = JointCounts(1.0, (2, 3))
    >>> rows = np.array([[0, 2], [1, 2], [1, 0]]), np.arange(3)
    >>> mechanism.estimate(mechanism.randomize(rows, RandomSource.from_os())).shape
    (5,)
    """

    name = "counts"
    unit = Unit.EXAMPLE

    epsilon: Annotated[float, Bounded("[1e-6, 1000]")]
    cells: Sequence[int]
    delta: Annotated[float, Bounded("[0, 0.5]")] = 0.0
    steps: Annotated[int, Bounded("[1, 2^16]")] = 1 << 6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_epsilon(self.epsilon)  # it warns
        check_in("[1, 100]", "tables", len(self.cells), int)
        for one in self.cells:
            check_in("[1, 2^20]", "cells", one, int)
        check_in("[1, 2^20]", "cells of all tables", sum(self.cells), int)

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release per example; delta and rho for normal noise only."""
        if not self.factor:
            return (PrivacyEvent(self.name, self.epsilon, unit=self.unit),)
        moved = 2 * len(self.cells) * (self.factor * self.steps) ** 2
        rho = gaussian.rho_of_sums(moved)
        return (PrivacyEvent(self.name, self.epsilon, self.delta, self.unit, rho=rho),)

    @property
    def sensitivity(self) -> int:
        """2 G T, the L1 distance of neighbours' counts in steps."""
        return 2 * self.steps * len(self.cells)

    @cached_property
    def factor(self) -> int:
        """w; 0 for Laplace noise."""
        try:
            distance = 2 * gaussian.Gaussian(self.epsilon, self.delta).radius
        except ValueError:  # a delta of 0, or a parameter beyond what normal noise is made for
            return 0
        found = math.isqrt(distance**2 // (2 * len(self.cells))) // self.steps
        return found if found * self.noise.standard_deviation > gaussian.SUM_DEVIATION else 0

    @cached_property
    def noise(self) -> DiscreteLaplace:
        """The Laplace noise, in steps."""
        return DiscreteLaplace(as_fraction(self.epsilon) / self.sensitivity)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of one estimate, in examples."""
        law = gaussian.SUM_DEVIATION / self.factor if self.factor else self.noise.standard_deviation
        return law / self.steps

    @property
    def farthest(self) -> int:
        """Noise of a report is beyond this with a chance of at most e^-64."""
        return 16 * 19 if self.factor else self.noise.farthest

    @property
    def unit_report(self) -> float:
        """Report of one example."""
        scale = math.ldexp(self.factor, -gaussian.SUM_BITS) if self.factor else 1.0
        return scale * self.steps

    def total(self, rows: PlacedRows) -> Ints:
        """Return all tables' counts in steps before noise, int64, shape (cells,); **private**."""
        places, owners = rows
        found = []
        for cells, column in zip(self.cells, places.T, strict=True):
            order = np.lexsort((column, owners))
            _, starts, sizes = np.unique(owners[order], return_index=True, return_counts=True)
            before = np.arange(len(order)) - np.repeat(starts, sizes)
            many = np.repeat(sizes, sizes)
            shares = self.steps * (before + 1) // many - self.steps * before // many
            table = np.zeros(cells, dtype=np.int64)
            np.add.at(table, column[order], shares)
            found.append(table)
        return np.concatenate(found)

    def randomize(self, rows: PlacedRows, rng: RandomSource) -> Ints:
        """Return a report of all tables, int64, shape (cells,)."""
        return self.noised(self.total(rows), rng)

    def noised(self, total: Ints, rng: RandomSource) -> Ints:
        """Return a report of counts from :meth:`total`."""
        if not self.factor:
            return total + self.noise.sample(len(total), rng)
        return gaussian.noisy_sums([self.factor * count for count in total.tolist()], rng)

    def neutral(self, examples: int, rng: RandomSource) -> Ints:
        """Return a report of examples that are spread evenly over each table's cells."""
        even = np.repeat([self.steps * examples // one for one in self.cells], self.cells)
        return self.noised(even, rng)

    def log_prob(self, report: Ints, rows: PlacedRows) -> float:
        """Return log P(report | rows); of normal noise that of the law that the sampler follows."""
        counts = self.total(rows).tolist()
        if not self.factor:
            both = zip(report.tolist(), counts, strict=True)
            return sum(self.noise.log_prob(y - count) for y, count in both)
        sums = [self.factor * count for count in counts]
        return gaussian.log_rounded(report, sums, gaussian.SUM_BITS)

    def estimate(self, reports: Ints) -> Floats:
        """Return unbiased numbers of examples, float64, of a report or of a sum of reports."""
        return np.asarray(reports, dtype=np.float64) / self.unit_report
