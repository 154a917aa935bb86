"""Cases of SignDS: its selection, and a whole round of selection and magnitude bit.

A report of SignDS is dimensions **and a sign**, and a sign that follows the update tells about it
whatever the dimensions are. So each score has the sign in it: as little as orders reports that are
else alike, and lets an event be about one sign. A report of another length than h is an
outcome by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.cases import Case, Contrast, claim
from flower_ldp.mechanisms import MagRR, RandomSource, SignDS
from flower_ldp.mechanisms.signds import Selection, SelectionPlan, top_by_sort

#: Pairs that the check for repeated noise chooses from.
_PAIRS = 16
# Room for two top sets and for the few entries that are not zero.
_SMALLEST_DIMENSION = 8
# What the sign adds to a score, or takes from it: less than any two scores differ by.
_SIGN = 1e-3
# Above every score of a report as long as it should be.
_OTHER_LENGTH = 1e6

Update = NDArray[np.float32]
Floats = NDArray[np.float64]
#: Selections to 1 where the first of two updates favours them, -1 where the second does, else 0.
Ratio = Callable[[Sequence[Selection]], NDArray[np.int64]]


def signds(mechanism: SignDS, dimension: int) -> Case:
    """Return the case of SignDS for updates of ``dimension`` entries.

    Three contrasts. *Disjoint top sets*: an update without equal entries and its negative; the
    score is the logarithm of the exact ratio of probabilities, in units of epsilon, which is
    -1, 0 or 1. *Exact zeros*: an update of zeros but for a few positive and a few negative
    entries, fewer than K of each, so that the edge of the top set runs through the zeros;
    against an update without equals that holds the same few dimensions in its middle. The
    score is how many of those at the far end from the reported sign are reported. *Zeros only*,
    against the update without equals: the exact ratio again.
    """
    plan = mechanism.plan(_checked(dimension))
    slope = np.linspace(1.0, -1.0, dimension, dtype=np.float32)
    few = max(1, min(plan.dim_out, plan.top_size - 1))
    start = (dimension - 2 * few) // 2
    negative, positive = (np.arange(few) + start + i * few for i in range(2))
    zeros = np.zeros(dimension, dtype=np.float32)
    zeros[negative], zeros[positive] = -1.0, 1.0
    far_end = {1: _indicator(dimension, negative), -1: _indicator(dimension, positive)}

    def far(reports: Sequence[Selection]) -> NDArray[np.int64]:
        return _hits(reports, far_end)

    def contrast(check: str, pair: tuple[Update, Update], score: Ratio, label: str) -> Contrast:
        return Contrast(check, pair, _whole_reports(score, plan), f"{label}, sign / 1000 added")

    ratio, opposite, none = "log-ratio / epsilon", -slope, np.zeros_like(slope)
    return Case(
        f"signds (epsilon {mechanism.epsilon:g}, d {dimension}, K {plan.top_size}, "
        f"h {plan.dim_out}, v_th {plan.threshold})",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (
            contrast("disjoint top sets", (slope, opposite), _ratio(slope, opposite, plan), ratio),
            contrast("exact zeros", (zeros, slope), far, "reported at the far end"),
            contrast("zeros only", (none, slope), _ratio(none, slope, plan), ratio),
        ),
        _rolled(slope, opposite),
        draws=20_000,
        key=selection_key,
    )


def signds_magrr(selection: SignDS, magnitude: MagRR, dimension: int) -> Case:
    """Return the case of a round that asks for both: one update, one report, the sum claimed.

    The contrast is an update without equal entries against its negative, twice as long, with a
    threshold between their magnitudes: top sets are disjoint, and the true bits differ. The
    score is the logarithm of the exact ratio of probabilities.
    """
    plan = selection.plan(_checked(dimension))
    slope = np.linspace(1.0, -1.0, dimension, dtype=np.float32)
    threshold = 1.5 * float(slope[: plan.top_size].mean(dtype=np.float64))
    favoured = _whole_reports(_ratio(slope, -slope, plan), plan, selection.epsilon)

    def draw(update: Update, rng: RandomSource) -> tuple[Selection, int]:
        report, top = selection.randomize_with_top(update, rng)
        below = None if top is None else top.mean() < threshold
        return report, magnitude.randomize(below, rng)

    def ratio(reports: Sequence[tuple[Selection, int]]) -> NDArray[np.float64]:
        bits = np.array([bit for _, bit in reports])
        of_bit = magnitude.epsilon * (2 * bits - 1)
        return np.asarray(favoured([one for one, _ in reports]) + of_bit)

    events = (*selection.events(), *magnitude.events())
    return Case(
        f"signds-magrr (epsilon {selection.epsilon:g} + {magnitude.epsilon:g}, d {dimension}, "
        f"K {plan.top_size}, h {plan.dim_out}, v_th {plan.threshold})",
        claim(events)[0],
        draw,
        (
            Contrast(
                "disjoint top sets, bits differ",
                (slope, -2 * slope),
                ratio,
                "log-ratio, sign / 1000 added",
            ),
        ),
        _rolled(slope, -2 * slope),
        draws=20_000,
        key=lambda report: (selection_key(report[0]), report[1]),
    )


def _checked(dimension: int) -> int:
    if dimension < _SMALLEST_DIMENSION:
        raise ValueError(f"dimension must be at least {_SMALLEST_DIMENSION}, got {dimension}")
    return dimension


def _whole_reports(
    score: Ratio, plan: SelectionPlan, unit: float = 1.0
) -> Callable[[Sequence[Selection]], Floats]:
    """Return scores in ``unit``, the sign in them, and those of another length far above."""

    def scores(reports: Sequence[Selection]) -> Floats:
        lengths = np.array([len(report.indices) for report in reports])
        found: Floats = _OTHER_LENGTH + lengths.astype(np.float64)
        whole = np.flatnonzero(lengths == plan.dim_out)
        if len(whole):
            good = [reports[place] for place in whole.tolist()]
            found[whole] = unit * score(good)
        return found + _SIGN * np.array([report.sign for report in reports])

    return scores


def _ratio(first: Update, second: Update, plan: SelectionPlan) -> Ratio:
    """Return the exact log-ratio under two updates, in units of epsilon."""
    inside = [
        {sign: _members(update, plan.top_size, sign) for sign in (-1, 1)}
        for update in (first, second)
    ]

    def ratio(reports: Sequence[Selection]) -> NDArray[np.int64]:
        favoured = [_hits(reports, masks) >= plan.threshold for masks in inside]
        return favoured[0].astype(np.int64) - favoured[1]

    return ratio


def _rolled(one: Update, other: Update) -> list[tuple[Update, Update]]:
    shifts = [i * len(one) // _PAIRS for i in range(_PAIRS)]
    return [(np.roll(one, shift), np.roll(other, shift)) for shift in shifts]


def selection_key(report: Selection) -> Hashable:
    """Return what is equal for equal reports."""
    return report.sign, report.indices.tobytes()


def _indicator(dimension: int, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
    mask = np.zeros(dimension, dtype=np.bool_)
    mask[indices] = True
    return mask


def _members(update: NDArray[np.float32], size: int, sign: int) -> NDArray[np.bool_]:
    """Return who is in the top set by its definition, which shares nothing with the sampler."""
    return _indicator(len(update), top_by_sort(update, size, sign))


def _hits(
    reports: Sequence[Selection], masks: Mapping[int, NDArray[np.bool_]]
) -> NDArray[np.int64]:
    """Return how many indices of each report lie in the mask of its sign."""
    indices = np.stack([report.indices for report in reports])
    positive = np.array([report.sign for report in reports])[:, None] > 0
    hits: NDArray[np.int64] = np.where(positive, masks[1][indices], masks[-1][indices]).sum(axis=1)
    return hits
