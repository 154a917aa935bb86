r"""Survival curves and their comparison, from noisy counts of events and censored in intervals.

A table of time intervals and whether the event came (``"1"``) or the row was censored (``"0"``)
gives :math:`d_k` events and :math:`c_k` censored in interval k, and the number at risk
:math:`n_k = \sum_{j \ge k} (d_j + c_j)` as a sum after the noise. All of it is post-processing.

**Curve** (Kaplan and Meier 1958): :math:`S_k = \prod_{j \le k} (1 - d_j / n_j)` at the end of each
interval. Censored rows are at risk to the end of their interval, as where each time is an interval.

The curve is that of the counts of at least 0, which are less far off, held within its band.

**Unbiased counts**, perhaps below 0, are what band and test are made of. Those of at least 0 have
rows in cells where there are none. A curve is too flat of them, and equal groups of unequal size
differ.

**Band**: Greenwood's variance and the noise. A count moves :math:`S_k` by a slope, and the noise's
variance is the cells' times the sum of squared slopes. It is of first order. So it ends where the
number at risk is below a deviation of its noise: its high end stays there, and its low end is 0.

**Log-rank** (Mantel 1966), two groups: :math:`U = \sum_k (d_{1k} - n_{1k} d_k / n_k)` over the root
of its hypergeometric variance and of the noise's, found as above and as far.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from flower_ldp.errors import quoted
from flower_ldp.mechanisms.random import Floats
from flower_ldp.parameter_bounds import check_in
from flower_ldp.strategies.count_tables import CountTable, Estimate
from flower_ldp.wire.counts import is_text

# Fewer examples at risk are what fitting leaves of none.
_NOBODY = 1e-3


@dataclass(frozen=True)
class SurvivalCurve:
    """Shares that live on at the end of each interval, float64.

    Parameters
    ----------
    time : ndarray
        Ends of the intervals, in the column's unit.
    survival, low, high : ndarray
        The curve, and its pointwise band.
    at_risk, events : ndarray
        Numbers at each interval's begin, and of events in it.
    """

    time: Floats
    survival: Floats
    low: Floats
    high: Floats
    at_risk: Floats
    events: Floats

    def median(self) -> Estimate:
        """Return the first time at which half live on, and its interval; infinite if none is.

        The interval is that of the band (Brookmeyer and Crowley 1982).
        """
        ends = (self.survival, self.low, self.high)
        found = [float(np.min(self.time[one <= 0.5], initial=math.inf)) for one in ends]
        return Estimate(*found)


class LogRank(NamedTuple):
    """The normal statistic of a comparison, positive if the first group has more events."""

    statistic: float
    p_value: float


def survival(table: CountTable, *, time: str, event: str, level: float = 0.95) -> SurvivalCurve:
    """Return the survival curve of a table, summed over its other columns.

    Parameters
    ----------
    table : CountTable
        With both columns.
    time : str
        A column of edges. Times before the first edge count in the first interval, and those after
        the last in the last: choose edges from 0 to beyond all times.
    event : str
        A column of the categories ``["0", "1"]``; 1 is an event.
    level : float
        Of the band, in (0, 1).
    """
    check_in("(0, 1)", "level", level)
    table, best, counts, known = _ordered(table, time, event)
    found, risk = _curve(counts, known), _at_risk(counts)
    product = risk * (risk - counts[:, 1])
    is_some = known & (counts[:, 1] > 0) & (product > 0)
    hazard = np.divide(counts[:, 1], product, out=np.zeros_like(risk), where=is_some)
    noise = table.deviation**2 * _slopes(lambda one: _curve(one, known), counts)
    far = NormalDist().inv_cdf(0.5 + level / 2) * np.sqrt(found**2 * np.cumsum(hazard) + noise)
    low = np.minimum.accumulate(np.where(known, np.clip(found - far, 0.0, 1.0), 0.0))
    high = np.clip(found + far, 0.0, 1.0)
    left = _at_risk(best)
    curve = np.minimum.accumulate(np.clip(_curve(best, left > _NOBODY), low, high))
    edges = np.asarray(table.levels[time], dtype=np.float64)
    return SurvivalCurve(edges[1:], curve, low, high, left, best[:, 1])


def log_rank(table: CountTable, *, time: str, event: str, group: str) -> LogRank:
    """Compare the survival of a column's two categories; parameters as of :func:`survival`."""
    if not is_text(table.levels[group]) or len(table.levels[group]) != 2:
        raise ValueError(f"{quoted(group)} must have two categories")
    table, _, counts, known = _ordered(table, time, event, group)
    found, variance = _compared(counts, known)
    noise = float(_slopes(lambda one: _compared(one, known)[0], counts))
    spread = math.sqrt(max(0.0, float(variance)) + table.deviation**2 * noise)
    statistic = float(found) / spread if spread else 0.0
    return LogRank(statistic, math.erfc(abs(statistic) / math.sqrt(2)))


def _ordered(table: CountTable, *names: str) -> tuple[CountTable, Floats, Floats, Any]:
    """Return the margin of columns, and its counts of rows with values, axes in this order.

    Of at least 0, and unbiased; and in which intervals enough are at risk for the latter.
    """
    table = table.margin(*names)
    time, event = names[:2]
    if is_text(table.levels[time]) or list(table.levels[event]) != ["0", "1"]:
        raise ValueError(f"{quoted(time)} must have edges, and {quoted(event)} be ['0', '1']")
    order = [table.names.index(name) for name in names]
    inner = (slice(-1),) * len(names)
    best, counts = (one.transpose(order)[inner] for one in (table.counts, table.noisy))
    whole = counts.reshape(len(counts), -1)
    noise = table.deviation * np.sqrt(whole.shape[1] * np.arange(len(whole), 0, -1))
    return table, best, counts, np.logical_and.accumulate(_at_risk(whole) > noise)


def _at_risk(counts: Floats) -> Floats:
    """Return the sum of each interval and all later ones, over the events' axis."""
    return np.asarray(np.cumsum(counts.sum(axis=1)[::-1], axis=0)[::-1])


def _curve(counts: Floats, known: Any) -> Floats:
    risk = _at_risk(counts)
    return np.cumprod(1 - np.divide(counts[:, 1], risk, out=np.zeros_like(risk), where=known))


def _compared(counts: Floats, known: Any) -> tuple[Floats, Floats]:
    """Return the log-rank score of the first group, and its hypergeometric variance."""
    risk, events = _at_risk(counts)[known], counts[known, 1]
    whole, died = risk.sum(axis=1), events.sum(axis=1)
    share = risk[:, 0] / whole
    alive = np.divide(whole - died, whole - 1, out=np.zeros_like(whole), where=whole > 1)
    score = (events[:, 0] - share * died).sum()
    return np.asarray(score), np.asarray((died * share * (1 - share) * alive).sum())


def _slopes(of: Callable[[Floats], Floats], counts: Floats) -> Floats:
    """Return the sum over all cells of squared differences for one example more."""
    base, found = of(counts), np.zeros_like(of(counts))
    for place in np.ndindex(counts.shape):
        moved = counts.copy()
        moved[place] += 1.0
        found += (of(moved) - base) ** 2
    return found
