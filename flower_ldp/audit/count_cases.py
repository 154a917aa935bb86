"""Cases of sums over examples: one example in one state or another, among others that stay.

The noise is on the sum of all, so the score is the log-ratio of the two sums that it is added to.
The others are there so that what an example adds is told from what all of them add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.cases import Case, Contrast, claim
from flower_ldp.mechanisms import ExampleCounts, ExampleMean

Floats = NDArray[np.float64]
_LABEL = "log-ratio / epsilon"


def example_mean(mechanism: ExampleMean) -> Case:
    """Return the case of a mean over examples: one at either bound, or with no number."""
    others = [mechanism.upper, *[mechanism.lower] * (mechanism.examples - 2)]
    low, high, none = ([value, *others] for value in (mechanism.lower, mechanism.upper, None))
    score = _ratio(mechanism.total(low), mechanism.total(high), mechanism.steps)
    return Case(
        f"example-mean (epsilon {mechanism.epsilon:g}, {mechanism.examples} examples)",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (
            Contrast("one example at the two bounds", (low, high), score, _LABEL),
            Contrast("one example without a number", (none, high), score, _LABEL),
        ),
        ((low, high), (high, low)),
        draws=20_000,
    )


def example_counts(mechanism: ExampleCounts) -> Case:
    """Return the case of counts of examples: one in the first interval or the last, or nowhere."""
    first, last = mechanism.edges[0], mechanism.edges[-1]
    others = [[first], [first, last]]
    below, above, nowhere = ([[value], *others] for value in (first, last, None))

    def contrast(check: str, one: Sequence[Any], other: Sequence[Any]) -> Contrast:
        totals = mechanism.total(one), mechanism.total(other)
        return Contrast(check, (one, other), _ratio(*totals, 2 * mechanism.steps), _LABEL)

    return Case(
        f"example-counts (epsilon {mechanism.epsilon:g}, {len(mechanism.edges) - 1} intervals)",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (
            contrast("one example in two intervals", below, above),
            contrast("one example in no interval", below, nowhere),
        ),
        ((below, above), (above, below)),
        draws=20_000,
    )


def _ratio(one: Any, other: Any, width: int) -> Callable[[Sequence[Any]], Floats]:
    """Return the log-ratio of reports over two sums, as a part of epsilon."""

    def scores(reports: Sequence[Any]) -> Floats:
        found = np.asarray(reports).reshape(len(reports), -1)
        near, far = (np.abs(found - total).sum(axis=1) for total in (one, other))
        return np.asarray((far - near) / width)

    return scores
