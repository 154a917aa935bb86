r"""The mean of one number of each example, such as whether it is predicted right, with noise.

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
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.inputs import as_double, real_array
from flower_ldp.mechanisms.laplace import check_epsilon, grid_noise
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.discrete_laplace import DiscreteLaplace
from flower_ldp.privacy import PrivacyEvent, Unit

_MOST_EXAMPLES = 10**12
_MOST_STEPS = 1 << 20


@dataclass(frozen=True)
class ExampleMean:
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

    epsilon: float
    examples: int
    lower: float = 0.0
    upper: float = 1.0
    steps: int = 1 << 10

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        for name, most in (("examples", _MOST_EXAMPLES), ("steps", _MOST_STEPS)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise ValueError(f"{name} must be an integer in [1, {most}], got {value!r}")
        if not (math.isfinite(self.lower) and math.isfinite(self.upper)):
            raise ValueError(f"bounds must be finite, got [{self.lower}, {self.upper}]")
        if not (self.lower < self.upper and math.isfinite(self.upper - self.lower)):
            raise ValueError(f"lower must be below upper, got [{self.lower}, {self.upper}]")
        grid_noise(self.epsilon, self.steps)

    @cached_property
    def noise(self) -> DiscreteLaplace:
        """The noise that is added, in grid steps."""
        return grid_noise(self.epsilon, self.steps)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of one report's :meth:`estimate` over the noise."""
        width = self.upper - self.lower
        return self.noise.standard_deviation * width / (self.steps * self.examples)

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release: epsilon per example."""
        return (PrivacyEvent("example_mean", self.epsilon, unit=Unit.EXAMPLE),)

    def rounded(self, value: object) -> int:
        """Return an example's value on the grid; 0 for what is no number."""
        found = real_array(value)
        if found is None or found.shape != ():
            return 0
        number = float(as_double(found))
        if math.isnan(number):
            return 0
        clipped = min(max(number, self.lower), self.upper)
        share = (clipped - self.lower) / (self.upper - self.lower)
        return min(max(round(share * self.steps), 0), self.steps)

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

    def estimate(self, reports: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return an unbiased estimate of each mean of clipped values.

        Parameters
        ----------
        reports : ndarray of int64, shape (r,)
            One of each data set.

        Returns
        -------
        ndarray of float64, shape (r,)
        """
        width = self.upper - self.lower
        shares = np.asarray(reports, dtype=np.float64) / (self.steps * self.examples)
        return self.lower + shares * width
