r"""Tables of noisy counts, and what is read from them: shares, means, quantiles, intervals.

**Agreement** (after Qardaji, Yang and Li, "PriView", 2014). Tables that share columns are given one
margin over these: the mean of theirs, weighted by the inverse of the noise, and the rest of each
table moves evenly. Margins of fewer columns come first, and all tables add up to the number of
examples, which is public. Then counts below 0 are removed: each margin and table is projected to
counts of at least 0 with this sum, and fitted to the smaller margins by their ratios.

**Intervals** have the noise in them, and for shares, means and quantiles the chance that made the
examples a sample too. Counts' are centred on the counts before agreement. The noise of a count is a
sum over sites: its quantile is a normal one, corrected for the Laplace law's excess
:math:`\kappa` by :math:`(z^3 - 3z) \kappa / 24` (Cornish and Fisher 1937).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from flower_ldp.errors import quoted
from flower_ldp.mechanisms.laplace import project_to_simplex
from flower_ldp.mechanisms.random import Floats
from flower_ldp.parameter_bounds import check_in
from flower_ldp.wire.counts import Levels, Names, is_text, levels_of

_LEVEL = 0.95
_MOST_FITS = 500
# Of the examples: where fitting ends, and what keeps a cell of a margin that is not 0 alive.
_EXACT = 1e-10


class Estimate(NamedTuple):
    """A number and the interval that holds it with the level asked for."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class CountTable:
    """Noisy counts by the levels of some columns.

    Parameters
    ----------
    levels : mapping of str to sequence
        By the column's name, its edges or categories.
    counts : ndarray of float64
        Of at least 0, in agreement with the question's other tables. One axis for each column, its
        last level that of rows without a value.
    noisy : ndarray of float64
        The same counts as they came: unbiased, perhaps below 0.
    deviation : float
        Standard deviation of the noise of one cell, of all sites together.
    excess : float
        Excess kurtosis of that noise.
    starts : sequence of int
        Of one column, the first levels of the blocks that its counts were fitted to, if any.
    """

    levels: Mapping[str, Levels]
    counts: Floats
    noisy: Floats
    deviation: float
    excess: float = 0.0
    starts: Sequence[int] = ()

    @property
    def names(self) -> Names:
        """Names of the columns."""
        return tuple(self.levels)

    def margin(self, *names: str) -> CountTable:
        """Return the table of fewer columns, in the order of this table's."""
        self._check(*names)
        others = tuple(axis for axis, name in enumerate(self.names) if name not in names)
        cells = math.prod(self.counts.shape[axis] for axis in others)
        levels = {name: one for name, one in self.levels.items() if name in names}
        both = self.counts.sum(axis=others), self.noisy.sum(axis=others)
        return CountTable(levels, *both, self.deviation * math.sqrt(cells), self.excess / cells)

    def at(self, **given: str | int) -> CountTable:
        """Return the table of the rows with these levels: categories, or numbers of intervals."""
        self._check(*given)
        index: list[Any] = []
        for name, levels in self.levels.items():
            if name not in given:
                index.append(slice(None))
            elif is_text(levels):
                index.append([str(one) for one in levels].index(str(given[name])))
            else:
                index.append(int(given[name]))
        kept = {name: one for name, one in self.levels.items() if name not in given}
        place = tuple(index)
        return replace(self, levels=kept, counts=self.counts[place], noisy=self.noisy[place])

    def rows(self, *, by: str | Names = (), level: float = _LEVEL) -> dict[str, list[Any]]:
        """Return a column for each name, and ``count``, ``share`` and their intervals.

        ``pandas.DataFrame(table.rows())`` shows them.

        A count is of at least 0, and its interval that of the noise. Shares are of the rows with
        values, within each group of the columns ``by``: then they are prevalences. Their intervals
        are for the population. Rows without a value are left out.
        """
        groups = (by,) if isinstance(by, str) else tuple(by)
        self._check(*groups)
        others = tuple(axis for axis, name in enumerate(self.names) if name not in groups)
        inner = (slice(-1),) * len(self.names)
        counts, noisy = self.counts[inner], self.noisy[inner]
        reach, far = self.reach(level), self.reach(level, counts.size) / self.deviation
        group = counts.sum(axis=others, keepdims=True)
        cells = math.prod(counts.shape[axis] for axis in others)
        with np.errstate(all="ignore"):  # of an empty group
            share = np.where(group > 0, counts / group, 1 / cells)
            noise = self.deviation**2 * ((1 - share) ** 2 + share**2 * (cells - 1)) / group**2
            ends = [_share_end(share, side, group, noise, far) for side in (-1, 1)]
        low, high = (np.where(group > 0, *pair) for pair in zip(ends, (0.0, 1.0), strict=True))
        most = float(self.counts.sum())
        found: dict[str, Any] = {
            "count": counts,
            "low": np.clip(noisy - reach, 0.0, most),
            "high": np.clip(noisy + reach, 0.0, most),
            "share": share,
            "share_low": low,
            "share_high": high,
        }
        labels = (
            [label_of(levels, place) for place in range(levels_of(levels))]
            for levels in self.levels.values()
        )
        named = dict(zip(self.names, map(list, zip(*product(*labels), strict=True)), strict=True))
        return {**named, **{name: one.ravel().tolist() for name, one in found.items()}}

    def mean(self, name: str, *, level: float = _LEVEL) -> Estimate:
        """Return the mean of a column over the rows with a value.

        Of intervals, each row counts as the middle of its own; this moves the mean by at most half
        a width. Categories must read as numbers.
        """
        table, values = self.margin(name), self._values(name)
        share, total = table._shares()
        mean = float(share @ values)
        variance = float(share @ (values - mean) ** 2) / total
        noise = (table.deviation / total) ** 2 * float(((values - mean) ** 2).sum())
        far = table.reach(level, len(values)) / table.deviation * math.sqrt(variance + noise)
        return Estimate(mean, mean - far, mean + far)

    def variance(self, name: str) -> float:
        """Return the variance of a column, of the values that :meth:`mean` takes."""
        share, _ = self.margin(name)._shares()
        values = self._values(name)
        return float(share @ (values - share @ values) ** 2)

    def quantile(self, name: str, share: float, *, level: float = _LEVEL) -> Estimate:
        """Return a quantile of a column of intervals, even within each interval.

        It is read from the running sums of ``noisy``, made to ascend: the mean of the largest one
        before and the smallest one after. The interval has the ends at which the running share
        leaves its own interval (Woodruff 1952).
        """
        check_in("[0, 1]", "share", share)
        table, edges = self.margin(name), self.levels[name]
        if is_text(edges):
            raise ValueError(f"quantiles need edges, and {quoted(name)} has categories")
        (_, total), noisy = table._shares(), table.noisy[:-1]
        sums = np.cumsum(noisy + (total - noisy.sum()) / len(noisy)) / total
        ascending = np.maximum.accumulate(sums) + np.minimum.accumulate(sums[::-1])[::-1]
        running = np.concatenate([[0.0], np.clip(ascending[:-1] / 2, 0.0, 1.0), [1.0]])
        below = int(np.searchsorted(running, share))
        # Cells whose noise is in the running sum, or of its complement.
        cells: float = min(below, len(noisy) + 1 - below)
        if starts := self.starts:
            size, blocks = starts[1], len(noisy) / starts[1]
            whole, inner = below / size, below % size
            cells = min(whole, blocks - whole) + min(inner, size - inner)
        noise = max(1, cells) * (table.deviation / total) ** 2
        spread = math.sqrt(share * (1 - share) / total + noise)
        far = table.reach(level, max(1, cells)) / table.deviation * spread
        places = np.asarray(edges, dtype=np.float64)
        found, high = np.interp([share, share + far], running, places)  # the last of equal sums
        low = np.interp(far - share, -running[::-1], places[::-1])  # the first of them
        return Estimate(float(found), float(low), float(high))

    def reach(self, level: float, cells: float = 1) -> float:
        """Return how far noise goes with this probability, in deviations of one cell's noise."""
        check_in("(0, 1)", "level", level)
        z = NormalDist().inv_cdf(0.5 + level / 2)
        more = max(0.0, z**3 - 3 * z) * self.excess / cells / 24
        return (z + more) * self.deviation

    def _shares(self) -> tuple[Floats, float]:
        counts = self.counts[:-1]
        total = float(counts.sum())
        if total <= 0:
            raise ValueError("no row has a value")
        return counts / total, total

    def _values(self, name: str) -> Floats:
        levels = self.levels[name]
        if not is_text(levels):
            edges = np.asarray(levels, dtype=np.float64)
            return (edges[1:] + edges[:-1]) / 2
        try:
            return np.array([float(one) for one in levels])
        except ValueError:
            raise ValueError(f"the categories of {quoted(name)} are no numbers") from None

    def _check(self, *names: str) -> None:
        if not set(names) <= set(self.names):
            raise ValueError(f"the table has the columns {quoted(self.names)}, not {quoted(names)}")


