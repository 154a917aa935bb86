r"""What normal noise guarantees, exactly: the curve of delta over epsilon, and its inverse.

Two inputs whose distance is :math:`\mu` standard deviations of the noise are told apart with

.. math:: \delta(\epsilon) = \Phi\left(\frac{\mu}{2} - \frac{\epsilon}{\mu}\right)
          - e^\epsilon\, \Phi\left(-\frac{\mu}{2} - \frac{\epsilon}{\mu}\right)

and no less, in any number of dimensions (Balle and Wang, "Improving the Gaussian Mechanism
for Differential Privacy", 2018, Theorem 8). Delta grows with mu.

The textbook's :math:`\sigma = \Delta\sqrt{2 \ln(1.25/\delta)}/\epsilon` is a theorem for
:math:`\epsilon < 1` only (Dwork and Roth 2014, Theorem A.1). At epsilon 50, a sigma computed so
for delta 1e-5 has delta 0.586, and one for delta 0.01 has 0.9999994. Nothing here uses it.
"""

from __future__ import annotations

import math

_ROOT_HALF = math.sqrt(0.5)
#: Intervals in which delta and its inverse are computed to six digits and more.
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-3, 100.0
SMALLEST_DELTA, LARGEST_DELTA = 1e-18, 0.5
#: Below it the two sides of the curve differ by less than doubles hold of either.
_SMALLEST_SHIFT = 1e-7
#: Above it the roundings of the last product move delta by more than its margin of 1e-6.
_LARGE_SHIFT = 1e6


def gaussian_delta(epsilon: float, shift: float) -> float:
    """Return the delta of a normal shift by ``shift`` standard deviations.

    Parameters
    ----------
    epsilon : float
        In [1e-3, 100].
    shift : float
        Distance of the inputs over the standard deviation of the noise; positive.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.
    """
    if not SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
        raise ValueError(
            f"epsilon must be in [{SMALLEST_EPSILON:g}, {LARGEST_EPSILON:g}], got {epsilon}"
        )
    if not 0 < shift < math.inf:
        raise ValueError(f"shift must be in (0, inf), got {shift}")
    larger = math.erfc((epsilon / shift - shift / 2) * _ROOT_HALF)
    smaller = math.erfc((epsilon / shift + shift / 2) * _ROOT_HALF)
    # A smaller erfc that underflows stands for less than 1e-300.
    return max(0.0, (larger - math.exp(epsilon) * smaller) / 2)


def largest_shift(epsilon: float, delta: float) -> float:
    """Return the largest shift that is (epsilon, delta)-differentially private.

    Found by bisection; at most two parts in 10^12 smaller than what ``gaussian_delta`` allows.

    Parameters
    ----------
    epsilon : float
        In [1e-3, 100].
    delta : float
        In (0, 0.5].

    Raises
    ------
    ValueError
        If a parameter is outside its interval.
    """
    if not 0 < delta <= LARGEST_DELTA:
        raise ValueError(f"delta must be in (0, {LARGEST_DELTA:g}], got {delta}")
    # At epsilon 100 and delta 0.5 it is 14.1; at 1e-3 and 1e-18, 1.2e-4.
    low, high = 0.0, 32.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if gaussian_delta(epsilon, middle) <= delta:
            low = middle
        else:
            high = middle
    return low


def classical_deviation(epsilon: float, delta: float) -> float:
    """Return sqrt(2 ln(1.25 / delta)) / epsilon: valid below epsilon 1 only, and not used.

    It stands here to be compared with ``1 / largest_shift(epsilon, delta)``: both are
    standard deviations for inputs at distance 1.
    """
    return math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


def gaussian_epsilon(shift: float, delta: float) -> float:
    r"""Return the epsilon of a normal shift by ``shift`` standard deviations, however large.

    With :math:`\epsilon = \mu (a + \mu / 2)` the curve is
    :math:`\delta = \Phi(-a) - \varphi(a)\, M(a + \mu)`, where M is Mills' ratio
    :math:`\Phi(-x) / \varphi(x)`. Nothing in it overflows, and :math:`a` is found by bisection.

    Parameters
    ----------
    shift : float
        Distance of the inputs over the standard deviation of the noise; positive.
    delta : float
        In [1e-18, 1).

    Returns
    -------
    float
        Not below the true one, and at most two parts in a million of delta above it; zero where
        delta alone covers the shift. Of shifts below 1e-7 it is that of 1e-7; of shifts from 1e6
        on it is a part in 10^15 larger, which covers its own roundings.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.

    Examples
    --------
    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    >>> f"{gaussian_epsilon(41_281.0, 1e-5):.2e}"
    '8.52e+08'
    """
    if not 0 < shift < math.inf:
        raise ValueError(f"shift must be in (0, inf), got {shift}")
    if not SMALLEST_DELTA <= delta < 1:
        raise ValueError(f"delta must be in [{SMALLEST_DELTA:g}, 1), got {delta}")
    allowed = delta * (1.0 - 1e-6)  # covers the roundings of the curve in doubles
    if math.erf(shift / 2 * _ROOT_HALF) <= allowed:
        return 0.0
    shift = max(shift, _SMALLEST_SHIFT)  # epsilon grows with it, so this is a bound
    low, high = -shift / 2, 10.0  # at 10 the tail alone is below the smallest delta
    while high - low > 1e-12 * max(abs(low), abs(high)):
        middle = (low + high) / 2
        density = math.exp(-middle * middle / 2) / math.sqrt(2 * math.pi)
        found = math.erfc(middle * _ROOT_HALF) / 2 - density * _mills(middle + shift)
        if found <= allowed:
            high = middle
        else:
            low = middle
    found = shift * (high + shift / 2)
    return found if shift < _LARGE_SHIFT else found * (1.0 + 1e-15)


def _mills(x: float) -> float:
    """Return the normal law's tail over its density, for x >= 0."""
    if x < 25.0:
        return math.exp(x * x / 2) * math.erfc(x * _ROOT_HALF) * math.sqrt(math.pi / 2)
    square = x * x  # the next term of the series is below 1e-10 here
    return (1 - (1 - (3 - (15 - 105 / square) / square) / square) / square) / x
