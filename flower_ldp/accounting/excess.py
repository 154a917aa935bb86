r"""Mean of the positive part of a sum of independent, equal variables, from above and from below.

**Grid.** A value off the grid is split between both neighbours with the same mean. The sum V of
the split values then has :math:`E[V]_+ \ge E[S]_+` (Jensen's inequality, given S). With R = V - S,

.. math:: E[S]_+ \ge E[V]_+ - E[|R|;\, |R| \ge |S|]
    \ge E[V]_+ - c\,P(|V| \le 2c) - E[|R|;\, |R| > c].

**Transform.** As in :mod:`.loss_sums`: one fast Fourier transform, to the power of the number, of
the tilted law :math:`\tilde p(v) = p(v) e^{\theta v} / M(\theta)`, so that errors are relative.

**Exactness.** What is rounded or cut off is added, or taken off:

- the transform, its power and its inverse: :math:`32 u (n + 1) \log_2 N` in the Euclidean norm, as
  there, times the norm of the weights (Cauchy and Schwarz);
- sums outside the window, by Chernoff's bound; those that fold into it only add;
- the tail of R, by Bernstein's inequality: but :math:`4 c e^{-24}`;
- masses and exponents in doubles: 1e-12 of each of the n.

Values are taken as given.
"""

from __future__ import annotations

import math

import numpy as np

from flower_ldp.accounting.loss_sums import Array, centring_tilt

_UNIT, _ROUNDING = 2.0**-53, 1e-12
# Standard deviations of the tilted sum, and largest values, that the window spans.
_SPAN, _LARGEST = 16.0, 4.0
_LOG_TAIL = 24.0
# Units from 0 on from which a value may decide the unit, which grows by a part of that.
_FAR = 4.0


class ExcessOfSum:
    """The law of the sum of ``number`` independent values, tilted to a mean of about 0.

    Parameters
    ----------
    values, masses : ndarray of float64, shape (m,)
        The law of one value, with a mean of at most 0.
    number : int
    points : int
        Of the transform, a power of two.
    """

    def __init__(self, values: Array, masses: Array, number: int, points: int) -> None:
        values, masses = values[masses > 0.0], masses[masses > 0.0]
        self._largest, self._reach = float(values.max()), float(np.abs(values).max())
        self._tilt = centring_tilt([(values, masses, 1)], 0.0) if self._largest > 0.0 else 0.0
        tilted = _tilted(values, masses, self._tilt)
        variance = float(tilted @ (values - tilted @ values) ** 2)
        width = _SPAN * math.sqrt(number * variance) + _LARGEST * self._reach
        unit = min(width, 2.1 * number * self._reach) / points
        # The likeliest of the values that are not too near to 0 is put on the grid.
        far = np.abs(values) >= _FAR * unit
        chosen = abs(float(values[np.where(far, masses, 0.0).argmax()]))
        self._unit = unit = chosen / (chosen // unit) if far.any() else unit
        lower = np.floor(values / unit)
        part = values / unit - lower
        places = np.concatenate([lower, lower + 1.0])
        split = np.concatenate([masses * (1.0 - part), masses * part])
        self._places, self._split = places[split > 0.0], split[split > 0.0]
        self._spread = number * unit**2 * float(masses @ (part * (1.0 - part)))
        self._number, self._half = number, points // 2
        self._top = unit * self._half
        self._log_scale = number * float(self._log_moments(np.array([self._tilt]))[0])
        tilted = _tilted(unit * self._places, self._split, self._tilt)
        law = np.zeros(points)
        np.add.at(law, self._places.astype(np.int64) % points, tilted)
        self._law = np.maximum(np.fft.irfft(np.fft.rfft(law) ** number, points), 0.0)
        self._error = 32.0 * _UNIT * (number + 1) * math.log2(points)
        sums = np.arange(1, self._half) * unit
        weights = sums * np.exp(-self._tilt * sums)
        self._inner = float(weights @ self._law[1 : self._half])
        self._inner_error = self._error * float(np.linalg.norm(weights))

    def above(self) -> float:
        """Return an upper bound of the mean of the positive part."""
        if self._largest <= 0.0:
            return 0.0
        is_cut = self._number * self._largest >= self._top
        beyond = self._top * self._chernoff(self._top, 0.0) if is_cut else 0.0
        return self._scaled(self._inner + self._inner_error, 1.0) + beyond

    def below(self) -> float:
        """Return a lower bound of the mean of the positive part."""
        # By Bernstein |R| exceeds it with a probability of at most 2 e^-24.
        most = math.sqrt(2.0 * _LOG_TAIL * self._spread) + 2.0 * _LOG_TAIL * self._unit / 3.0
        steps = math.ceil(2.0 * most / self._unit)
        if self._largest <= 0.0 or steps >= self._half or self._tilt * self._unit * steps > 700.0:
            return 0.0
        near = np.arange(-steps, steps + 1)
        weights = np.exp(-self._tilt * self._unit * near)
        close = float(weights @ self._law[near]) + self._error * float(np.linalg.norm(weights))
        # Sums from 2T on fold to the window's upper half, those below -T too.
        folded = 0.0
        if self._number * self._reach >= self._top:
            folded = 2.0 * self._chernoff(2.0 * self._top, self._tilt)
            folded += math.exp(-2.0 * self._tilt * self._top)
        lost = most * (self._scaled(close, 1.0) + 4.0 * math.exp(-_LOG_TAIL)) + self._top * folded
        return max(0.0, self._scaled(self._inner - self._inner_error, -1.0) - lost)

    def _scaled(self, tilted: float, sign: float) -> float:
        """Return a tilted mean in its own measure, rounded up or, with the sign -1, down."""
        exponent = self._log_scale + sign * self._number * _ROUNDING
        return tilted * math.exp(min(exponent, 700.0))

    def _log_moments(self, tilts: Array) -> Array:
        """Return the logarithm of the mean of e^(tilt v) for each tilt."""
        exponents = np.log(self._split) + np.multiply.outer(tilts, self._unit * self._places)
        highest = exponents.max(axis=-1)
        return np.asarray(highest + np.log(np.exp(exponents - highest[:, None]).sum(axis=-1)))

    def _chernoff(self, least: float, tilt: float) -> float:
        """Return a bound of the mean of e^(tilt V) e^(-a (V - least)) from ``least`` on.

        The best of some a of at least 1 / T, from which on V e^(-a V) falls.
        """
        tilts = max(self._tilt, 1.0 / self._top) * np.geomspace(1.0, 1e3, 100)
        logs = self._number * self._log_moments(tilt + tilts) - tilts * least
        return math.exp(min(700.0, float(logs.min())))


def _tilted(values: Array, masses: Array, tilt: float) -> Array:
    exponents = np.log(masses) + tilt * values
    weights = np.exp(exponents - exponents.max())
    return np.asarray(weights / weights.sum())
