r"""The privacy loss of one step of DP-SGD, on a grid, rounded so that nothing is lost.

In units of the clipping length, with noise :math:`\sigma` and sampling rate q, write
:math:`\nu_c = (1 - q) N(0, \sigma^2) + q N(c, \sigma^2)`. A step is dominated

- for one example **replaced**, by :math:`(\nu_1, \nu_{-1})`, which is its own mirror image
  (docs/dpsgd_release.md has the proof);
- for one **removed**, by :math:`(\nu_1, N(0, \sigma^2))`, and for one **added**, by the same pair
  the other way round (Zhu, Dong and Wang, "Optimal Accounting of Differential Privacy via
  Characteristic Function", 2022, Theorem 11).

Domination means :math:`\int (p - \gamma q)_+` for every :math:`\gamma > 0`, so steps compose, also
if each is chosen with the earlier ones in view (the same, Theorem 10).

**Rounding.** The loss :math:`l` rises with the output. Between two points of the grid, the law's
mass is moved to both ends so that its mass under the other law is kept too. The ratio
:math:`r = e^{-l}` then has the same mean and is spread further, so the mean of the convex
:math:`(1 - \gamma r)_+` rises, for every :math:`\gamma` ("connecting the dots": Doroshenko et
al. 2022). Above the last point the same is done with r = 0; below the first, r is lowered to it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.accounting.loss_sums import LossLaw

Array = NDArray[np.float64]

# Normal tails beyond it weigh 2e-33.
_DEVIATIONS = 12.0
# Spacing: over the loss's standard deviation at most, and no finer than the other two need it.
# This sets accuracy, never soundness.
_FINENESS, _FINE, _FINE_ENOUGH = 0.1, 1e-3, 1e-3
_MOST_POINTS = 1 << 21
# Share of an interval's mass that goes to its upper end beyond what is computed: it covers the
# roundings of that share.
_UPWARD = 1e-6
# Masses from here on have all digits.
_FULL = 1e-290


def replaced(noise: float, rate: float) -> tuple[LossLaw, ...]:
    """Return the law of a step's loss for one example replaced: one, as it is symmetric."""
    low, high = _loss(np.array([-1.0, 1.0]) * _reach(noise), noise, rate, both=True)
    x = np.linspace(-1.0, 1.0, 4_001) * _reach(noise)
    unit, grid = _grid(low, high, _deviation(x, _loss(x, noise, rate, both=True), noise, rate))
    with np.errstate(over="ignore"):
        # where nu_1 / nu_-1 is e^l: sinh(x / noise^2 - l / 2) = (1 - q) sinh(l / 2) / (q k)
        argument = np.log1p(-rate) if rate < 1 else -math.inf
        argument = argument - math.log(rate) + 0.5 / noise**2
        x = noise**2 * (grid * unit / 2 + _arcsinh_of(argument, grid * unit / 2))
    return (_rounded(_masses(x, noise, rate, 1.0), _masses(x, noise, rate, -1.0), grid, unit),)


def removed_or_added(noise: float, rate: float) -> tuple[LossLaw, ...]:
    """Return the laws of a step's loss for one example removed, and for one added."""
    low, high = _loss(np.array([-1.0, 1.0]) * _reach(noise), noise, rate, both=False)
    x = np.linspace(-1.0, 1.0, 4_001) * _reach(noise)
    unit, grid = _grid(low, high, _deviation(x, _loss(x, noise, rate, both=False), noise, rate))
    with np.errstate(divide="ignore", invalid="ignore"):
        # nu_1 / N(0) is at least 1 - q
        above = np.expm1(grid * unit) + rate
        x = np.where(above > 0, 0.5 + noise**2 * np.log(np.maximum(above, 0) / rate), -np.inf)
    with_it, without = _masses(x, noise, rate, 1.0), _masses(x, noise, 0.0, 1.0)
    return (
        _rounded(with_it, without, grid, unit),
        _rounded(without[::-1], with_it[::-1], -grid[::-1], unit),
    )


