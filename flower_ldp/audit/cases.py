"""What an audit tries: a sampler, its claim, and the worst inputs with what tells reports apart.

A case is data. That of an update mechanism is made of what the mechanism itself says of its worst
inputs (:meth:`~flower_ldp.mechanisms.base.UpdateMechanism.audit_pairs`), by :func:`of_updates`. To
audit another sampler of the same mechanism, ``dataclasses.replace`` the ``draw`` (and
``draw_many``) of a case.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from flower_ldp.audit.auditing import (
    DIFFERING,
    AuditResult,
    Draw,
    Progress,
    Sources,
    audit,
    audit_reuse,
    report_key,
    reuse_draws,
)
from flower_ldp.mechanisms.base import Contrast, UpdateMechanism
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, compose

# Pairs of updates that the check for repeated noise chooses from.
_PAIRS = 16


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
    differing : float
        At least this share of the noise gives different reports on a pair of ``reuse_pairs``;
        the check for repeated noise draws accordingly many.
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
    differing: float = DIFFERING

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
    triples = reuse_draws(case.epsilon, asked, confidence=each, differing=case.differing)
    claimed: dict[str, Any] = {"delta": case.delta, "confidence": each, "sources": sources}

    def counter(check: str, count: int) -> Progress | None:
        return progress(check, 2 * count) if progress else None

    results = [
        audit(
            case.draw_many or case.draw,
            contrast.pair,
            contrast.statistic,
            case.epsilon,
            asked,
            batched=case.draw_many is not None,
            check=contrast.check,
            label=contrast.label,
            progress=counter(contrast.check, asked),
            **claimed,
        )
        for contrast in case.contrasts
    ]
    repeated = audit_reuse(
        case.draw,
        case.reuse_pairs,
        case.epsilon,
        triples,
        key=case.key,
        progress=counter("repeated noise", triples),
        **claimed,
    )
    return (*results, repeated)


def claim(events: Iterable[PrivacyEvent]) -> PrivacySpent:
    """Return what one release claims: the sum over its events, which are about one unit."""
    return next(iter(compose(events).values()))


def of_updates(mechanism: UpdateMechanism, dimension: int, draws: int = 20_000) -> Case:
    """Return the case of any mechanism for updates, about updates of ``dimension`` entries.

    Parameters
    ----------
    mechanism : UpdateMechanism
        With all parameters that a proposal states (``sized``).
    dimension : int
        d, entries of an update.
    draws : int
        Under each input.
    """
    contrasts = mechanism.audit_pairs(dimension)
    claimed = claim(mechanism.events())
    first, second = contrasts[0].pair
    # Rotated, so that no constant seed hides behind one pair.
    shifts = [i * dimension // _PAIRS for i in range(_PAIRS)]

    def draw(update: Any, rng: RandomSource) -> Any:
        return mechanism.randomize(update, rng, dimension)

    return Case(
        titled(mechanism.name, mechanism, d=dimension),
        claimed.epsilon,
        draw,
        contrasts,
        [(np.roll(first, shift), np.roll(second, shift)) for shift in shifts],
        draws,
        delta=claimed.delta,
        key=lambda report: mechanism.encode(report, dimension),
    )


def titled(name: str, mechanism: Any, **more: int) -> str:
    """Return a name with the claim, and the other numbers that were chosen for a mechanism."""
    given = [(one.name, getattr(mechanism, one.name), one.default) for one in fields(mechanism)]
    chosen = {key: value for key, value, default in given if value is not default}
    numbers = {"epsilon": claim(mechanism.events()).epsilon, **chosen, **more}
    told = [f"{key} {one:g}" for key, one in numbers.items() if isinstance(one, (int, float))]
    return f"{name} ({', '.join(told)})"