def _share_end(share: Floats, side: int, size: Floats, noise: Floats, far: float) -> Floats:
    """Return the population's share from which the one found is ``far`` deviations off.

    Of noise and of a sample of ``size`` (Wilson 1927), less half a row, since rows are whole.
    """
    found = np.clip(share + side / (2 * size), 0.0, 1.0)
    more = far**2 / size
    middle = found + more / 2
    root = np.sqrt(np.maximum(middle**2 - (1 + more) * (found**2 - far**2 * noise), 0.0))
    return np.asarray(np.clip((middle + side * root) / (1 + more), 0.0, 1.0))


def label_of(levels: Levels, place: int) -> str:
    """Return a level's name: a category, or an interval as ``[40, 60)``."""
    if is_text(levels):
        return str(levels[place])
    end = "]" if place == len(levels) - 2 else ")"
    return f"[{float(levels[place]):g}, {float(levels[place + 1]):g}{end}"


def fitted_to_blocks(
    counts: Floats, blocks: Floats, starts: Sequence[int], examples: int
) -> Floats:
    """Return counts that add up to those of blocks and to examples, by least squares.

    All have noise of one variance (Hay, Rastogi, Miklau and Suciu 2010); ``starts`` are the first
    counts of blocks.
    """
    sizes, sums = np.diff([*starts, len(counts)]), np.add.reduceat(counts, starts)
    variance = sizes / (sizes + 1)
    best = variance * (blocks + sums / sizes)
    best += (examples - best.sum()) * variance / variance.sum()
    return np.asarray(counts + np.repeat((best - sums) / sizes, sizes))


