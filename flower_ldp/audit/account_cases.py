"""The case of an account: what several releases about nested units tell together.

Each mechanism may keep its own claim while the sum that is printed for a unit leaves one out: a
release about all of a client's data is one about each example in it. So the claim that is
tried here is the **account's**, for the finest unit, and the report is all that was released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.cases import Case, Contrast
from flower_ldp.mechanisms import BoundedMean, CodebookEmbedding
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, compose

Floats = NDArray[np.float64]
#: Says what events come to in all, for each unit.
Account = Callable[[Iterable[PrivacyEvent]], Mapping[Unit, PrivacySpent]]


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

    def draw(example: int, rng: RandomSource) -> tuple[int, int]:
        of_client = metric.randomize(ends[example], rng)
        return int(of_client), int(embedding.randomize(codes[example], rng))

    def ratio(reports: Sequence[Any]) -> Floats:
        told, code = np.asarray(reports, dtype=np.float64).T
        of_metric = (np.abs(told - metric.steps) - np.abs(told)) / metric.steps
        of_code = (code == 0).astype(np.float64) - (code == 1)
        return np.asarray(metric.epsilon * of_metric + embedding.epsilon * of_code)

    return Case(
        f"account (client {metric.epsilon:g}, example {embedding.epsilon:g})",
        account(events)[Unit.EXAMPLE].epsilon,
        draw,
        (Contrast("both releases, one example", (0, 1), ratio, "log-ratio"),),
        ((0, 1), (1, 0)),
        draws=10_000,
    )
