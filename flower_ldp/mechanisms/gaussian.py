r"""The Gaussian mechanism on a whole update: clip, add normal noise, round to a grid.

**Mechanism.** An update u with d entries is put on a fine grid inside the ball of radius C: it
is scaled by min(1, C / ||u||), divided by the grid's step and rounded towards zero, so that
the integer vector x has :math:`\|x\|_2 \le R` *in exact integer arithmetic*. Then

.. math:: y_i = \left\lfloor \frac{x_i + \lfloor 2^{33} Z_i \rfloor}{2^{31}}
          + \tfrac12 \right\rfloor,

with :math:`Z_i` independent standard normal: one byte for an entry, on a grid of a quarter of
the noise's standard deviation. As x is whole, y is a function of :math:`x + 2^{33} Z`.

**Theorem.** Any two updates are neighbours. Their x lie in one ball, at most 2R apart, so y is
what is made of the Gaussian mechanism with a shift of at most :math:`\mu = 2R / 2^{33}`, and
one release is (epsilon, delta)-LDP for every pair on the curve of
:mod:`~flower_ldp.mechanisms.gaussian_law` (Balle and Wang 2018, Theorem 8, and post-processing).
There is no term for rounding: x is rounded before the ball is checked, and y after the noise.
The sampler is within total variation 2^-240 of the law for each entry, which adds at most
:math:`(1 + e^\epsilon)\, d\, 2^{-240}` to delta; R is chosen with that taken off.

**Invalid input.** An update that holds a value that is not finite, or is no vector of the agreed
length, counts as an update of zeros, which is one of the updates that the theorem speaks of.

**Estimate.** The mean of y over clients times the grid's step is an unbiased estimate of the mean
clipped update (rounding after noise that is four steps wide has a bias below 1e-100), with a
standard deviation of :attr:`Gaussian.deviation` over the root of the number of clients.

**Bytes.** A report of d entries is 1 + d bytes: the version, 1, then one signed byte an entry.
Every byte string of that length within the mechanism's range is a report of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError
from flower_ldp.mechanisms.gaussian_law import (
    LARGEST_DELTA,
    LARGEST_EPSILON,
    SMALLEST_DELTA,
    SMALLEST_EPSILON,
    largest_shift,
)
from flower_ldp.mechanisms.gaussian_plan import GaussianPlan
from flower_ldp.mechanisms.inputs import note, read_vector
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.discrete_gaussian import (
    DEVIATION_BITS,
    LARGEST,
    VARIATION_BITS,
    normal,
)
from flower_ldp.mechanisms.update import UpdateMechanism
from flower_ldp.privacy import PrivacyEvent

#: Longest update.
LARGEST_DIMENSION = 2**32 - 1
# Reports are on a grid of a quarter of the standard deviation.
_DROPPED_BITS = DEVIATION_BITS - 2
_HALF = 1 << (_DROPPED_BITS - 1)
_LOW_BITS = 18
_REPORT_VERSION = 1


@dataclass(frozen=True)
class Gaussian(UpdateMechanism):
    """Clipped update plus normal noise, one signed byte for an entry.

    Parameters
    ----------
    epsilon : float
        Per release, per client; in [0.001, 100].
    delta : float
        Per release, per client; in [1e-18, 0.5]. It is the probability with which epsilon
        may fail: choose it far below one over the number of clients.
    clip_norm : float
        C: longer updates are scaled to this length; in [1e-30, 1e30].

    Raises
    ------
    ValueError
        If a parameter is outside its interval.

    Examples
    --------
    >>> mechanism = Gaussian(epsilon=8.0, delta=1e-6, clip_norm=1.0)
    >>> report = mechanism.randomize(np.zeros(5), RandomSource.from_os())
    >>> report.dtype, report.shape
    (dtype('int8'), (5,))
    """

    name = "gaussian"

    epsilon: float
    delta: float
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("epsilon", SMALLEST_EPSILON, LARGEST_EPSILON),
            ("delta", SMALLEST_DELTA, LARGEST_DELTA),
            ("clip_norm", 1e-30, 1e30),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be in [{low:g}, {high:g}], got {value}")

    @cached_property
    def radius(self) -> int:
        """R: length of the longest clipped update, in steps of the fine grid."""
        sampler = math.ldexp(1.0 + math.exp(self.epsilon), VARIATION_BITS) * LARGEST_DIMENSION
        # A millionth covers the roundings of the curve in doubles many times over.
        shift = largest_shift(self.epsilon, self.delta * (1.0 - 1e-6) - sampler)
        return math.floor(math.ldexp(shift, DEVIATION_BITS - 1))

    @property
    def shift(self) -> float:
        """Mu: the largest distance of two clipped updates over the noise's deviation."""
        return math.ldexp(self.radius, 1 - DEVIATION_BITS)

    @property
    def deviation(self) -> float:
        """Standard deviation of an estimated entry's noise, rounding of the report included."""
        return self.step * math.sqrt(16.0 + 1.0 / 12.0)

    @property
    def step(self) -> float:
        """Value of one unit of a report."""
        return self.clip_norm * math.ldexp(1.0, _DROPPED_BITS) / self.radius

    @property
    def largest(self) -> int:
        """Largest magnitude of a report's entry; at most 127."""
        return (self.radius + LARGEST + _HALF >> _DROPPED_BITS) + 1

    def plan(self, dimension: int) -> GaussianPlan:
        """Return what reports of updates of ``dimension`` entries are worth."""
        noise = self.deviation / self.step
        return GaussianPlan(dimension, noise**2, (self.clip_norm / self.deviation) ** 2)

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release: epsilon and delta per client."""
        return (PrivacyEvent("gaussian", self.epsilon, self.delta),)

    def randomize(
        self, value: object, rng: RandomSource, dimension: int | None = None
    ) -> NDArray[np.int8]:
        """Return a report of one update.

        Parameters
        ----------
        value : ndarray of floats, shape (d,)
            The update; any length, zero included. Counts as zeros if it is not finite or no
            such vector.
        rng : RandomSource
            Source of the noise.
        dimension : int, optional
            d, public. By default as many entries as there are.

        Returns
        -------
        ndarray of int8, shape (d,)

        Raises
        ------
        ValueError
            If ``dimension`` is outside [1, 2^32 - 1].
        """
        noisy, good = self._read(value, dimension)
        if not good:
            note("gaussian", f"the update is no {len(noisy)} finite numbers")
        noisy += normal(len(noisy), rng)
        noisy += _HALF
        noisy >>= _DROPPED_BITS
        return noisy.astype(np.int8)

    def clipped(self, value: object, dimension: int | None = None) -> NDArray[np.int64]:
        """Return x: the update on the fine grid, of exact length R at most. **Private**.

        Raises
        ------
        ValueError
            As :meth:`randomize`.
        """
        return self._read(value, dimension)[0]

    @np.errstate(all="ignore")
    def _read(self, value: object, dimension: int | None) -> tuple[NDArray[np.int64], bool]:
        """Return x, and whether the update could be read."""
        update, dimension = read_vector(value, dimension)
        if not 1 <= dimension <= LARGEST_DIMENSION:
            raise ValueError(f"dimension must be in [1, {LARGEST_DIMENSION}], got {dimension}")
        largest = math.nan if update is None else float(np.abs(update).max())
        if update is None or not math.isfinite(largest) or largest == 0.0:
            return np.zeros(dimension, dtype=np.int64), largest == 0.0
        return self._on_grid(update, largest), True

    def _on_grid(self, value: NDArray[Any], largest: float) -> NDArray[np.int64]:
        """Return a finite update on the fine grid; ``largest`` is its largest magnitude."""
        # Divided by the largest first: squares of any finite value stay within doubles.
        scaled = value.astype(np.float64) / largest
        length = math.sqrt(float(scaled @ scaled))
        factor = self.radius * min(largest / self.clip_norm, 1.0 / length)
        while True:
            # The cast rounds towards zero, which shortens.
            found = (scaled * factor).astype(np.int64)
            if squared_length(found) <= self.radius**2:
                return found
            factor *= 1.0 - 2.0**-32  # only roundings of doubles lead here

    def report_length(self, dimension: int) -> int:
        """Return the number of bytes of every report of so many entries."""
        return 1 + dimension

    def encode(self, report: NDArray[np.int8], dimension: int) -> bytes:
        """Return the bytes of a report."""
        return bytes((_REPORT_VERSION,)) + report.astype(np.int8, casting="no").tobytes()

    def decode(self, data: bytes, dimension: int) -> NDArray[np.int8]:
        """Decode a report, strictly.

        Returns
        -------
        ndarray of int8, shape (dimension,)

        Raises
        ------
        WireError
            ``"version"``, ``"length"``, or ``"range"`` for an entry that no client can have sent.
        """
        if data and data[0] != _REPORT_VERSION:
            raise WireError("version", f"version {data[0]}, expected {_REPORT_VERSION}")
        if len(data) != self.report_length(dimension):
            expected = self.report_length(dimension)
            raise WireError("length", f"{len(data)} bytes, expected {expected}")
        report = np.frombuffer(data, dtype=np.int8, offset=1)
        if report.max() > self.largest or report.min() < -self.largest:
            raise WireError("range", f"an entry is outside [-{self.largest}, {self.largest}]")
        return report

    def log_prob(
        self, report: NDArray[np.int8], value: object, dimension: int | None = None
    ) -> float:
        """Return log P(report | value), of the law that the sampler is within 2^-240 of."""
        x = self.clipped(value, dimension)
        if report.shape != x.shape:
            raise ValueError(f"report must have shape {x.shape}, got {report.shape}")
        total = 0.0
        for y, centre in zip(report.tolist(), x.tolist(), strict=True):
            low = math.ldexp((y << _DROPPED_BITS) - _HALF - centre, -DEVIATION_BITS)
            total += _log_normal_interval(low, low + 0.25)
        return total

    def estimate(self, total: NDArray[np.int64], reports: int) -> NDArray[np.float64]:
        """Return an unbiased estimate of the mean clipped update.

        Parameters
        ----------
        total : ndarray of int64, shape (d,)
            Sum of the reports.
        reports : int
            How many; at least 1.

        Raises
        ------
        ValueError
            If there is no report.
        """
        if reports < 1:
            raise ValueError(f"reports must be at least 1, got {reports}")
        return total.astype(np.float64) * (self.step / reports)


def squared_length(vector: NDArray[np.int64]) -> int:
    """Return the sum of squares, exactly, of integers below 2^40 in magnitude."""
    magnitude = np.abs(vector)
    high, low = magnitude >> _LOW_BITS, magnitude & ((1 << _LOW_BITS) - 1)
    # Each product is below 2^44, so 2^19 of them add up within 64 bits.
    total = 0
    for start in range(0, len(vector), 1 << 19):
        a, b = high[start : start + (1 << 19)], low[start : start + (1 << 19)]
        total += (int(a @ a) << 2 * _LOW_BITS) + (int(a @ b) << _LOW_BITS + 1) + int(b @ b)
    return total


def _log_normal_interval(low: float, high: float) -> float:
    """Return the logarithm of the standard normal law's mass between two numbers."""
    if low + high < 0:
        low, high = -high, -low
    mass = (math.erfc(low * math.sqrt(0.5)) - math.erfc(high * math.sqrt(0.5))) / 2
    return math.log(mass) if mass > 0 else -math.inf
