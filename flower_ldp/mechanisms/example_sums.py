r"""Noise on sums over examples, and on one number of a client.

The mean of one number of each example, such as whether it is predicted right, with noise.

Of n examples each has a value in [lower, upper], public bounds, rounded to one of G + 1 integers,
0 to G. The n integers are added up, and discrete Laplace noise of rate :math:`\epsilon / G` is
added to the sum. n is public.

**Theorem.** Two data sets are neighbours if they have n examples each and differ in the content of
one (replace-one example). Its integer moves by at most G and no other moves, so the sums are at
most G apart and the release is epsilon-DP for an example; tight for values at the two bounds.
:class:`~flower_ldp.mechanisms.BoundedMean` promises the same epsilon for all data of a client, and
its noise on the mean is n times as large.

**Invalid input.** A value that is no number counts as ``lower``, for its example alone.

**Estimate.** lower + report / (n G) (upper - lower) is unbiased for the mean of the clipped
values. It is not clipped, so it may lie outside of the bounds.

How many examples lie in each public interval, with noise: what quantiles are read from.

Of n examples each has a value, which lies in one of K public intervals: K - 1 between public edges
that ascend, and what is below the first or above the last edge counts with the first or last of
them. An example of several rows shares its weight, the integer G, among the intervals of its rows:
with :math:`c_k` of its m rows in the first k intervals, interval k gets
:math:`\lfloor G c_k / m \rfloor - \lfloor G c_{k-1} / m \rfloor`, which is its part of G to less
than 1. Discrete Laplace noise of rate :math:`\epsilon / 2G` is added to each count.

**Theorem.** Two data sets are neighbours if they differ in the content of one of n examples. Its
weights are integers. They are not negative, since :math:`c_k` does not fall. They add up to
:math:`\lfloor G m / m \rfloor = G`, or to 0 if m is 0. So replacing it moves the vector of counts
by at most 2G in L1, and the release is epsilon-DP for an example.

**Invalid input.** A value that is no number is no row of m, for its example alone.

**Quantiles** are read from the noisy counts, which costs nothing more: the edge at which the
running sum first reaches the share of their total.

A scalar metric of a client, such as its mean loss, with discrete Laplace noise.

The value is clipped into [lower, upper], public bounds, and rounded to one of G + 1 integers,
0 to G; discrete Laplace noise of rate :math:`\epsilon / G` is added.

**Theorem.** Two data sets of a client are neighbours if they differ in any way (replace-one
client). Whatever the data, the rounded value is an integer in [0, G], so neighbours are at
most G apart and the release is epsilon-LDP, and tight for values at the two bounds. The
number of examples behind the mean does not enter: with all of them replaced the mean may go from
one bound to the other.

**Invalid input.** What is no number counts as the middle of the bounds; where G is 1, as either
bound with probability 1/2. Infinities are clipped as any value outside of the bounds.

**Estimate.** lower + report (upper - lower) / G is unbiased for the clipped value. Clipping
biases it for values outside of the bounds, which is why the bounds belong to the statement.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np

from flower_ldp.mechanisms.inputs import as_double, note, real_array
from flower_ldp.mechanisms.laplace import IntegerNoise, grid_steps
from flower_ldp.mechanisms.random import Floats, Ints, RandomSource
from flower_ldp.parameter_bounds import Bounded, check_in
from flower_ldp.privacy import Unit


class _OnGrid(IntegerNoise):
    """A sum of numbers in public bounds, each rounded to an integer from 0 to ``steps``."""

    lower: float
    upper: float

    def _check(self) -> None:
        if not 0 < self.upper - self.lower < math.inf:
            given = f"[{self.lower}, {self.upper}]"
            raise ValueError(f"lower must be below upper, and both be finite, got {given}")

    @property
    def _step(self) -> float:
        """What a grid step of a report is worth in its estimate."""
        return (self.upper - self.lower) / self.sensitivity

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of one report's :meth:`estimate` over the noise."""
        return self.noise.standard_deviation * self._step

    def _rounded(self, value: object) -> int | None:
        """Return the value on the grid, or None where it is no number."""
        number = _number(value)
        if number is None:
            return None
        clipped = min(max(number, self.lower), self.upper)
        share = (clipped - self.lower) / (self.upper - self.lower)
        return min(max(round(share * self.sensitivity), 0), self.sensitivity)

    def estimate(self, reports: Ints) -> Floats:
        """Return an unbiased estimate of what each report is about, from clipped values.

        Parameters
        ----------
        reports : ndarray of int64, shape (r,)
            One of each data set or client.

        Returns
        -------
        ndarray of float64, shape (r,)
        """
        return self.lower + np.asarray(reports, dtype=np.float64) * self._step


