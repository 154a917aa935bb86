"""Cases of added noise: on rows, a scalar, an update, on sums over examples, and on two together.

The worst pair is as far apart as inputs can be, and the score is, or grows with, the logarithm
of the ratio of probabilities. Of a sum over examples, one example is in one state or another,
among others that stay: they are there so that what an example adds is told from what all of them
add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.cases import CLASSES, Case, Contrast, Settings, claim, shipped
from flower_ldp.audit.response_cases import rows_at_once
from flower_ldp.mechanisms import (
    BoundedMean,
    CodebookEmbedding,
    ExampleCounts,
    ExampleMean,
    Gaussian,
    Laplace,
)
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, compose

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
# Entries of the update: noise is alike in all directions, so more would show nothing more.
_GAUSSIAN_DIMENSION = 8
_LABEL = "log-ratio / epsilon"
#: Examples of a sum, and the edges that they are counted between.
_EXAMPLES = 4
_EDGES = (0.0, 1.0, 10.0, 100.0)
#: The client's share of the epsilon of an example, of which the rest is the example's own.
_CLIENT_SHARE = 0.75


@shipped("laplace", lambda s: (Laplace(s.epsilon, CLASSES),))
def laplace(mechanism: Laplace) -> Case:
    """Return the case of Laplace noise on one row: two rows that are certain of their class."""
    ends = [np.eye(mechanism.classes)[[i]] for i in range(mechanism.classes)]
    centres = np.eye(mechanism.classes, dtype=np.int64)[:2] * mechanism.steps
    score = _ratio(centres[0], centres[1], 2 * mechanism.steps)
    return Case(
        f"laplace (epsilon {mechanism.epsilon:g}, k {mechanism.classes})",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (Contrast("two one-hot rows", (ends[0], ends[1]), score, _LABEL),),
        list(zip(ends, ends[1:] + ends[:1], strict=True))[:16],
        draws=200_000,
        draw_many=rows_at_once(mechanism),
    )


@shipped("bounded-mean", lambda s: (BoundedMean(s.epsilon, 0.0, 1.0),))
def bounded_mean(mechanism: BoundedMean) -> Case:
    """Return the case of a scalar metric: its two bounds."""
    score = _ratio(0, mechanism.steps, mechanism.steps)
    pair = (mechanism.lower, mechanism.upper)
    return Case(
        f"bounded-mean (epsilon {mechanism.epsilon:g})",
        claim(mechanism.events())[0],
        mechanism.randomize,
        (Contrast("the two bounds", pair, score, _LABEL),),
        (pair, pair[::-1]),
        draws=20_000,
    )


@shipped("gaussian", lambda s: (Gaussian(s.epsilon, s.delta),))
def gaussian(mechanism: Gaussian) -> Case:
    """Return the case of normal noise: two opposite updates of the clipping length.

    The score is the sum of the report's entries, which grows with the log-ratio but for the
    rounding of each entry to a quarter of the noise's deviation.
    """
    update = np.full(_GAUSSIAN_DIMENSION, mechanism.clip_norm)
    epsilon, delta = claim(mechanism.events())

    def score(reports: Sequence[Any]) -> Integers:
        return np.asarray(np.stack(reports).sum(axis=1, dtype=np.int64))

    return Case(
        f"gaussian (epsilon {epsilon:g}, delta {delta:g})",
        epsilon,
        mechanism.randomize,
        (Contrast("opposite updates", (update, -update), score, "sum of the report"),),
        ((update, -update), (-update, update)),
        draws=20_000,
        delta=delta,
    )


@shipped("example-mean", lambda s: (ExampleMean(s.epsilon, _EXAMPLES),))
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


@shipped("example-counts", lambda s: (ExampleCounts(s.epsilon, _EDGES),))
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


#: Says what events come to in all, for each unit.
Account = Callable[[Iterable[PrivacyEvent]], Mapping[Unit, PrivacySpent]]


def _of_account(settings: Settings) -> tuple[BoundedMean, CodebookEmbedding]:
    of_client = _CLIENT_SHARE * settings.epsilon
    metric = BoundedMean(of_client, 0.0, 1.0)
    return metric, CodebookEmbedding(settings.epsilon - of_client, CLASSES)


@shipped("account", _of_account)
def nested_units(
    metric: BoundedMean, embedding: CodebookEmbedding, account: Account = compose
) -> Case:
    """Return the case of a client whose data is one example, released in two ways.

    Parameters
    ----------
    metric : BoundedMean
        Releases a metric of the client's, about all of its data.
    embedding : CodebookEmbedding
        Releases the example's code.
    account : callable
        Whose claim for an example is tried.
    """
    events = (*metric.events(), *embedding.events())
    codes = np.eye(embedding.codes)
    ends = (metric.lower, metric.upper)
    of_metric = _ratio(0, metric.steps, metric.steps)

    def draw(example: int, rng: RandomSource) -> tuple[int, int]:
        of_client = metric.randomize(ends[example], rng)
        return int(of_client), int(embedding.randomize(codes[example], rng))

    def ratio(reports: Sequence[Any]) -> Floats:
        told, code = np.asarray(reports, dtype=np.float64).T
        of_code = (code == 0).astype(np.float64) - (code == 1)
        return np.asarray(metric.epsilon * of_metric(told) + embedding.epsilon * of_code)

    return Case(
        f"account (client {metric.epsilon:g}, example {embedding.epsilon:g})",
        account(events)[Unit.EXAMPLE].epsilon,
        draw,
        (Contrast("both releases, one example", (0, 1), ratio, "log-ratio"),),
        ((0, 1), (1, 0)),
        draws=10_000,
    )
