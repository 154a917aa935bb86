r"""Delta of many equal steps from the law of one step's privacy loss: an upper bound.

A sum of T independent losses is found by one fast Fourier transform. Plainly done, it is wrong
by about 1e-13 at every point, which is more than a small delta. So the law is **tilted** first,
:math:`\tilde p(l) = p(l) e^{\theta l} / M(\theta)`, with theta such that the sum's mean is the
epsilon of interest, and tilted back afterwards:

.. math:: \delta(\epsilon) = \sum_{s > \epsilon} (1 - e^{\epsilon - s})\, M(\theta)^T
          e^{-\theta s}\, \tilde p_T(s).

The factor before the sum is Chernoff's bound; what follows is of order one, so an error of 1e-9
in it is relative, at any delta. Everything that is rounded or cut off is added:

- the transform, its power and its inverse, by the error bound for each
  :math:`\|\hat y - y\|_2 \le 8 u \log_2 N\, \|y\|_2` (Higham, "Accuracy and Stability of Numerical
  Algorithms", 2002, Theorem 24.2), times the norm of the weights (Cauchy and Schwarz);
- sums above the window, which the transform folds back into it: what folds in only adds, and
  what is folded out is at most Chernoff's bound for it. An epsilon below the window has delta 1;
- roundings of masses and losses: 1e-12 of each step's, on both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_UNIT = 2.0**-53
_ROUNDING = 1e-12
# Added to each delta: below it, doubles lose digits.
_TINY = 1e-300
# Points of a law by which a tilt is chosen: any tilt gives a bound, a good one a tight one.
_COARSE = 2_048
# Standard deviations of the tilted sum that the window spans, and the most points it may have:
# beyond a narrower window Chernoff's bound stands, which is no less a bound.
_SPAN, _MOST_SUMS = 24.0, 1 << 23


@dataclass(frozen=True)
class LossLaw:
    """Law of one step's loss, on whole multiples of ``unit``.

    Parameters
    ----------
    unit : float
        Distance of the points; positive.
    first : int
        The lowest point, in units.
    masses : ndarray of float64, shape (points,)
        Probabilities, right to 1e-12 of each.
    infinite : float
        Probability of an infinite loss.
    """

    unit: float
    first: int
    masses: NDArray[np.float64]
    infinite: float

    @property
    def losses(self) -> NDArray[np.float64]:
        """The points, as losses."""
        return np.arange(self.first, self.first + len(self.masses)) * np.float64(self.unit)

    def log_moment(self, tilt: float) -> float:
        """Return the logarithm of M: the mean of e^(tilt loss) where the loss is finite."""
        return _log_moment(self.losses, self.masses, tilt)


@dataclass(frozen=True)
class LossSum:
    """Law of the sum of ``steps`` losses, exact to many digits around one point.

    Made by :func:`loss_sum`; :meth:`delta` is an upper bound everywhere and tight around there.
    """

    tilt: float
    log_scale: float
    losses: NDArray[np.float64]
    tilted: NDArray[np.float64]
    error: float
    beyond: float
    lowest: float
    steps: int

    def delta(self, epsilon: float) -> float:
        """Return at least the delta at ``epsilon``, at most 1."""
        below = epsilon - self.steps * _ROUNDING * (1.0 + abs(epsilon))
        exponent = self.log_scale - self.tilt * below
        if exponent > 600.0 or below < self.lowest:
            return 1.0  # far below where this law is exact, or sums between are not in it
        start = int(np.searchsorted(self.losses, below, side="right"))
        over = self.losses[start:] - below
        weights = -np.expm1(-over) * np.exp(-self.tilt * over)
        inner = float(weights @ self.tilted[start:])
        inner += self.error * float(np.linalg.norm(weights))
        found = math.exp(exponent) * inner * math.exp(1e-6 + self.steps * _ROUNDING)
        return min(1.0, found + self.beyond + _TINY)


def loss_sum(law: LossLaw, steps: int, *, around: float) -> LossSum:
    """Return the law of the sum of ``steps`` independent losses.

    Parameters
    ----------
    law : LossLaw
        Of one.
    steps : int
        At least 1.
    around : float
        Where it shall be exact: the epsilon of interest.
    """
    losses, coarse = _coarsened(law)
    around = min(around, steps * (law.first + len(law.masses)) * law.unit)  # no sum is larger
    tilt = _tilt(losses, coarse, around / steps)
    log_moment = law.log_moment(tilt)
    while tilt > 0 and steps * log_moment > tilt * around:
        # Too far, as few points show where the largest losses lie only roughly.
        tilt = tilt / 2 if tilt > 1e-9 else 0.0
        log_moment = law.log_moment(tilt)
    with np.errstate(divide="ignore"):
        tilted = np.exp(np.log(law.masses) + tilt * law.losses - log_moment)
    mean = float(tilted @ law.losses)
    deviation = math.sqrt(max(0.0, float(tilted @ (law.losses - mean) ** 2)) * steps)
    points = len(tilted)
    widest = steps * (points - 1) + 1
    spanned = min(int(_SPAN * deviation / law.unit), _MOST_SUMS)
    size = 1 << (min(widest, max(points, spanned)) - 1).bit_length()
    transformed = np.fft.rfft(tilted, size) ** steps
    folded = np.maximum(np.fft.irfft(transformed, size), 0.0)
    if widest <= size:
        start, beyond, lowest = steps * law.first, 0.0, -math.inf
    else:
        start = math.floor(around / law.unit) - size // 2
        lowest, top = start * law.unit, (start + size) * law.unit
        further = _tilt(losses, coarse, top / steps)
        beyond = math.exp(min(0.0, steps * law.log_moment(further) - further * top))
    order = (start - steps * law.first + np.arange(size)) % size
    return LossSum(
        tilt=tilt,
        log_scale=steps * log_moment,
        losses=np.arange(start, start + size) * np.float64(law.unit),
        tilted=folded[order],
        error=32.0 * _UNIT * (steps + 1) * math.log2(max(size, 2)),
        beyond=beyond * (1.0 + 1e-6) - math.expm1(steps * math.log1p(-law.infinite)),
        lowest=lowest,
        steps=steps,
    )


def chernoff_epsilon(law: LossLaw, steps: int, delta: float) -> float:
    """Return an epsilon with at most about ``delta``: somewhat too large, a point to start at."""
    losses, masses = _coarsened(law)

    def bound(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        return (steps * _log_moment(losses, masses, tilt) - math.log(delta)) / tilt

    grid = np.linspace(math.log(1e-4), math.log(1e6), 200)
    return max(0.0, min(bound(value) for value in grid))


def _log_moment(losses: NDArray[np.float64], masses: NDArray[np.float64], tilt: float) -> float:
    with np.errstate(divide="ignore"):
        exponents = np.log(masses) + tilt * losses
    highest = float(exponents.max())
    return highest + math.log(float(np.exp(exponents - highest).sum()))


def _coarsened(law: LossLaw) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return few points with about the law's masses."""
    each = -(-len(law.masses) // _COARSE)
    starts = np.arange(0, len(law.masses), each)
    masses = np.add.reduceat(law.masses, starts)
    weighted = np.add.reduceat(law.masses * law.losses, starts)
    used = masses > 0
    return weighted[used] / masses[used], masses[used]


def _tilt(losses: NDArray[np.float64], masses: NDArray[np.float64], mean: float) -> float:
    """Return about the tilt, at least 0, at which the mean loss is ``mean``."""

    def tilted_mean(tilt: float) -> float:
        exponents = np.log(masses) + tilt * losses
        weights = np.exp(exponents - exponents.max())
        return float(weights @ losses / weights.sum())

    if tilted_mean(0.0) >= mean:
        return 0.0
    high = 1.0
    while tilted_mean(high) < mean and high < 1e9:
        high *= 4.0
    low = 0.0
    for _ in range(30):
        middle = (low + high) / 2
        if tilted_mean(middle) < mean:
            low = middle
        else:
            high = middle
    return low