def _number(value: object) -> float | None:
    """Return a private value as a double, or None where it is no number."""
    found = real_array(value)
    if found.shape != ():
        return None
    number = float(as_double(found))
    return None if math.isnan(number) else number


@dataclass(frozen=True)
class ExampleMean(_OnGrid):
    """Discrete Laplace noise on a sum of one bounded number of each example.

    Parameters
    ----------
    epsilon : float
        Per release and per example; in [1e-6, 1e6].
    examples : int
        n, public; in [1, 10^12].
    lower, upper : float
        Bounds that values are clipped into; finite, lower < upper. Public.
    steps : int
        G, grid steps between the bounds; in [1, 2^20]. 1 for values that are right or wrong.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.

    Examples
    --------
    >>> mechanism = ExampleMean(epsilon=1.0, examples=3)
    >>> isinstance(mechanism.randomize([1.0, 0.0, None], RandomSource.from_os()), int)
    True
    """

    name = "example_mean"
    unit = Unit.EXAMPLE

    epsilon: float
    examples: Annotated[int, Bounded("[1, 10^12]")]
    lower: float = 0.0
    upper: float = 1.0
    steps: Annotated[int, Bounded("[1, 2^20]")] = 1 << 10

    @property
    def sensitivity(self) -> int:
        """G: an example's integer moves by that much at most."""
        return self.steps

    @property
    def _step(self) -> float:
        return (self.upper - self.lower) / (self.steps * self.examples)

    def rounded(self, value: object) -> int:
        """Return an example's value on the grid; 0 for what is no number."""
        return self._rounded(value) or 0

    def total(self, values: Iterable[object]) -> int:
        """Return the sum that noise is added to; **private**.

        Parameters
        ----------
        values : iterable
            One of each example. An example that is missing counts as ``lower``.
        """
        return sum([self.rounded(value) for value in values])

    def randomize(self, values: Iterable[object], rng: RandomSource) -> int:
        """Return a report of one value of each example, in grid steps of their sum."""
        return self.noised(self.total(values), rng)

    def noised(self, total: int, rng: RandomSource) -> int:
        """Return a report of a sum that :meth:`total` returned."""
        return total + int(self.noise.sample(1, rng)[0])

    def neutral(self, rng: RandomSource) -> int:
        """Return a report of values in the middle of the bounds: what tells nothing."""
        return self.noised(self.examples * self.steps // 2, rng)

    def log_prob(self, report: int, values: Iterable[object]) -> float:
        """Return log P(report | values)."""
        return self.noise.log_prob(report - self.total(values))


_MOST_EDGES = 1 << 20


@dataclass(frozen=True)
class ExampleCounts(IntegerNoise):
    """Discrete Laplace noise on how many examples lie in each of some public intervals.

    Parameters
    ----------
    epsilon : float
        Per release and per example; in [1e-6, 1e6].
    edges : sequence of float
        Finite, ascending, at least two. **Public**.
    steps : int
        G, weight of an example; in [1, 2^16].

    Raises
    ------
    ValueError
        If a parameter is outside its interval.

    Examples
    --------
    >>> mechanism = ExampleCounts(epsilon=1.0, edges=(0.0, 1.0, 10.0))
    >>> mechanism.randomize([[0.5], [3.0], [None]], RandomSource.from_os()).shape
    (2,)
    """

    name = "example_counts"
    unit = Unit.EXAMPLE

    epsilon: float
    edges: Sequence[float]
    steps: Annotated[int, Bounded("[1, 2^16]")] = 1 << 6

    def _check(self) -> None:
        edges = self._places
        if not (2 <= len(edges) <= _MOST_EDGES and np.isfinite(edges).all()):
            raise ValueError(f"edges must be 2 to {_MOST_EDGES} finite numbers")
        if not (np.diff(edges) > 0).all():
            raise ValueError("edges must ascend")

    @property
    def sensitivity(self) -> int:
        """2 G: the weights of an example move by that much at most."""
        return 2 * self.steps

    @cached_property
    def _places(self) -> Floats:
        return np.asarray(self.edges, dtype=np.float64).ravel()

    def weights(self, values: Iterable[object]) -> Ints:
        """Return the weights of one example by its rows' values, shape (K,).

        Their sum is G; 0 if no row has a number.
        """
        numbers = [number for number in map(_number, values) if number is not None]
        # By the edges between two intervals alone: the first and the last one have no end.
        places = np.searchsorted(self._places[1:-1], numbers, side="right")
        rows = np.bincount(places, minlength=len(self._places) - 1)
        shares: Ints = self.steps * np.cumsum(rows) // max(len(numbers), 1)
        return np.diff(shares, prepend=0)

    def total(self, examples: Iterable[Iterable[object]]) -> Ints:
        """Return the counts that noise is added to; **private**."""
        found = np.zeros(len(self._places) - 1, dtype=np.int64)
        for values in examples:
            found += self.weights(values)
        return found

    def randomize(self, examples: Iterable[Iterable[object]], rng: RandomSource) -> Ints:
        """Return a report: of each example the values of its rows, counted, with noise.

        Returns
        -------
        ndarray of int64, shape (K,)
            In steps, negative ones among them.
        """
        counts = self.total(examples)
        return counts + self.noise.sample(len(counts), rng)

    def log_prob(self, report: Ints, examples: Iterable[Iterable[object]]) -> float:
        """Return log P(report | examples)."""
        away = np.asarray(report) - self.total(examples)
        return sum(self.noise.log_prob(int(one)) for one in away)

    def quantile(self, report: Ints, share: float) -> float:
        """Return the edge below which about a share of the examples lies.

        Parameters
        ----------
        report : ndarray of int64, shape (K,)
            What :meth:`randomize` returned.
        share : float
            In [0, 1].
        """
        check_in("[0, 1]", "share", share)
        running = np.cumsum(np.asarray(report, dtype=np.int64))
        wanted = share * max(int(running[-1]), 1)
        (reached,) = np.nonzero(running >= wanted)
        place = int(reached[0]) + 1 if len(reached) else len(self._places) - 1
        return float(self._places[place])


_LEAST_BITS = 20


@dataclass(frozen=True)
class BoundedMean(_OnGrid):
    """Discrete Laplace noise on one number in known bounds.

    Parameters
    ----------
    epsilon : float
        Per release and per client; in [1e-6, 1e6]. Above 100 it is warned of.
    lower, upper : float
        Bounds that the value is clipped into; finite, lower < upper. Public: they must not
        be chosen by looking at private values.
    grid_bits : int, optional
        The bounds are 2^grid_bits steps apart, in [0, 40]. By default the noise has a scale
        of at least 1,024 steps, and there are at least 2^20.
    name : str
        What the events are called in a ledger.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.

    Examples
    --------
    >>> mechanism = BoundedMean(epsilon=1.0, lower=0.0, upper=5.0)
    >>> report = mechanism.randomize(0.7, RandomSource.from_os())
    >>> isinstance(report, int)
    True
    """

    epsilon: float
    lower: float
    upper: float
    grid_bits: Annotated[int | None, Bounded("[0, 40]")] = None
    name: str = "bounded_mean"

    @property
    def steps(self) -> int:
        """Grid steps between the bounds, G."""
        return grid_steps(self.grid_bits, _LEAST_BITS, self.epsilon)

    @property
    def sensitivity(self) -> int:
        """G: the client's integer moves by that much at most."""
        return self.steps

    @property
    def limits(self) -> tuple[int, int]:
        """Least and largest report, 64 noise scales beyond the bounds; a chance below e^-64."""
        return -self.noise.farthest, self.steps + self.noise.farthest

    @property
    def _middle(self) -> tuple[int, int]:
        """The two integers nearest to the middle of the grid; one twice unless G is 1."""
        return self.steps // 2, (self.steps + 1) // 2

    def randomize(self, value: object, rng: RandomSource) -> int:
        """Return a report of one number.

        Parameters
        ----------
        value : float
            Clipped into the bounds. What is no number counts as their middle.
        rng : RandomSource
            Source of the noise.

        Returns
        -------
        int
            Grid steps above ``lower``, negative ones and more than G among them.
        """
        rounded = self._rounded(value)
        if rounded is None:
            note(self.name, "the value is no number")
            rounded = self._middle[rng.bits(1)]
        return rounded + int(self.noise.sample(1, rng)[0])

    def reads(self, value: object) -> bool:
        """Return whether a value is a number; what is none is answered by the neutral law."""
        return self._rounded(value) is not None

    def log_prob(self, report: int, value: object) -> float:
        """Return log P(report | value), as :meth:`Laplace.log_prob` does."""
        rounded = self._rounded(value)
        if rounded is not None:
            return self.noise.log_prob(report - rounded)
        low, high = (self.noise.log_prob(report - middle) for middle in self._middle)
        return float(np.logaddexp(low, high)) - math.log(2)
