"""The case of labels: what an app gets to train on, when one label of the set is another.

The way of a label in a deployment: the owner's policy, the charge, the draw, the ledger that
keeps the reports, and the same reports when they are asked for again. The outcome is
everything that came back of all calls, or that the set was refused. A label is asked for eight
times, so that a store that draws anew shows in some hundred sets; and the first of two stages
stands beside the second, so that noise that both share shows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit import Case, Contrast
from flower_ldp.audit_paths.owner import AuditOwner
from flower_ldp.clients.charging import account_of
from flower_ldp.clients.labels import PrivateLabels
from flower_ldp.errors import LedgerError, RefusalError, ReleaseError
from flower_ldp.labels.stages import LabelStages
from flower_ldp.mechanisms import RRWithPrior
from flower_ldp.mechanisms.labels import (
    LABEL_METHODS,
    label_mechanisms,
    reports_are_labels,
)
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import Unit, compose

#: Place of the label that is changed, the last: in the second stage, if of two.
CHANGED = 5
#: How often the reports of one stage are asked for.
ASKS = 8
_CLASSES = 3
# What a report of the first stage adds to a score: less than one of the changed label's.
_OF_FIRST = 0.1
_PRIOR = (0.5, 0.4, 0.1)
#: Methods that the answers of an audit call otherwise than a configuration.
_TITLES = {"kary_response": "k-ary response", "subset_selection": "subset selection"}


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
        Public, for every stage.
    asks : int
        How often the last stage's reports are asked for.
    """

    labels: tuple[int, ...]
    stages: LabelStages
    prior: tuple[float, ...] | None = None
    asks: int = 1


def labels(epsilon: float) -> Case:
    """Return the case of a set of labels: by each method, and in two stages with a prior."""
    with_prior = RRWithPrior(epsilon, _CLASSES, unit=Unit.LABEL)
    two = LabelStages((with_prior, with_prior), (1, 1))
    alone = {}
    for method in LABEL_METHODS:
        mechanism, *more = label_mechanisms(method, epsilon, _CLASSES)
        if not more and not mechanism.needs_prior:
            alone[method] = LabelStages((mechanism,), (1,))
    claimed = {compose(each.events())[Unit.LABEL].epsilon for each in (*alone.values(), two)}
    pairs = {
        f"{_TITLES.get(method, method)}, asked {ASKS} times": _pair(LabelSet((), stages, asks=ASKS))
        for method, stages in alone.items()
    }
    pairs["second of two stages, with a prior"] = _pair(LabelSet((), two, _PRIOR))
    once = _pair(LabelSet((), alone["kary_response"]))
    draw = _Store(AuditOwner())
    return Case(
        f"labels (policy, ledger, store; epsilon {epsilon:g})",
        max(claimed),
        draw,
        tuple(
            Contrast(f"one label changed, {way}", pair, _scores(pair[0]), "reports as 0, less as 1")
            for way, pair in pairs.items()
        ),
        [once],
        draws=300,
    )


def _pair(given: LabelSet) -> tuple[LabelSet, LabelSet]:
    """Return two sets that differ in one label."""
    same = (0,) * CHANGED
    return replace(given, labels=(*same, 0)), replace(given, labels=(*same, 1))


class _Store:
    """Randomizes a set under a new name, stage by stage, and asks for the last again."""

    def __init__(self, owner: AuditOwner) -> None:
        self._owner = owner
        policy = owner.policy
        self._labels = PrivateLabels(policy, account_of(policy, owner.context()))

    def __call__(self, given: LabelSet, rng: RandomSource) -> Hashable:
        """Return all reports of all calls; the store draws for itself, not from ``rng``."""
        last, name = len(given.stages.mechanisms) - 1, self._owner.new_name()
        told: list[Any] = []
        try:
            with self._owner.at_home():
                for stage in (*range(last), *[last] * given.asks):
                    found = self._labels.randomize(
                        given.labels, given.stages, stage, name=name, prior=given.prior
                    )
                    told.append((tuple(found.members.tolist()), tuple(found.reports.tolist())))
        except (RefusalError, ReleaseError, LedgerError, ValueError) as error:
            told.append(type(error).__name__)
        return tuple(told)


def _scores(given: LabelSet) -> Callable[[Sequence[Any]], NDArray[np.float64]]:
    """Return what says how often the changed label was reported as 0, less as 1.

    Of two stages, with a tenth of what the first stage reported at the same place.
    """
    is_label = reports_are_labels(given.stages.mechanisms[-1])

    def side(told: int) -> int:
        held = [told == 0, told == 1] if is_label else [told & 1, told >> 1 & 1]
        return held[0] - held[1]

    def score(outcome: tuple[Any, ...]) -> float:
        if any(isinstance(part, str) for part in outcome):
            return 10.0 * ASKS  # a refusal tells, too
        place = next(members.index(CHANGED) for members, _ in outcome if CHANGED in members)
        found = 0.0
        for members, reports in outcome:
            told = reports[place]
            found += side(told) if CHANGED in members else _OF_FIRST * told
        return found

    return lambda outcomes: np.array([score(one) for one in outcomes])
