"""What an audit tries: a sampler, its worst inputs and what tells their reports apart.

A case is data: a sampler, its claim, and contrasts, each a pair of inputs with a statistic.
A function that returns that of a shipped mechanism is named by :func:`shipped`. To audit another
sampler of the same mechanism, ``dataclasses.replace`` the ``draw`` (and ``draw_many``) of a case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from flower_ldp.audit.auditing import AuditResult, Draw, Progress, Sources, Statistic, audit
from flower_ldp.audit.reuse import DIFFERING, audit_reuse, report_key, reuse_draws
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent

#: Categories, classes or codes of a shipped mechanism.
CLASSES = 10


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
    triples = reuse_draws(case.epsilon, asked, confidence=each, differing=case.differing)
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


def claim(events: Iterable[PrivacyEvent]) -> tuple[float, float]:
    """Return the epsilon and delta that one release claims: the sums over its events."""
    events = list(events)
    return (
        math.fsum(event.epsilon * event.count for event in events),
        math.fsum(event.delta * event.count for event in events),
    )


@dataclass(frozen=True)
class Settings:
    """Parameters that the command line offers; a case takes those that it knows.

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
    delta : float
        Gaussian: claim per release. The others claim none.
    """

    epsilon: float = 1.0
    dimension: int = 1_000
    k: float = 0.2
    dim_out: int = 0
    delta: float = 0.01


#: Every mechanism that the command line can audit, by name.
BUILDERS: dict[str, Callable[[Settings], Case]] = {}
_Builder = TypeVar("_Builder", bound=Callable[..., Case])


def shipped(
    name: str, arguments: Callable[[Settings], tuple[Any, ...]]
) -> Callable[[_Builder], _Builder]:
    """Name the function that it decorates in :data:`BUILDERS`.

    Parameters
    ----------
    name : str
        By which the command line offers the case.
    arguments : callable
        Makes what the function takes.
    """

    def register(build: _Builder) -> _Builder:
        BUILDERS[name] = lambda settings: build(*arguments(settings))
        return build

    return register
