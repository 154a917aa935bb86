r"""The Gaussian mechanism on a whole update: clip, add normal noise, round to a grid.

An update u with d entries is scaled by min(1, C / ||u||), divided by the grid's step and rounded
towards zero to integers x, with :math:`\|x\|_2 \le R` exactly. The report is

.. math:: y_i = \left\lfloor \frac{x_i + \lfloor 2^{33} Z_i \rfloor}{2^{31}}
          + \tfrac12 \right\rfloor

with independent standard normal :math:`Z_i`, on a grid of a quarter of the noise's deviation.

**Relation**: any two updates of one client.

**Unit**: client.

**Guarantee**: (epsilon, delta)-LDP for every pair on the curve

.. math:: \delta(\epsilon) = \Phi\left(\frac{\mu}{2} - \frac{\epsilon}{\mu}\right)
          - e^\epsilon\, \Phi\left(-\frac{\mu}{2} - \frac{\epsilon}{\mu}\right)

of :func:`gaussian_delta`, with :math:`\mu = 2R / 2^{33}`, in any number of dimensions.

**Proof**: all x lie in one ball, at most 2R apart. As x is whole, y is a function of
:math:`x + 2^{33} Z`: post-processing of the Gaussian mechanism with a shift of at most :math:`\mu`
deviations (Balle and Wang 2018, Theorem 8). Rounding adds no term: x is rounded before the ball is
checked, and y after the noise.

**Exactness**: the sampler is within total variation 2^-240 of the law for each entry, which adds
at most :math:`(1 + e^\epsilon)\, d\, 2^{-240}` to delta; R is chosen with that taken off.

**Invalid input**: an update with a value that is not finite, or of another shape, counts as zeros.

**Source**: Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", 2018.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError
from flower_ldp.facts import Fact
from flower_ldp.mechanisms import base
from flower_ldp.mechanisms.inputs import note, over_largest, read_vector
from flower_ldp.mechanisms.integer_noise import DEVIATION_BITS, LARGEST, VARIATION_BITS, normal
from flower_ldp.mechanisms.random import Floats, Ints, RandomSource
from flower_ldp.parameter_bounds import Bounded, check_in, halved, least
from flower_ldp.privacy import PrivacyEvent, double_at_least

#: Longest update.
LARGEST_DIMENSION = 2**32 - 1
# Reports are on a grid of a quarter of the standard deviation.
_DROPPED_BITS = DEVIATION_BITS - 2
_HALF = 1 << (_DROPPED_BITS - 1)
_LOW_BITS = 18


@dataclass(frozen=True)
class Gaussian(base.UpdateMechanism):
    """Clipped update plus normal noise, one signed byte for an entry.

    Parameters
    ----------
    epsilon : float
        Per release, per client; in [0.001, 100].
    delta : float
        Per release, per client; in [1e-18, 0.5]. The probability with which epsilon may fail:
        choose it far below one over the number of clients.
    clip_norm : float
        C: longer updates are scaled to this length; in [1e-30, 1e30].

    Examples
    --------
    >>> mechanism = Gaussian(epsilon=8.0, delta=1e-6, clip_norm=1.0)
    >>> report = mechanism.randomize(np.zeros(5), RandomSource.from_os())
    >>> report.dtype, report.shape
    (dtype('int8'), (5,))
    """

    name = "gaussian"

    epsilon: Annotated[float, Bounded(_EPSILON)]
    delta: Annotated[float, Bounded(f"[{SMALLEST_DELTA:g}, {LARGEST_DELTA:g}]")]
    clip_norm: Annotated[float, Bounded("[1e-30, 1e+30]")] = 1.0

    @cached_property
    def radius(self) -> int:
        """R, in steps of the fine grid."""
        sampler = math.ldexp(1.0 + math.exp(self.epsilon), VARIATION_BITS) * LARGEST_DIMENSION
        # A millionth covers the roundings of the curve in doubles many times over.
        shift = largest_shift(self.epsilon, self.delta * (1.0 - 1e-6) - sampler)
        return math.floor(math.ldexp(shift, DEVIATION_BITS - 1))

    @property
    def shift(self) -> float:
        """The mu of the curve."""
        return math.ldexp(self.radius, 1 - DEVIATION_BITS)

    @property
    def deviation(self) -> float:
        """Deviation of an estimated entry's noise, roundings included."""
        return self.step * math.sqrt(16.0 + 1.0 / 12.0)

    def describe(self) -> list[Fact]:
        """Return the noise of a weight."""
        of_length = f", for updates of length {self.clip_norm:g}"
        return [Fact("noise.deviation", self.deviation, "deviation of the noise", of_length)]

    @property
    def step(self) -> float:
        """Value of one unit of a report."""
        return self.clip_norm * math.ldexp(1.0, _DROPPED_BITS) / self.radius

    @property
    def largest(self) -> int:
        """Largest magnitude of a report's entry; at most 127."""
        return (self.radius + LARGEST + _HALF >> _DROPPED_BITS) + 1

    def longest(self, dimension: int) -> float:
        """Return a length that a report exceeds with a chance of e^-64 at most.

        Triangle inequality over the clipped update, 4 Z, and roundings of at most 1/2 each, with
        P(||Z||^2 > d + 2 sqrt(64 d) + 128) <= e^-64 (Laurent and Massart 2000, Lemma 1, x = 64).
        """
        noise = 4.0 * math.sqrt(dimension + 16.0 * math.sqrt(dimension) + 128.0)
        return math.ldexp(self.radius, -_DROPPED_BITS) + noise + 0.5001 * math.sqrt(dimension)

    def plan(self, dimension: int) -> GaussianPlan:
        """Return the value of reports of ``dimension`` entries."""
        noise = self.deviation / self.step
        return GaussianPlan(dimension, noise**2, self.clip_norm / self.deviation)

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release per client: epsilon and delta, and rho = mu^2 / 2."""
        rho = rho_of(Fraction(self.shift) ** 2)
        return (PrivacyEvent(self.name, self.epsilon, self.delta, rho=rho),)

    def randomize(
        self, value: object, rng: RandomSource, dimension: int | None = None
    ) -> NDArray[np.int8]:
        """Return a report of one update, int8 of shape (d,).

        Raises
        ------
        ValueError
            If ``dimension`` is outside [1, 2^32 - 1].
        """
        noisy, good = self._read(value, dimension)
        if not good:
            note(self.name, f"the update is no {len(noisy)} finite numbers")
        noisy += normal(len(noisy), rng)
        noisy += _HALF
        noisy >>= _DROPPED_BITS
        return noisy.astype(np.int8)

    def clipped(self, value: object, dimension: int | None = None) -> Ints:
        """Return x, int64. **Private**."""
        return self._read(value, dimension)[0]

    @np.errstate(all="ignore")
    def _read(self, value: object, dimension: int | None) -> tuple[Ints, bool]:
        update, dimension = read_vector(value, dimension)
        check_in(f"[1, {LARGEST_DIMENSION}]", "dimension", dimension)
        scaled, largest = over_largest(update, dimension)
        if not largest > 0.0:
            return np.zeros(dimension, dtype=np.int64), largest == 0.0
        length = math.sqrt(float(scaled @ scaled))
        factor = self.radius * min(largest / self.clip_norm, 1.0 / length)
        while True:
            # The cast rounds towards zero, which shortens.
            found = (scaled * factor).astype(np.int64)
            if squared_length(found) <= self.radius**2:
                return found, True
            factor *= 1.0 - 2.0**-32  # only roundings of doubles lead here

    def report_length(self, dimension: int) -> int:
        """Return the number of bytes of every report."""
        return 1 + dimension

    def encode(self, report: NDArray[np.int8], dimension: int) -> bytes:
        """Return the bytes of a report."""
        return bytes((base.REPORT_VERSION,)) + report.astype(np.int8, casting="no").tobytes()

    def decode(self, data: bytes, dimension: int) -> NDArray[np.int8]:
        """Decode a report into int8; WireError ``"version"``, ``"length"`` or ``"range"``.

        Out of range are entries that no client can have sent, and reports longer than
        :meth:`longest`.
        """
        self.check_length(data, dimension)
        report = np.frombuffer(data, dtype=np.int8, offset=1)
        if report.max() > self.largest or report.min() < -self.largest:
            raise WireError("range", f"an entry is outside [-{self.largest}, {self.largest}]")
        longest = self.longest(dimension)
        if np.linalg.norm(report.astype(np.float64)) > longest:
            raise WireError("range", f"the report is longer than {longest:g}")
        return report

    def log_prob(
        self, report: NDArray[np.int8], value: object, dimension: int | None = None
    ) -> float:
        """Return log P(report | value), of the law that the sampler approximates."""
        x = self.clipped(value, dimension)
        if report.shape != x.shape:
            raise ValueError(f"report must have shape {x.shape}, got {report.shape}")
        return log_rounded(report, x.tolist(), _DROPPED_BITS)

    def audit_pairs(self, dimension: int) -> tuple[base.Contrast, ...]:
        """Return two opposite updates of the clipping length."""
        update = np.full(dimension, self.clip_norm)

        def score(reports: Sequence[NDArray[np.int8]]) -> Ints:
            return np.asarray(np.stack(reports).sum(axis=1, dtype=np.int64))

        return (base.Contrast("opposite updates", (update, -update), score, "sum of the report"),)

    def estimate(self, total: Ints, reports: int) -> Floats:
        """Return an unbiased estimate of the mean clipped update, float64 of shape (d,).

        ``total`` is the sum of the reports, int64, and ``reports`` their number; ValueError for
        none.
        """
        check_in("[1, inf)", "reports", reports)
        return total.astype(np.float64) * (self.step / reports)


def squared_length(vector: Ints) -> int:
    """Return the exact sum of squares of integers below 2^40 in magnitude."""
    magnitude = np.abs(vector)
    high, low = magnitude >> _LOW_BITS, magnitude & ((1 << _LOW_BITS) - 1)
    # Each product is below 2^44, so 2^19 of them add up within 64 bits.
    total = 0
    for start in range(0, len(vector), 1 << 19):
        a, b = high[start : start + (1 << 19)], low[start : start + (1 << 19)]
        total += (int(a @ a) << 2 * _LOW_BITS) + (int(a @ b) << _LOW_BITS + 1) + int(b @ b)
    return total


def log_rounded(report: NDArray[np.integer], centres: Iterable[int], dropped: int) -> float:
    """Return log P(report) of integers with normal noise, of which bits were dropped."""
    found = 0.0
    for y, centre in zip(report.tolist(), centres, strict=True):
        low = math.ldexp((2 * y - 1 << dropped - 1) - centre, -DEVIATION_BITS)
        high = low + math.ldexp(1.0, dropped - DEVIATION_BITS)
        if low + high < 0:
            low, high = -high, -low
        mass = (math.erfc(low * _ROOT_HALF) - math.erfc(high * _ROOT_HALF)) / 2
        found += math.log(mass) if mass > 0 else -math.inf
    return found


#: Reports of noisy sums are on a grid of a sixteenth of the standard deviation.
SUM_BITS = DEVIATION_BITS - 4
#: Standard deviation of a noisy sum, roundings included, in the sum's unit.
SUM_DEVIATION = math.ldexp(math.sqrt(256.0 + 1.0 / 12.0), SUM_BITS)


def noisy_sums(sums: Sequence[int], rng: RandomSource) -> Ints:
    """Return integers with normal noise of deviation 2^33, rounded to the grid of sums."""
    # In Python's integers: a sum may be longer than 64 bits.
    both = zip(sums, normal(len(sums), rng).tolist(), strict=True)
    half = 1 << SUM_BITS - 1
    return np.array([one + noise + half >> SUM_BITS for one, noise in both], dtype=np.int64)


_ROOT_HALF = math.sqrt(0.5)
#: Intervals in which delta and its inverse are computed to six digits and more.
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-3, 100.0
SMALLEST_DELTA, LARGEST_DELTA = 1e-18, 0.5
_EPSILON = f"[{SMALLEST_EPSILON:g}, {LARGEST_EPSILON:g}]"
#: Shifts beyond it have no zCDP.
_LARGEST_WITH_RHO = 7
#: Below it the two sides of the curve differ by less than doubles hold of either.
_SMALLEST_SHIFT = 1e-7
#: Above it the roundings of the last product move delta by more than its margin of 1e-6.
_LARGE_SHIFT = 1e6


def rho_of(squared_shift: Fraction) -> float | None:
    """Return the zCDP of a normal shift, rounded up; None beyond seven deviations.

    The sampler ends at 18.4 deviations: what lies beyond for one input and not for the other has
    less than 1e-18 of the other's probability only up to there.
    """
    return double_at_least(squared_shift / 2) if squared_shift <= _LARGEST_WITH_RHO**2 else None


def rho_of_sums(squared_distance: int) -> float | None:
    """Return the zCDP of :func:`noisy_sums` whose sums move by a distance."""
    return rho_of(Fraction(squared_distance, 1 << 2 * DEVIATION_BITS))


def gaussian_delta(epsilon: float, shift: float) -> float:
    """Return the delta of a normal shift; ValueError outside the intervals.

    ``epsilon`` is in [1e-3, 100]. ``shift``, positive, is the inputs' distance over the noise's
    deviation.
    """
    check_in(_EPSILON, "epsilon", epsilon)
    check_in("(0, inf)", "shift", shift)
    larger = math.erfc((epsilon / shift - shift / 2) * _ROOT_HALF)
    smaller = math.erfc((epsilon / shift + shift / 2) * _ROOT_HALF)
    # A smaller erfc that underflows stands for less than 1e-300.
    return max(0.0, (larger - math.exp(epsilon) * smaller) / 2)


def largest_shift(epsilon: float, delta: float) -> float:
    """Return the largest shift of this epsilon and delta, by at most two parts in 10^12 too small.

    ``epsilon`` is in [1e-3, 100] and ``delta`` in (0, 0.5]; ValueError otherwise.
    """
    check_in(f"(0, {LARGEST_DELTA:g}]", "delta", delta)
    # At epsilon 100 and delta 0.5 it is 14.1; at 1e-3 and 1e-18, 1.2e-4.
    return halved(lambda shift: gaussian_delta(epsilon, shift) > delta, 0.0, 32.0, 1e-12)[0]


def classical_deviation(epsilon: float, delta: float) -> float:
    """Return sqrt(2 ln(1.25 / delta)) / epsilon, for comparison with ``1 / largest_shift``.

    Both are for inputs at distance 1. It is valid below epsilon 1 only.
    """
    return math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


def gaussian_epsilon(shift: float, delta: float) -> float:
    r"""Return the epsilon of a positive shift, however large, and a delta in [1e-18, 1).

    Not below the true one, and at most two parts in a million of delta above it; zero where delta
    alone covers the shift. Shifts below 1e-7 count as 1e-7. From 1e6 on the result is a part in
    10^15 larger, which covers its roundings. ValueError outside the intervals.

    With :math:`\epsilon = \mu (a + \mu / 2)` the curve is
    :math:`\delta = \Phi(-a) - \varphi(a)\, M(a + \mu)`, with Mills' ratio M. Nothing in it
    overflows; :math:`a` is found by bisection.

    Examples
    --------
    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    >>> f"{gaussian_epsilon(41_281.0, 1e-5):.2e}"
    '8.52e+08'
    """
    check_in("(0, inf)", "shift", shift)
    check_in(f"[{SMALLEST_DELTA:g}, 1)", "delta", delta)
    allowed = delta * (1.0 - 1e-6)  # covers the roundings of the curve in doubles
    if math.erf(shift / 2 * _ROOT_HALF) <= allowed:
        return 0.0
    shift = max(shift, _SMALLEST_SHIFT)  # epsilon grows with it, so this is a bound

    def enough(place: float) -> bool:
        density = math.exp(-place * place / 2) / math.sqrt(2 * math.pi)
        return math.erfc(place * _ROOT_HALF) / 2 - density * _mills(place + shift) <= allowed

    # At 10 the tail alone is below the smallest delta.
    found = shift * (least(enough, -shift / 2, 10.0, 1e-12) + shift / 2)
    return found if shift < _LARGE_SHIFT else found * (1.0 + 1e-15)


def _mills(x: float) -> float:
    if x < 25.0:
        return math.exp(x * x / 2) * math.erfc(x * _ROOT_HALF) * math.sqrt(math.pi / 2)
    square = x * x  # the next term of the series is below 1e-10 here
    return (1 - (1 - (3 - (15 - 105 / square) / square) / square) / square) / x


@dataclass(frozen=True)
class GaussianPlan(base.UpdatePlan):
    """The value of a sum of noised updates, each as long as C; shorter updates have less.

    ``noise_per_step`` is the variance of an entry's noise in units of a report; ``length`` is C
    over the noise's deviation.
    """

    dimension: int
    noise_per_step: float
    length: float

    @property
    def efficiency(self) -> float:
        """Number of weights whose noise one report outweighs."""
        return self.length**2

    @property
    def null_distribution(self) -> base.NullDistribution:
        """Law of a sum of noise: l = d s^2 and q = d s^4."""
        square = self.noise_per_step
        return base.NullDistribution(self.dimension * square, self.dimension * square**2)
