r"""Whether consecutive releases repeat their noise.

Epsilons add up over releases only where each draws noise of its own. A sampler whose
generator starts from a constant, from the clock or from a copied state passes for private,
one report at a time, and two reports give its data away.

**The check.** Three releases in a row, each from a fresh source as the gate makes them: on
(x, x', x) or on (x, x', x'). Only the third input differs, so with fresh noise the
probability of any event about the three reports changes by a factor of at most e^epsilon
(plus delta), the claim for **one** release: given the first two, which have the same law, it
is the definition of privacy for the third. The event is "the first two differ, and the third
equals the first" (or the second). With repeated noise the third report always equals the one
on the same input, so one of the two events is impossible under each of the inputs, and any
epsilon is refuted, however seldom reports on x and x' differ.

The pair is drawn anew, by a coin of the auditor's, from a list for each three releases.
A constant seed may happen to give the same report on both inputs of one pair; it will not
on all. The coin is public and independent of the data, so the factor stays e^epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from flower_ldp.audit.auditing import FEWEST_DRAWS, AuditResult, Draw, Progress, Sources, audit
from flower_ldp.mechanisms.random import RandomSource

#: Share of noise that gives different reports on a pair, unless a mechanism knows better.
DIFFERING = 0.2
# Triples whose reports differ, were noise repeated: fewer leave their share too uncertain.
_FEWEST_DIFFERING = 200.0


def report_key(report: Any) -> Hashable:
    """Return something that is equal for equal reports: numbers as they are, arrays as bytes."""
    if isinstance(report, np.ndarray):
        return report.shape, report.tobytes()
    try:
        hash(report)
    except TypeError as error:
        name = type(report).__name__
        raise TypeError(f"a key is needed to compare reports of type {name}") from error
    return report  # type: ignore[no-any-return]


def reuse_draws(
    claimed_epsilon: float, draws: int, *, confidence: float, differing: float = DIFFERING
) -> int:
    """Return how many triples are enough to refute repeated noise, at most ``draws``.

    Planned for noise of which a share of ``differing`` gives different reports on a pair.
    """
    zero = -math.log((1.0 - confidence) / 2.0)
    # Half of the draws choose the event; a quarter above the claim is the room.
    wanted = 2.0 * zero * math.exp(min(claimed_epsilon, 50.0) + 0.25) / differing
    return max(FEWEST_DRAWS, min(draws, math.ceil(max(wanted, _FEWEST_DIFFERING / differing))))


def audit_reuse(
    draw: Draw,
    pairs: Sequence[tuple[Any, Any]],
    claimed_epsilon: float,
    draws: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.999,
    key: Callable[[Any], Hashable] = report_key,
    sources: Sources = RandomSource.from_os,
    progress: Progress | None = None,
) -> AuditResult:
    """Test that consecutive releases do not repeat their noise.

    Parameters
    ----------
    draw : callable
        The sampler: ``draw(value, rng)`` returns a report of ``value``.
    pairs : sequence of tuples of two values
        Neighbouring inputs; several, so that no constant seed hides behind one of them.
    claimed_epsilon, delta : float
        Of one release.
    draws : int
        Triples of releases under each input.
    confidence : float
        Of the bound.
    key : callable
        Turns a report into something that is equal for equal reports.
    sources : callable
        Makes the source of randomness, once a release and once for the auditor's coins.
    progress : callable, optional
        Is told numbers of triples as they are made.
    """
    if not pairs:
        raise ValueError("pairs must hold at least one pair")

    def release(value: Any) -> Hashable:
        return key(draw(value, sources()))

    def triple(last: int, coins: RandomSource) -> int:
        pair = pairs[coins.below(len(pairs))]
        first, second, third = release(pair[0]), release(pair[1]), release(pair[last])
        if first == second:
            return 0
        return int(third == first) - int(third == second)

    return audit(
        triple,
        (0, 1),
        np.asarray,
        claimed_epsilon,
        draws,
        delta=delta,
        confidence=confidence,
        sources=sources,
        check="three releases, fresh source each",
        label="third report equals first (1) or second (-1), which differ",
        progress=progress,
    )
