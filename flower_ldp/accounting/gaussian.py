r"""What several Gaussian releases cost together, at any delta: less than the sum.

Releases whose noise is normal, with shifts :math:`\mu_1, \ldots, \mu_n` (the inputs' distance
over the noise's standard deviation), tell two inputs apart no better than one normal shift by
:math:`\sqrt{\mu_1^2 + \cdots + \mu_n^2}` does, also if each is chosen with the earlier ones in
view (Dong, Roth and Su, "Gaussian Differential Privacy", 2022, Corollary 3.3). So their epsilon
at a chosen delta is read off one curve.

**When it holds.** The inputs' neighbouring relation is that of the shifts. If the shifts too are
chosen with earlier releases in view, it holds for a **cap** on :math:`\mu_1^2 + \cdots + \mu_n^2`
that is set beforehand and never exceeded: such a cap is a privacy filter (Smith and Thakurta,
"Fully Adaptive Composition for Gaussian Differential Privacy", 2022), and what it guarantees is
the epsilon of the whole cap, however little of it was used. It does not hold for the sum that was
reached when somebody who sees the releases decides when to stop or how much to spend. Shifts
that are fixed beforehand are their own cap. Ledgers here keep no such cap, so what is computed
is a statement about a plan, and budgets are enforced on sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from flower_ldp.accounting.composition import least
from flower_ldp.mechanisms.gaussian import (
    LARGEST_EPSILON,
    SMALLEST_EPSILON,
    gaussian_delta,
)

# What the sampler of one release adds to delta at most, at epsilon 100.
_SAMPLER = 2.0**-63


def composed_epsilon(shifts: Iterable[float], *, delta: float) -> float:
    """Return the epsilon of all releases together, at ``delta``.

    Parameters
    ----------
    shifts : iterable of float
        Of each release, positive: ``[mechanism.shift] * rounds``; for a cap and at most n
        releases, any n whose squares add up to the cap.
    delta : float
        In [1e-12, 1).

    Returns
    -------
    float
        At least 0.001; infinity above 100, where no epsilon has a meaning.

    Raises
    ------
    ValueError
        If there is no shift or a parameter is outside its interval.

    Examples
    --------
    >>> from flower_ldp.mechanisms import Gaussian
    >>> epsilon = composed_epsilon([Gaussian(1.0, 1e-6).shift] * 50, delta=1e-5)
    >>> round(epsilon, 2)
    8.04
    """
    if not 1e-12 <= delta < 1:
        raise ValueError(f"delta must be in [1e-12, 1), got {delta}")
    shifts = list(shifts)
    shift = math.hypot(*shifts)
    if not 0 < shift < math.inf:
        raise ValueError(f"shifts must be positive numbers, got a root of squares of {shift}")
    # A millionth covers the roundings of the curve in doubles.
    allowed = delta * (1.0 - 1e-6) - len(shifts) * _SAMPLER
    low, high = SMALLEST_EPSILON, LARGEST_EPSILON
    if gaussian_delta(low, shift) <= allowed:
        return low
    if gaussian_delta(high, shift) > allowed:
        return math.inf
    return least(lambda epsilon: gaussian_delta(epsilon, shift) <= allowed, low, high, 1e-9)
