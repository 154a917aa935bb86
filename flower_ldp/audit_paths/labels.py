"""The case of labels: what an app gets to train on, when one label of the set is another.

The way of a label in a deployment: the owner's policy, the charge, the draw, the ledger that
keeps the reports, and the same reports when they are asked for again. The outcome is
everything that came back of both calls, or that the set was refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.cases import Case, Contrast
from flower_ldp.audit_paths.owner import AuditOwner
from flower_ldp.clients.labels import PrivateLabels
from flower_ldp.clients.owner import account_of
from flower_ldp.errors import RefusalError, ReleaseError
from flower_ldp.labels.stages import LabelStages
from flower_ldp.mechanisms import KaryResponse, RRWithPrior
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import Unit, compose

#: Labels of a set, and the place of the one that is changed: in the second stage, if of two.
EXAMPLES, CHANGED = 6, 5
_CLASSES = 3
_PRIOR = (0.5, 0.4, 0.1)


@dataclass(frozen=True)
class LabelSet:
    """A label set as an app would hand it over, with what randomizes it.

    Parameters
    ----------
    labels : tuple of int
        True labels.
    stages : LabelStages
        What randomizes them; the changed label is in the last stage.
    prior : tuple of float, optional
        Public, for the last stage.
    """

    labels: tuple[int, ...]
    stages: LabelStages
    prior: tuple[float, ...] | None = None


def labels(epsilon: float) -> Case:
    """Return the case of a set of labels: by k-ary response, and in two stages with a prior."""
    response = KaryResponse(epsilon, _CLASSES, unit=Unit.LABEL)
    with_prior = RRWithPrior(epsilon, _CLASSES, unit=Unit.LABEL)
    ways = {
        "k-ary response": (LabelStages((response,), (1,)), None),
        "second of two stages, with a prior": (LabelStages((response, with_prior), (1, 1)), _PRIOR),
    }
    claimed = {compose(stages.events())[Unit.LABEL].epsilon for stages, _ in ways.values()}
    pairs = {
        way: (_set(0, stages, prior), _set(1, stages, prior))
        for way, (stages, prior) in ways.items()
    }
    draw = _Store(AuditOwner())
    return Case(
        f"labels (policy, ledger, store; epsilon {epsilon:g})",
        max(claimed),
        draw,
        tuple(
            Contrast(f"one label changed, {way}", pair, _scores, "reports of the one, less other")
            for way, pair in pairs.items()
        ),
        list(pairs.values())[:1],
        draws=200,
    )


class _Store:
    """Randomizes a set under a new name, and asks for it once more."""

    def __init__(self, owner: AuditOwner) -> None:
        self._owner = owner
        policy = owner.policy
        self._labels = PrivateLabels(policy, account_of(policy, owner.context()))
        self._names = (f"audit-{number}" for number in itertools.count())

    def __call__(self, given: LabelSet, rng: RandomSource) -> Hashable:
        """Return all reports of both calls; the store draws for itself, not from ``rng``."""
        last, name = len(given.stages.mechanisms) - 1, next(self._names)
        told: list[Any] = []
        try:
            with self._owner.at_home():
                for _ in range(2):
                    found = self._labels.randomize(
                        given.labels, given.stages, last, name=name, prior=given.prior
                    )
                    told.append((tuple(found.members.tolist()), tuple(found.reports.tolist())))
        except (RefusalError, ReleaseError, ValueError) as error:
            told.append(type(error).__name__)
        return tuple(told)


def _set(label: int, stages: LabelStages, prior: tuple[float, ...] | None) -> LabelSet:
    true = tuple(label if place == CHANGED else 2 for place in range(EXAMPLES))
    return LabelSet(true, stages, prior)


def _scores(outcomes: Sequence[Any]) -> NDArray[np.float64]:
    """Return how often the changed label was reported as the first, less as the second."""
    return np.array([_score(outcome) for outcome in outcomes])


def _score(outcome: tuple[Any, ...]) -> float:
    if any(isinstance(part, str) for part in outcome):
        return 10.0  # a refusal tells, too
    (members, first), (_, again) = outcome
    place = members.index(CHANGED)
    return float(sum((told[place] == 0) - (told[place] == 1) for told in (first, again)))
