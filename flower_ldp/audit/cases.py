"""What there is to audit: for each shipped mechanism its worst inputs and what tells them apart.

A case is data: a sampler, its claim, and contrasts, each a pair of inputs with a statistic.
To add a mechanism, write one function that returns its :class:`Case` and name it in
:data:`BUILDERS`. To audit another sampler of the same mechanism, ``dataclasses.replace`` the
``draw`` (and ``draw_many``) of a case.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.auditing import AuditResult, Draw, Progress, Sources, Statistic, audit
from flower_ldp.audit.reuse import audit_reuse, report_key, reuse_draws
from flower_ldp.mechanisms import BinaryResponse, MagRR, RandomSource, SignDS
from flower_ldp.mechanisms.selection import Selection
from flower_ldp.mechanisms.topk import top_set
from flower_ldp.privacy import PrivacyEvent

#: Pairs that the check for repeated noise chooses from.
_PAIRS = 16
# Room for two top sets and for the few entries that are not zero.
_SMALLEST_DIMENSION = 8


@dataclass(frozen=True)
class Contrast:
    """Two inputs, and the statistic that tells their reports apart.

    Parameters
    ----------
    check : str
        What is tried, in a few words.
    pair : tuple of two values
        Neighbouring inputs.
    statistic : callable
        Reports to scores.
    label : str
        What a score is.
    """

    check: str
    pair: tuple[Any, Any]
    statistic: Statistic
    label: str


@dataclass(frozen=True)
class Case:
    """A sampler, its claim, and the ways in which the claim is tried.

    Parameters
    ----------
    mechanism : str
        Name and parameters, for the table.
    epsilon, delta : float
        The claim, per release.
    draw : callable
        One report: ``draw(value, rng)``.
    contrasts : tuple of Contrast
        At least one.
    reuse_pairs : sequence of pairs
        Inputs for the check on repeated noise.
    draws : int
        Under each input, unless the caller says otherwise: some seconds' worth.
    draw_many : callable, optional
        ``draw_many(value, count, rng)`` returns as many reports, where the mechanism draws them
        in one call. The contrasts then use it, and repeated noise is sought through ``draw``.
    key : callable
        Makes reports comparable.
    """

    mechanism: str
    epsilon: float
    draw: Draw
    contrasts: tuple[Contrast, ...]
    reuse_pairs: Sequence[tuple[Any, Any]]
    draws: int
    delta: float = 0.0
    draw_many: Draw | None = None
    key: Callable[[Any], Hashable] = report_key

    @property
    def checks(self) -> int:
        """Number of bounds that an audit of this case computes."""
        return len(self.contrasts) + 1


def audit_case(
    case: Case,
    draws: int | None = None,
    *,
    confidence: float = 0.999,
    sources: Sources = RandomSource.from_os,
    progress: Callable[[str, int], Progress] | None = None,
) -> tuple[AuditResult, ...]:
    """Try the claim of one case in all its ways.

    Parameters
    ----------
    case : Case
        What is audited.
    draws : int, optional
        Under each input of each contrast; the case's own number if left out. The check for
        repeated noise takes as many as it needs, and no more than this.
    confidence : float
        With which all bounds of the case hold together.
    sources : callable
        Makes sources of randomness.
    progress : callable, optional
        Called with each check's name and total of draws; returns what counts them.

    Returns
    -------
    tuple of AuditResult
        One for each contrast, then the one for repeated noise.
    """
    each = 1.0 - (1.0 - confidence) / case.checks
    asked = case.draws if draws is None else draws
    claim: dict[str, Any] = {"delta": case.delta, "confidence": each, "sources": sources}
    results = []
    for contrast in case.contrasts:
        counter = progress(contrast.check, 2 * asked) if progress else None
        results.append(
            audit(
                case.draw_many or case.draw,
                contrast.pair,
                contrast.statistic,
                case.epsilon,
                asked,
                batched=case.draw_many is not None,
                check=contrast.check,
                label=contrast.label,
                progress=counter,
                **claim,
            )
        )
    triples = reuse_draws(case.epsilon, asked, confidence=each)
    counter = progress("repeated noise", 2 * triples) if progress else None
    results.append(
        audit_reuse(
            case.draw,
            case.reuse_pairs,
            case.epsilon,
            triples,
            key=case.key,
            progress=counter,
            **claim,
        )
    )
    return tuple(results)


@dataclass(frozen=True)
class Settings:
    """Parameters that the command line offers; a builder takes those that it knows.

    Parameters
    ----------
    epsilon : float
        Claim per release.
    dimension : int
        d, entries of an update.
    k : float
        SignDS: fraction of dimensions that count as largest.
    dim_out : int
        SignDS: reported dimensions; 0 to choose.
    """

    epsilon: float = 1.0
    dimension: int = 1_000
    k: float = 0.2
    dim_out: int = 0


def binary_response(mechanism: BinaryResponse) -> Case:
    """Return the case of randomized response: the two bits, and the report itself."""

    def draw_many(value: int, count: int, rng: RandomSource) -> NDArray[np.uint8]:
        return mechanism.randomize_array(np.full(count, value), rng)

    return Case(
        f"binary-response (epsilon {mechanism.epsilon:g})",
        _epsilon(mechanism.events()),
        mechanism.randomize,
        (Contrast("one release", (0, 1), np.asarray, "report"),),
        ((0, 1), (1, 0)),
        draws=1_000_000,
        draw_many=draw_many,
    )


def magrr(mechanism: MagRR) -> Case:
    """Return the case of the magnitude bit: its two answers."""
    return Case(
        f"magrr (epsilon {mechanism.epsilon:g})",
        _epsilon(mechanism.events()),
        mechanism.randomize,
        (Contrast("one release", (False, True), np.asarray, "report"),),
        ((False, True), (True, False)),
        draws=200_000,
    )


def signds(mechanism: SignDS, dimension: int) -> Case:
    """Return the case of SignDS for updates of ``dimension`` entries.

    Two contrasts. *Disjoint top sets*: an update without equal entries and its negative; the
    score is the logarithm of the exact ratio of probabilities, in units of epsilon, which is
    -1, 0 or 1. *Exact zeros*: an update of zeros but for a few positive and a few negative
    entries, fewer than K of each, so that the edge of the top set runs through the zeros;
    against an update without equals that holds the same few dimensions in its middle. The
    score is how many of those at the far end from the reported sign are reported.
    """
    if dimension < _SMALLEST_DIMENSION:
        raise ValueError(f"dimension must be at least {_SMALLEST_DIMENSION}, got {dimension}")
    plan = mechanism.plan(dimension)
    slope = np.linspace(1.0, -1.0, dimension, dtype=np.float32)
    few = max(1, min(plan.dim_out, plan.top_size - 1))
    start = (dimension - 2 * few) // 2
    negative, positive = (np.arange(few) + start + i * few for i in range(2))
    zeros = np.zeros(dimension, dtype=np.float32)
    zeros[negative], zeros[positive] = -1.0, 1.0
    far_end = {1: _indicator(dimension, negative), -1: _indicator(dimension, positive)}
    inside = [
        {sign: _members(update, plan.top_size, sign) for sign in (-1, 1)}
        for update in (slope, -slope)
    ]

    def ratio(reports: Sequence[Selection]) -> NDArray[np.int64]:
        favoured = [_hits(reports, masks) >= plan.threshold for masks in inside]
        return favoured[0].astype(np.int64) - favoured[1]

    def far(reports: Sequence[Selection]) -> NDArray[np.int64]:
        return _hits(reports, far_end)

    shifts = [i * dimension // _PAIRS for i in range(_PAIRS)]
    return Case(
        f"signds (epsilon {mechanism.epsilon:g}, d {dimension}, K {plan.top_size}, "
        f"h {plan.dim_out}, v_th {plan.threshold})",
        _epsilon(mechanism.events()),
        mechanism.randomize,
        (
            Contrast("disjoint top sets", (slope, -slope), ratio, "log-ratio / epsilon"),
            Contrast("exact zeros", (zeros, slope), far, "reported at the far end"),
        ),
        [(np.roll(slope, shift), np.roll(-slope, shift)) for shift in shifts],
        draws=20_000,
        key=_selection_key,
    )


#: Every mechanism that the command line can audit, by name.
BUILDERS: Mapping[str, Callable[[Settings], Case]] = MappingProxyType(
    {
        "binary-response": lambda s: binary_response(BinaryResponse(s.epsilon)),
        "magrr": lambda s: magrr(MagRR(s.epsilon)),
        "signds": lambda s: signds(SignDS(s.epsilon, s.k, dim_out=s.dim_out), s.dimension),
    }
)


def _epsilon(events: Sequence[PrivacyEvent]) -> float:
    (event,) = events
    return event.epsilon


def _selection_key(report: Selection) -> Hashable:
    return report.sign, report.indices.tobytes()


def _indicator(dimension: int, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
    mask = np.zeros(dimension, dtype=np.bool_)
    mask[indices] = True
    return mask


def _members(update: NDArray[np.float32], size: int, sign: int) -> NDArray[np.bool_]:
    return top_set(update, size, sign).contains(np.arange(len(update)))


def _hits(
    reports: Sequence[Selection], masks: Mapping[int, NDArray[np.bool_]]
) -> NDArray[np.int64]:
    """Return how many indices of each report lie in the mask of its sign."""
    indices = np.stack([report.indices for report in reports])
    positive = np.array([report.sign for report in reports])[:, None] > 0
    hits: NDArray[np.int64] = np.where(positive, masks[1][indices], masks[-1][indices]).sum(axis=1)
    return hits