def agreeing(noisy: Mapping[Names, Floats], examples: int) -> dict[Names, Floats]:
    """Return tables of counts of at least 0 that agree in all margins, and add up to examples."""
    order = {names: tuple(np.argsort(names)) for names in noisy}
    # By sorted names, so that a margin's axes are in one order.
    tables = {tuple(sorted(one)): noisy[one].transpose(order[one]).copy() for one in noisy}
    margins = _margins(tables)
    for kept in margins:
        holders = [names for names in tables if set(kept) <= set(names)]
        found = {names: _margin(tables[names], names, kept) for names in holders}
        summed = {names: tables[names].size / found[names].size for names in holders}
        weight = sum(1 / one for one in summed.values())
        mean = sum(found[names] / summed[names] for names in holders) / weight
        mean = mean if kept else np.array(float(examples))
        for names in holders:
            moved = _spread(mean - found[names], names, kept)
            tables[names] = tables[names] + moved / summed[names]
    fitted: dict[Names, Floats] = {}
    for kept in margins:
        holder = next(names for names in tables if set(kept) <= set(names))
        rough = _margin(tables[holder], holder, kept).ravel() / examples
        start = np.maximum(project_to_simplex(rough[None])[0], _EXACT) * examples
        shape = tuple(
            size for name, size in zip(holder, tables[holder].shape, strict=True) if name in kept
        )
        fitted[kept] = _fit(start.reshape(shape), kept, fitted, examples)
    return {one: fitted[tuple(sorted(one))].transpose(np.argsort(order[one])) for one in noisy}


def _margins(tables: Mapping[Names, Floats]) -> list[Names]:
    """Return all tables and what any of them share, fewer columns first."""
    found = {frozenset[str](), *map(frozenset, tables)}
    while True:
        more = {one & other for one, other in combinations(found, 2)} - found
        if not more:
            return sorted((tuple(sorted(one)) for one in found), key=lambda one: (len(one), one))
        found |= more


def _margin(table: Floats, names: Names, kept: Names) -> Floats:
    return np.asarray(table.sum(axis=tuple(i for i, one in enumerate(names) if one not in kept)))


def _spread(margin: Floats, names: Names, kept: Names) -> Floats:
    return np.expand_dims(margin, tuple(i for i, one in enumerate(names) if one not in kept))


def _fit(table: Floats, names: Names, fitted: Mapping[Names, Floats], examples: int) -> Floats:
    """Return the table with these margins, by their ratios in turn (Deming and Stephan 1940)."""
    inner = [kept for kept in fitted if set(kept) < set(names)]
    for _ in range(_MOST_FITS):
        worst = 0.0
        for kept in inner:
            own = _margin(table, names, kept)
            worst = max(worst, float(np.abs(own - fitted[kept]).max()))
            table = table * _spread(fitted[kept] / own, names, kept)
        if worst <= _EXACT * examples:
            break
    return table
