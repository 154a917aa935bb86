r"""How many examples lie in each public interval, with noise: what quantiles are read from.

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
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.inputs import as_double, real_array
from flower_ldp.mechanisms.laplace import check_epsilon, grid_noise
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.discrete_laplace import DiscreteLaplace
from flower_ldp.privacy import PrivacyEvent, Unit

_MOST_EDGES = 1 << 20
_MOST_STEPS = 1 << 16


@dataclass(frozen=True)
class ExampleCounts:
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

    epsilon: float
    edges: Sequence[float]
    steps: int = 1 << 6

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if isinstance(self.steps, bool) or not isinstance(self.steps, int):
            raise ValueError(f"steps must be an integer, got {self.steps!r}")
        if not 1 <= self.steps <= _MOST_STEPS:
            raise ValueError(f"steps must be in [1, {_MOST_STEPS}], got {self.steps}")
        edges = self._places
        if not (2 <= len(edges) <= _MOST_EDGES and np.isfinite(edges).all()):
            raise ValueError(f"edges must be 2 to {_MOST_EDGES} finite numbers")
        if not (np.diff(edges) > 0).all():
            raise ValueError("edges must ascend")
        grid_noise(self.epsilon, 2 * self.steps)

    @cached_property
    def _places(self) -> NDArray[np.float64]:
        return np.asarray(self.edges, dtype=np.float64).ravel()

    @cached_property
    def noise(self) -> DiscreteLaplace:
        """The noise that is added to each count, in steps."""
        return grid_noise(self.epsilon, 2 * self.steps)

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release: epsilon per example."""
        return (PrivacyEvent("example_counts", self.epsilon, unit=Unit.EXAMPLE),)

    def weights(self, values: Iterable[object]) -> NDArray[np.int64]:
        """Return the weights of one example by its rows' values, shape (K,).

        Their sum is G; 0 if no row has a number.
        """
        places = [place for place in map(self._place, values) if place is not None]
        rows = np.bincount(np.array(places, np.int64), minlength=len(self._places) - 1)
        shares: NDArray[np.int64] = self.steps * np.cumsum(rows) // max(len(places), 1)
        return np.diff(shares, prepend=0)

    def _place(self, value: object) -> int | None:
        array = real_array(value)
        number = math.nan if array is None or array.shape != () else float(as_double(array))
        if math.isnan(number):
            return None
        place = int(np.searchsorted(self._places, number, side="right")) - 1
        return min(max(place, 0), len(self._places) - 2)

    def total(self, examples: Iterable[Iterable[object]]) -> NDArray[np.int64]:
        """Return the counts that noise is added to; **private**."""
        found = np.zeros(len(self._places) - 1, dtype=np.int64)
        for values in examples:
            found += self.weights(values)
        return found

    def randomize(
        self, examples: Iterable[Iterable[object]], rng: RandomSource
    ) -> NDArray[np.int64]:
        """Return a report: of each example the values of its rows, counted, with noise.

        Returns
        -------
        ndarray of int64, shape (K,)
            In steps, negative ones among them.
        """
        counts = self.total(examples)
        return counts + self.noise.sample(len(counts), rng)

    def log_prob(self, report: NDArray[np.int64], examples: Iterable[Iterable[object]]) -> float:
        """Return log P(report | examples)."""
        away = np.asarray(report) - self.total(examples)
        return sum(self.noise.log_prob(int(one)) for one in away)

    def quantile(self, report: NDArray[np.int64], share: float) -> float:
        """Return the edge below which about a share of the examples lies.

        Parameters
        ----------
        report : ndarray of int64, shape (K,)
            What :meth:`randomize` returned.
        share : float
            In [0, 1].
        """
        if not 0 <= share <= 1:
            raise ValueError(f"share must be in [0, 1], got {share}")
        running = np.cumsum(np.asarray(report, dtype=np.int64))
        wanted = share * max(int(running[-1]), 1)
        (reached,) = np.nonzero(running >= wanted)
        place = int(reached[0]) + 1 if len(reached) else len(self._places) - 1
        return float(self._places[place])
