"""Cases of SignDS: its selection, on long vectors too, and a whole round with the magnitude bit.

A report of SignDS is dimensions **and a sign**, and a sign that follows the update tells about it
whatever the dimensions are. So each score has the sign in it: as little as orders reports that are
else alike, and lets an event be about one sign. A report of another length than h is an
outcome by itself.

Long vectors have their top set found by a sample of their entries, at positions that are
public, which small inputs never bring about. The inputs of that case put masses of equal entries
there. What tells reports apart is taken from the definition of the top set, a stable sort, and
shares nothing with the code that is audited.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.cases import Case, Contrast, Settings, claim, shipped
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

#: The magnitude bit's share of a round's epsilon; a power of two, so that the parts add up.
MAGNITUDE_SHARE = 0.25


@shipped("magrr", lambda s: (MagRR(s.epsilon),))
def magrr(mechanism: MagRR) -> Case:
    """Return the case of the magnitude bit: its two answers."""
    return Case(
        f"magrr (epsilon {mechanism.epsilon:g})",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (Contrast("one release", (False, True), np.asarray, "report"),),
        ((False, True), (True, False)),
        draws=200_000,
    )


def _signds_of(settings: Settings) -> SignDS:
    return SignDS(settings.epsilon, settings.k, dim_out=settings.dim_out)


@shipped("signds", lambda s: (_signds_of(s), s.dimension))
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


def round_of(settings: Settings) -> tuple[SignDS, MagRR]:
    """Return the two parts of a round, whose sum is the claim."""
    bit = MAGNITUDE_SHARE * settings.epsilon
    return SignDS(settings.epsilon - bit, settings.k, dim_out=settings.dim_out), MagRR(bit)


@shipped("signds-magrr", lambda s: (*round_of(s), s.dimension))
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


#: The shortest vector whose top set is not found on a copy.
LONG = (1 << 17) + 1
# Which entries are looked at first: one of each of so many equal ranges, shifted.
_PROBES = 1 << 13
_SHIFT = 40503


def probed_positions(dimension: int) -> NDArray[np.int64]:
    """Return where the search for the top set looks first; public, and so the server's to use."""
    ordinal = np.arange(_PROBES, dtype=np.int64)
    shift = ((ordinal * _SHIFT & 0xFFFF) * (dimension // _PROBES)) >> 16
    return ordinal * dimension // _PROBES + shift


def mass_at_probes(dimension: int, zeros: int) -> Update:
    """Return an update with that many zeros, first where probes look, and all else negative.

    The negative entries are -1, -2, ... in the order of their positions: without equals.
    """
    if not _PROBES <= zeros < dimension:
        raise ValueError(f"zeros must be in [{_PROBES}, {dimension}), got {zeros}")
    update = -np.arange(1, dimension + 1, dtype=np.float32)
    update[probed_positions(dimension)] = 0.0
    more = zeros - np.count_nonzero(update == 0.0)
    update[np.flatnonzero(update)[:more]] = 0.0
    return update


def ranks(update: Update, sign: int) -> NDArray[np.int64]:
    """Return each entry's place in the order of ``sign * update``, the first position among equals.

    The top set of K entries is, by definition, those with a place below K.
    """
    places = np.empty(len(update), dtype=np.int64)
    places[np.argsort(-sign * update, kind="stable")] = np.arange(len(update))
    return places


@shipped("signds-long", lambda s: (_signds_of(s),))
def signds_long(mechanism: SignDS, dimension: int = LONG) -> Case:
    """Return the case of SignDS on vectors with as many zeros as the top set has members, or so.

    Each is tried against its negative. The score of a report is the place, in the first vector's
    own order, of its v_th-th best dimension: below K for exactly the favoured reports of a
    sampler as claimed, and much lower, or higher, where the set is smaller or larger.
    """
    plan = mechanism.plan(dimension)
    masses = {
        "one zero fewer than the top set": plan.top_size - 1,
        "as many zeros": plan.top_size,
        "one zero more": plan.top_size + 1,
    }
    contrasts = tuple(
        _contrast(check, mass_at_probes(dimension, zeros), plan.threshold)
        for check, zeros in masses.items()
    )
    pair = contrasts[0].pair
    return Case(
        f"signds-long (epsilon {mechanism.epsilon:g}, d {dimension}, K {plan.top_size}, "
        f"h {plan.dim_out}, v_th {plan.threshold})",
        claim(mechanism.events())[0],
        mechanism.randomize,
        contrasts,
        (pair, pair[::-1]),
        draws=1_000,
        key=selection_key,
    )


def _contrast(check: str, update: Update, threshold: int) -> Contrast:
    places = {sign: ranks(update, sign) for sign in (-1, 1)}

    def place(reports: Sequence[Selection]) -> NDArray[np.int64]:
        found = np.stack([np.sort(places[report.sign][report.indices]) for report in reports])
        return np.asarray(found[:, max(threshold, 1) - 1])

    return Contrast(check, (update, -update), place, "place of the v_th-th best")
