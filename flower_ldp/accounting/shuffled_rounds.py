r"""Several shuffled rounds of one client, and the codewords for a wanted central epsilon.

**Several rounds.** Let delta(epsilon) bound each round, whatever came before it. As a function of
:math:`\alpha = e^\epsilon` the true delta is convex. The relation is symmetric, so below 1 it is at
most :math:`1 - \alpha + \alpha\,\delta(-\epsilon)`. It is therefore at most the largest convex
function that is no larger than the bound at some chosen points. That function is the delta of a
pair of laws. At the loss :math:`\ln \alpha` of a point the second law has the change of the slope
there, and the first has :math:`\alpha` times that. Pairs that dominate each round dominate all
rounds together, chosen with earlier ones in view (Zhu, Dong, Wang 2022, Theorem 10). Their losses
add up (:mod:`.loss_sums`). The numbers of rounds and reports are fixed beforehand.

**Each client in one round.** Rounds of other clients do not count: the epsilon is the largest
of a round.

**Exactness**: slopes and masses are quotients of integers, of the bounds as doubles.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from flower_ldp.accounting.loss_sums import LossLaw, least_epsilon
from flower_ldp.accounting.shuffled import FavouredPart, ShuffledReports
from flower_ldp.mechanisms.codeword import Codeword, sizes_tried
from flower_ldp.parameter_bounds import check_in, halved

#: e^epsilon, a bound of delta, and the number of the epsilon on a grid.
_Point: TypeAlias = tuple[Fraction, Fraction, int]
#: Points of a round's curve, up to where its delta is a thousandth of a share of all.
_POINTS, _PART = 128, 1e-3
# Of its grid up to the largest local epsilon.
_MOST_POINTS = 1 << 16
#: Relative precision of a local epsilon.
_PRECISION = 2.0**-13
#: Of the most efficient report's, what one with a smaller local epsilon has to have.
_ENOUGH = 0.98
# Significant digits of its local epsilon.
_DIGITS = 4


def rounds_epsilon(rounds: Sequence[tuple[ShuffledReports, int]], delta: float) -> float:
    """Return the central epsilon of all rounds in which one client reports, at ``delta`` in all.

    Parameters
    ----------
    rounds : sequence of tuple of ShuffledReports and int
        Each kind of round with its number, fixed beforehand.
    delta : float
        In (0, 1).

    Returns
    -------
    float
        Rounded up; at most the sum of the local ones.

    Examples
    --------
    >>> one = ShuffledReports((FavouredPart(4.0, 1_004 / 16_384),), reports=2_000)
    >>> round(rounds_epsilon([(one, 2)], delta=1e-6), 2)
    1.27
    """
    check_in("(0, 1)", "delta", delta)
    for _, number in rounds:
        check_in("[1, inf)", "number of rounds", number, int)
    total = sum(number for _, number in rounds)
    if total == 1:
        return rounds[0][0].epsilon(delta)
    local = math.fsum(one.local_epsilon * number for one, number in rounds)
    tops = [one.epsilon(delta * _PART / total) for one, _ in rounds]
    largest = max(one.local_epsilon for one, _ in rounds)
    narrowest = max(min(tops), largest * _POINTS / _MOST_POINTS)
    unit = largest / math.ceil(largest * _POINTS / narrowest)
    laws = [
        (_loss(one, unit, math.ceil(top / unit)), number)
        for (one, number), top in zip(rounds, tops, strict=True)
    ]
    return min(local, least_epsilon(laws, delta))


def codeword_for(central: float, reports: int, *, delta: float, order: int) -> Codeword:
    """Return the codewords, with epsilon and K, whose reports are worth most.

    Of those within a fiftieth of the best efficiency, the ones with the least local epsilon.

    Parameters
    ----------
    central : float
        Wanted central epsilon of one round; in (0, 30].
    reports : int
        n.
    delta : float
        In (0, 1).
    order : int
        n of the code, half of its codewords.

    Examples
    --------
    >>> found = codeword_for(2.0, 1_000, delta=1e-6, order=8_192)
    >>> 4.5 < found.epsilon < 4.9, 300 < found.favoured < 500
    (True, True)
    """
    check_in("(0, 30]", "central", central)
    check_in("[1, inf)", "reports", reports, int)
    check_in("(0, 1)", "delta", delta)
    check_in("[2, 16777216]", "order", order, int)

    @cache
    def best_of(size: int) -> Codeword:
        def is_too_much(local: float) -> bool:
            part = FavouredPart(local, size / (2 * order))
            return ShuffledReports((part,), reports).delta(central) > delta

        # Beyond, nobody's report is uniform.
        most = min(100.0, central + math.log(2.0 * order) + math.log(reports))
        if not is_too_much(most):
            return Codeword(most, size)
        return Codeword(halved(is_too_much, central, most, _PRECISION)[0], size)

    def worth(size: int) -> float:
        return best_of(size).plan(order).efficiency

    sizes = sizes_tried(order)
    # The worth rises with K up to one place, and falls from there on.
    steps = [*pairwise(sizes)]
    low = bisect_left(steps, True, key=lambda step: worth(step[0]) >= worth(step[1]))
    most = worth(sizes[low])
    while low + 1 < len(sizes) and worth(sizes[low + 1]) >= _ENOUGH * most:
        low += 1
    best = best_of(sizes[low])
    fine = 10.0 ** (_DIGITS - math.ceil(math.log10(best.epsilon)))
    return replace(best, epsilon=math.floor(best.epsilon * fine) / fine)


def _loss(one: ShuffledReports, unit: float, last: int) -> LossLaw:
    """Return the loss of a pair of laws whose delta is at least that of a round."""
    end = math.ceil(one.local_epsilon / unit - 1e-9)
    steps = [*range(0, min(last, end), max(1, last // _POINTS)), min(last, end), end]
    points = [(Fraction(0), Fraction(1), 0)]
    for step in sorted(set(steps)):
        alpha, found = Fraction(math.exp(step * unit)), Fraction(one.delta(step * unit))
        points.append((alpha, found, step))
        points.append((1 / alpha, 1 - 1 / alpha + found / alpha, -step))
    hull = _convex(sorted(points))
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(hull)]
    masses = np.zeros(2 * end + 1)
    for (alpha, _, step), (before, after) in zip(
        hull[1:], pairwise([*slopes, Fraction(0)]), strict=True
    ):
        masses[step + end] = float(alpha * (after - before))
    return LossLaw(unit, -end, masses, float(hull[-1][1]))


def _convex(points: list[_Point]) -> list[_Point]:
    """Return the corners of the largest convex function that is at most that of the points."""
    found: list[_Point] = []
    for point in points:
        while len(found) > 1:
            first, last = found[-2:]
            rise, run = point[1] - first[1], point[0] - first[0]
            if (last[1] - first[1]) * run < rise * (last[0] - first[0]):
                break
            found.pop()
        found.append(point)
    return found
