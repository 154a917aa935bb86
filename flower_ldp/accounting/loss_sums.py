r"""Sums of independent privacy losses, and their delta, rounded to the safe side.

**Many losses.** One fast Fourier transform for each law, to the power of its number, gives the sum
of T independent losses. Its error of about 1e-13 at every point exceeds a small delta, so each law
is first **tilted**, :math:`\tilde p(l) = p(l) e^{\theta l} / M(\theta)`, with theta such that the
sum's mean is the epsilon of interest, and the sum is tilted back afterwards:

.. math:: \delta(\epsilon) = \sum_{s > \epsilon} (1 - e^{\epsilon - s})\,
          \prod_t M_t(\theta)\, e^{-\theta s}\, \tilde p(s).

The first factors are Chernoff's bound and the rest is of order one, so an error of 1e-9 in it is
relative, at any delta. Everything that is rounded or cut off is added:

- the transform, its power and its inverse, by the error bound for each :math:`\|\hat y - y\|_2 \le
  8 u \log_2 N\, \|y\|_2` (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, Theorem
  24.2), times the norm of the weights (Cauchy and Schwarz);
- sums above the window: those that fold into it only add, and those that fold out are at most
  Chernoff's bound. An epsilon below the window has delta 1;
- roundings of masses and losses: 1e-12 of each step's, on both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_ldp.parameter_bounds import halved, least

Array = NDArray[np.float64]

_UNIT = 2.0**-53
_ROUNDING = 1e-12
# What the share of a response's mass may be off by, of up to 2^20 steps on each side.
_SHARE = 1e-9
# Added to each delta: below it, doubles lose digits.
_TINY = 1e-300
# Points of a law by which a tilt is chosen: any tilt gives a bound, a good one a tight one.
_COARSE = 2_048
# Standard deviations of the tilted sum that the window spans, and the most points it may have:
# beyond a narrower window Chernoff's bound stands, which is no less a bound.
_SPAN, _MOST_SUMS = 24.0, 1 << 23
# Relative precision of an epsilon.
_PRECISION = 1e-6


@dataclass(frozen=True)
class LossLaw:
    """Law of one loss, on whole multiples of ``unit`` from ``first`` on.

    ``masses`` are right to 1e-12 of each; ``infinite`` is the probability of an infinite loss.
    """

    unit: float
    first: int
    masses: Array
    infinite: float

    @property
    def losses(self) -> Array:
        """The points, as losses."""
        return np.arange(self.first, self.first + len(self.masses)) * np.float64(self.unit)


#: Laws on one grid, each with its number of independent losses.
Losses = Sequence[tuple[LossLaw, int]]


def response(epsilon: float, unit: float) -> LossLaw:
    """Return the loss of binary randomized response, of which both ends go to points of the grid.

    Of the mass at a loss of l between a and a + unit, (e^-(l - a) - e^-unit) / (1 - e^-unit) goes
    to a and the rest to a + unit: no delta is less for it (Doroshenko et al. 2022, "Connect the
    dots").
    """
    steps = epsilon / unit
    # A quotient of printed decimals that misses its integer by rounding alone is it.
    steps = round(steps) if abs(steps - round(steps)) < 1e-13 * steps else steps
    end, true = math.ceil(steps), 1.0 / (1.0 + math.exp(-epsilon))
    above, masses = end - steps, np.zeros(2 * end + 1)
    for place, part, mass in ((0, 1.0 - above, math.exp(-epsilon) * true), (-2, above, true)):
        margin = _SHARE if above else 0.0
        lower = max(0.0, math.expm1(part * unit) / math.expm1(unit) - margin)
        masses[place] += mass * lower
        masses[place + 1] += mass * (1.0 - lower)
    return LossLaw(unit, -end, masses, 0.0)


class LossSum:
    """Law of the sum of independent losses, exact to many digits near ``around`` or its mean."""

    def __init__(self, losses: Losses, *, around: float) -> None:
        unit, steps = losses[0][0].unit, sum(number for _, number in losses)
        first = sum(number * law.first for law, number in losses)
        widest = 1 + sum(number * (len(law.masses) - 1) for law, number in losses)
        coarse = [(*_coarsened(law), number) for law, number in losses]
        fine = [(law.losses, law.masses, number) for law, number in losses]
        mean = sum(number * float(masses @ points) for points, masses, number in fine)
        around = min(max(around, mean), (first + widest) * unit)  # no sum is larger
        tilt = centring_tilt(coarse, around)
        while tilt > 0 and _log_moment(fine, tilt) > tilt * around:
            # Too far, as few points show where the largest losses lie only roughly.
            tilt = tilt / 2 if tilt > 1e-9 else 0.0
        tilted, variance = [], 0.0
        for points, masses, number in fine:
            with np.errstate(divide="ignore"):
                one = np.exp(
                    np.log(masses) + tilt * points - _log_moment([(points, masses, 1)], tilt)
                )
            variance += number * max(0.0, float(one @ (points - float(one @ points)) ** 2))
            tilted.append((one, number))
        spanned = min(int(_SPAN * math.sqrt(variance) / unit), _MOST_SUMS)
        longest = max(len(one) for one, _ in tilted)
        size = 1 << (min(widest, max(longest, spanned)) - 1).bit_length()
        transformed = np.ones(size // 2 + 1, dtype=np.complex128)
        for one, number in tilted:
            transformed *= np.fft.rfft(one, size) ** number
        folded = np.maximum(np.fft.irfft(transformed, size), 0.0)
        if widest <= size:
            start, beyond, self._lowest = first, 0.0, -math.inf
        else:
            start = math.floor(around / unit) - size // 2
            self._lowest, top = start * unit, (start + size) * unit
            further = centring_tilt(coarse, top)
            beyond = math.exp(min(0.0, _log_moment(fine, further) - further * top))
        order = (start - first + np.arange(size)) % size
        self.losses = np.arange(start, start + size) * np.float64(unit)
        self._steps, self._tilt, self._log_scale = steps, tilt, _log_moment(fine, tilt)
        self._tilted = folded[order]
        self._error = 32.0 * _UNIT * (steps + len(losses)) * math.log2(max(size, 2))
        infinite = sum(number * math.log1p(-law.infinite) for law, number in losses)
        self._beyond = beyond * (1.0 + 1e-6) - math.expm1(infinite)

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on the delta at ``epsilon``, tight near ``around``."""
        below = epsilon - self._steps * _ROUNDING * (1.0 + abs(epsilon))
        exponent = self._log_scale - self._tilt * below
        if exponent > 600.0 or below < self._lowest:
            return 1.0  # far below where this law is exact, or sums between are not in it
        start = int(np.searchsorted(self.losses, below, side="right"))
        over = self.losses[start:] - below
        weights = -np.expm1(-over) * np.exp(-self._tilt * over)
        inner = float(weights @ self._tilted[start:])
        inner += self._error * float(np.linalg.norm(weights))
        found = math.exp(exponent) * inner * math.exp(1e-6 + self._steps * _ROUNDING)
        return min(1.0, found + self._beyond + _TINY)


def least_epsilon(losses: Losses, delta: float) -> float:
    """Return an epsilon with at most ``delta``, by sums that are exact ever nearer to it."""

    def enough(epsilon: float) -> bool:
        return total.delta(epsilon) <= delta

    total = LossSum(losses, around=0.0)
    if enough(0.0):
        return 0.0
    found = chernoff_epsilon(losses, delta)
    if enough(found):
        found = least(enough, 0.0, found, _PRECISION)
    while True:
        total = LossSum(losses, around=found)
        low, high = 0.0, 2.0 * found + 1.0
        while not enough(high):
            low, high = high, 2.0 * high
            if high > 1e9:
                return math.inf  # a loss that is infinite too often
        high = least(enough, low, high, _PRECISION / 4)
        if high > found * (1.0 - 1e-3):
            return min(high, found) if enough(found) else high
        found = high


def chernoff_epsilon(losses: Losses, delta: float) -> float:
    """Return an epsilon with about ``delta``, somewhat too large."""
    coarse = [(*_coarsened(law), number) for law, number in losses]

    def bound(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        return (_log_moment(coarse, tilt) - math.log(delta)) / tilt

    grid = np.linspace(math.log(1e-4), math.log(1e6), 200)
    return max(0.0, min(bound(value) for value in grid))


#: Losses, masses and number of each law.
_Points = Sequence[tuple[Array, Array, int]]


def _log_moment(points: _Points, tilt: float) -> float:
    """Return the logarithm of the mean of e^(tilt sum) where the sum is finite."""
    total = 0.0
    for losses, masses, number in points:
        with np.errstate(divide="ignore"):
            exponents = np.log(masses) + tilt * losses
        highest = float(exponents.max())
        total += number * (highest + math.log(float(np.exp(exponents - highest).sum())))
    return total


def _coarsened(law: LossLaw) -> tuple[Array, Array]:
    """Return few points with about the law's masses."""
    each = -(-len(law.masses) // _COARSE)
    starts = np.arange(0, len(law.masses), each)
    masses = np.add.reduceat(law.masses, starts)
    weighted = np.add.reduceat(law.masses * law.losses, starts)
    used = masses > 0
    return weighted[used] / masses[used], masses[used]


def centring_tilt(points: _Points, mean: float) -> float:
    """Return about the tilt, at least 0, at which the mean of the sum is ``mean``."""

    def enough(tilt: float) -> bool:
        found = 0.0
        for losses, masses, number in points:
            exponents = np.log(masses) + tilt * losses
            weights = np.exp(exponents - exponents.max())
            found += number * float(weights @ losses / weights.sum())
        return found >= mean

    if enough(0.0):
        return 0.0
    high = 1.0
    while not enough(high) and high < 1e9:
        high *= 4.0
    return halved(enough, 0.0, high, 2.0**-30)[0]
