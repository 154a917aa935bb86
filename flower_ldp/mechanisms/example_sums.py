r"""Noise on sums over examples, and on one number of a client.

**Mean of examples** (:class:`ExampleMean`). Each of n examples has a value in public bounds,
rounded to an integer from 0 to G. The sum gets discrete Laplace noise of rate :math:`\epsilon / G`.

**Mean of a client** (:class:`BoundedMean`). One value is clipped to public bounds and rounded to an
integer from 0 to G, with noise of rate :math:`\epsilon / G`.

**Relation**: the first, data sets of n examples that differ in the content of one; n is public.
The second, any two data sets of a client.

**Unit**: example; client for the second.

**Guarantee**: epsilon-DP for an example, epsilon-LDP for a client; tight for values at the bounds.

**Proof**: an example's integer moves by at most G and no other moves; so does a client's.

**Exactness**: integers and exact discrete noise (:mod:`flower_ldp.mechanisms.integer_noise`).

**Invalid input**: a value that is no number counts as ``lower``, for its example alone. A client's
counts as the middle of the bounds, or for G = 1 as either bound with probability 1/2; infinities
are clipped.

**Estimate**: lower + report / (n G) (upper - lower), n = 1 for a client, is unbiased for the mean
of clipped values, and may lie outside the bounds.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from flower_ldp.mechanisms.inputs import as_double, note, real_array
from flower_ldp.mechanisms.laplace import IntegerNoise, grid_steps
from flower_ldp.mechanisms.random import Floats, Ints, RandomSource
from flower_ldp.parameter_bounds import Bounded
from flower_ldp.privacy import Unit


class _OnGrid(IntegerNoise):
    lower: float
    upper: float

    def _check(self) -> None:
        check_bounds(self.lower, self.upper)

    @property
    def _step(self) -> float:
        return (self.upper - self.lower) / self.sensitivity

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of one :meth:`estimate` over the noise."""
        return self.noise.standard_deviation * self._step

    def _rounded(self, value: object) -> int | None:
        return on_grid(value, self.lower, self.upper, self.sensitivity)

    def estimate(self, reports: Ints) -> Floats:
        """Return an unbiased estimate for each report, float64, shape (r,)."""
        return self.lower + np.asarray(reports, dtype=np.float64) * self._step


def check_bounds(lower: float, upper: float) -> None:
    """Raise ValueError unless values can be clipped to the bounds."""
    if not 0 < upper - lower < math.inf:
        given = f"[{lower}, {upper}]"
        raise ValueError(f"lower must be below upper, and both be finite, got {given}")


def on_grid(value: object, lower: float, upper: float, steps: int) -> int | None:
    """Return a clipped number in steps from ``lower``, 0 to ``steps``; None for no number."""
    found = real_array(value)
    number = float(as_double(found)) if found.shape == () else math.nan
    if math.isnan(number):
        return None
    share = (min(max(number, lower), upper) - lower) / (upper - lower)
    return min(max(round(share * steps), 0), steps)


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
        Public bounds that values are clipped to; finite, lower < upper.
    steps : int
        G; in [1, 2^20]. 1 for right or wrong.

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
        """G."""
        return self.steps

    @property
    def _step(self) -> float:
        return (self.upper - self.lower) / (self.steps * self.examples)

    def rounded(self, value: object) -> int:
        """Return an example's value on the grid."""
        return self._rounded(value) or 0

    def total(self, values: Iterable[object]) -> int:
        """Return the sum before noise; **private**."""
        return sum([self.rounded(value) for value in values])

    def randomize(self, values: Iterable[object], rng: RandomSource) -> int:
        """Return a report in grid steps of the sum."""
        return self.noised(self.total(values), rng)

    def noised(self, total: int, rng: RandomSource) -> int:
        """Return a report of a sum from :meth:`total`."""
        return total + int(self.noise.sample(1, rng)[0])

    def neutral(self, rng: RandomSource) -> int:
        """Return a report of values in the middle of the bounds."""
        return self.noised(self.examples * self.steps // 2, rng)

    def log_prob(self, report: int, values: Iterable[object]) -> float:
        """Return log P(report | values)."""
        return self.noise.log_prob(report - self.total(values))


_LEAST_BITS = 20


@dataclass(frozen=True)
class BoundedMean(_OnGrid):
    """Discrete Laplace noise on one number in known bounds.

    Parameters
    ----------
    epsilon : float
        Per release and per client; in [1e-6, 1e6], with a warning above 100.
    lower, upper : float
        Bounds that the value is clipped to; finite, lower < upper. Public: they must not depend on
        private values.
    grid_bits : int, optional
        G = 2^grid_bits, in [0, 40]. By default the noise has a scale of at least 1,024 steps, and G
        is at least 2^20.

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
        """G."""
        return grid_steps(self.grid_bits, _LEAST_BITS, self.epsilon)

    @property
    def sensitivity(self) -> int:
        """G."""
        return self.steps

    @property
    def limits(self) -> tuple[int, int]:
        """Least and largest report, 64 noise scales beyond the bounds."""
        return -self.noise.farthest, self.steps + self.noise.farthest

    @property
    def _middle(self) -> tuple[int, int]:
        return self.steps // 2, (self.steps + 1) // 2

    def randomize(self, value: object, rng: RandomSource) -> int:
        """Return a report, in grid steps above ``lower``, also negative or above G."""
        rounded = self._rounded(value)
        if rounded is None:
            note(self.name, "the value is no number")
            rounded = self._middle[rng.bits(1)]
        return rounded + int(self.noise.sample(1, rng)[0])

    def reads(self, value: object) -> bool:
        """Return whether a value is a number."""
        return self._rounded(value) is not None

    def log_prob(self, report: int, value: object) -> float:
        """Return log P(report | value), as :meth:`Laplace.log_prob` does."""
        rounded = self._rounded(value)
        if rounded is not None:
            return self.noise.log_prob(report - rounded)
        low, high = (self.noise.log_prob(report - middle) for middle in self._middle)
        return float(np.logaddexp(low, high)) - math.log(2)
