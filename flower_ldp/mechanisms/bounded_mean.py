r"""A scalar metric of a client, such as its mean loss, with discrete Laplace noise.

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

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.inputs import as_double, note, real_array
from flower_ldp.mechanisms.laplace import check_epsilon, grid_noise
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.discrete_laplace import DiscreteLaplace
from flower_ldp.privacy import PrivacyEvent

_LEAST_BITS, _MOST_BITS = 20, 40


@dataclass(frozen=True)
class BoundedMean:
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
    grid_bits: int | None = None
    name: str = "bounded_mean"

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if not (math.isfinite(self.lower) and math.isfinite(self.upper)):
            raise ValueError(f"bounds must be finite, got [{self.lower}, {self.upper}]")
        if not (self.lower < self.upper and math.isfinite(self.upper - self.lower)):
            raise ValueError(f"lower must be below upper, got [{self.lower}, {self.upper}]")
        if self.grid_bits is not None and not 0 <= self.grid_bits <= _MOST_BITS:
            raise ValueError(f"grid_bits must be in [0, {_MOST_BITS}], got {self.grid_bits}")
        grid_noise(self.epsilon, self.steps)

    @property
    def steps(self) -> int:
        """Grid steps between the bounds, G."""
        if self.grid_bits is not None:
            return 1 << self.grid_bits
        return 1 << max(_LEAST_BITS, math.ceil(math.log2(self.epsilon * 1024)))

    @cached_property
    def noise(self) -> DiscreteLaplace:
        """The noise that is added, in grid steps."""
        return grid_noise(self.epsilon, self.steps)

    @property
    def limits(self) -> tuple[int, int]:
        """Least and largest report, 64 noise scales beyond the bounds; a chance below e^-64."""
        return -self.noise.farthest, self.steps + self.noise.farthest

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of one report's :meth:`estimate` over the noise."""
        return self.noise.standard_deviation * (self.upper - self.lower) / self.steps

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release: epsilon per client."""
        return (PrivacyEvent(self.name, self.epsilon),)

    def _rounded(self, value: object) -> int | None:
        """Return the value on the grid, or None where it is no number."""
        found = real_array(value)
        if found is None or found.shape != ():
            return None
        number = float(as_double(found))
        if math.isnan(number):
            return None
        clipped = min(max(number, self.lower), self.upper)
        share = (clipped - self.lower) / (self.upper - self.lower)
        return min(max(round(share * self.steps), 0), self.steps)

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

    def estimate(self, reports: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return an unbiased estimate of each clipped value.

        Parameters
        ----------
        reports : ndarray of int64, shape (n,)
            One report of each client.

        Returns
        -------
        ndarray of float64, shape (n,)
        """
        width = self.upper - self.lower
        return self.lower + np.asarray(reports, dtype=np.float64) * (width / self.steps)