def _reach(noise: float) -> float:
    return 1.0 + _DEVIATIONS * noise


def _loss(x: Array, noise: float, rate: float, *, both: bool) -> Array:
    """Return the loss at outputs ``x``: of (nu_1, nu_-1), or of (nu_1, N(0))."""
    with np.errstate(divide="ignore"):
        rest, part = np.log1p(-np.float64(rate)), np.log(np.float64(rate))
    found: Array = np.logaddexp(rest, part + (x - 0.5) / noise**2)
    if both:
        found = found - np.logaddexp(rest, part - (x + 0.5) / noise**2)
    return found


def _arcsinh_of(log_factor: float, angles: Array) -> Array:
    """Return arcsinh(e^log_factor sinh(angles)), without overflow."""
    size = np.abs(angles)
    with np.errstate(divide="ignore"):
        log_sinh = np.where(size > 20, size - math.log(2), np.log(np.sinh(np.minimum(size, 20.0))))
    log_value = log_factor + log_sinh
    small = np.arcsinh(np.exp(np.minimum(log_value, 300.0)))
    found: Array = np.sign(angles) * np.where(log_value > 300, log_value + math.log(2), small)
    return found


def _deviation(x: Array, losses: Array, noise: float, rate: float) -> float:
    """Return about the standard deviation of the loss, by weights at evenly spaced outputs."""
    weights = (1 - rate) * np.exp(-((x / noise) ** 2) / 2)
    weights += rate * np.exp(-(((x - 1) / noise) ** 2) / 2)
    weights /= weights.sum()
    mean = weights @ losses
    return math.sqrt(float(weights @ (losses - mean) ** 2))


def _grid(low: float, high: float, deviation: float) -> tuple[float, NDArray[np.int64]]:
    """Return the spacing and the points from low to high, as whole multiples of it."""
    unit = min(_FINENESS * deviation, max(_FINE, _FINE_ENOUGH * deviation))
    unit = max(unit, (high - low) / _MOST_POINTS)
    return unit, np.arange(math.floor(low / unit), math.ceil(high / unit) + 1)


def _masses(x: Array, noise: float, rate: float, centre: float) -> Array:
    """Return masses of nu_centre below the first x, between neighbours, and above the last."""
    edges = np.concatenate([[-np.inf], x, [np.inf]])
    found = (1.0 - rate) * _normal_masses(edges / noise)
    if rate > 0:
        found = found + rate * _normal_masses((edges - centre) / noise)
    return found


def _normal_masses(z: Array) -> Array:
    """Return the standard normal law's mass between neighbours, small ones exactly too."""
    ndtr = _special().ndtr
    right = z[:-1] > 0
    found: Array = np.where(right, -np.diff(ndtr(-z)), np.diff(ndtr(z)))
    return found


def _rounded(p: Array, q: Array, grid: NDArray[np.int64], unit: float) -> LossLaw:
    """Move masses of intervals to their ends: those under p, given those under q."""
    losses = grid * unit
    inner, other = p[1:-1], q[1:-1]
    # Scaled by e^loss at the lower end: w (1 - e^-unit) = q e^l - p e^-unit. A q that doubles do
    # not hold in full gives the upper end all: no delta is less for it.
    with np.errstate(divide="ignore"):
        scaled = np.exp(np.where(other < _FULL, -np.inf, np.log(other) + losses[:-1]))
    share = (scaled - inner * math.exp(-unit)) / -math.expm1(-unit) - _UPWARD * inner
    lower = np.clip(share, 0.0, inner)
    masses = np.zeros(len(grid))
    masses[:-1] += lower
    masses[1:] += inner - lower
    masses[0] += p[0]
    # The last: all of it at infinity, though the last point could take a part.
    return LossLaw(unit, int(grid[0]), masses, float(p[-1]))


def _special() -> Any:
    # Imported late: it takes a while, and ledgers do without it.
    try:
        from scipy import special
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "DP-SGD's accounting needs scipy: pip install 'flower-ldp[dpsgd]'"
        ) from error
    return special
