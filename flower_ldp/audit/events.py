"""Which event tells two inputs apart best: a search over one half of the draws.

A statistic turns a report into a number, its score. Candidate events are "the score is at
least t", "at most t" and, where scores take few values, "equal to t", each in both
directions. The best one is the one whose own bound is the largest. Since that is a look at
the draws, its bound here is no confidence bound: the event is carried over to fresh draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.bounds import epsilon_lower_bound

Scores = NDArray[np.float64]

# With more distinct scores than this, thresholds are taken at a selection of ranks.
_FEW = 512
_RANKS = 400


@dataclass(frozen=True)
class Event:
    """A set of scores, and under which input it is likelier.

    Parameters
    ----------
    relation : str
        ``">="``, ``"<="`` or ``"=="``.
    threshold : float
        What the score is compared with.
    likelier : int
        0 if the event is likelier under the first input, 1 if under the second.
    """

    relation: str
    threshold: float
    likelier: int

    def count(self, scores: Scores) -> int:
        """Return how many scores are in the event."""
        if self.relation == ">=":
            return int(np.count_nonzero(scores >= self.threshold))
        if self.relation == "<=":
            return int(np.count_nonzero(scores <= self.threshold))
        return int(np.count_nonzero(scores == self.threshold))

    def describe(self, label: str) -> str:
        """Return the event in words; ``label`` names the score."""
        side = ("first", "second")[self.likelier]
        return f"{label} {self.relation} {self.threshold:g}, likelier under the {side} input"


def best_event(first: Scores, second: Scores, *, confidence: float, delta: float = 0.0) -> Event:
    """Return the event with the largest bound on these scores.

    Parameters
    ----------
    first, second : ndarray of float64, equal lengths
        Scores of draws under the two inputs; used up by the choice.
    confidence, delta : float
        Those of the bound that the event is chosen for.
    """
    draws = len(first)
    sides = np.sort(first), np.sort(second)
    distinct = np.unique(np.concatenate(sides))
    few = len(distinct) <= _FEW
    thresholds = distinct if few else _at_ranks(np.sort(np.concatenate(sides)))
    counts = {
        ">=": [draws - np.searchsorted(side, thresholds, side="left") for side in sides],
        "<=": [np.searchsorted(side, thresholds, side="right") for side in sides],
    }
    if few:
        at_least, at_most = counts[">="], counts["<="]
        counts["=="] = [a + b - draws for a, b in zip(at_least, at_most, strict=True)]
    best, best_bound = Event(">=", float(thresholds[0]), 0), -np.inf
    for relation, (one, other) in counts.items():
        for likelier, pair in enumerate(((one, other), (other, one))):
            bounds = epsilon_lower_bound(*pair, draws, confidence=confidence, delta=delta)
            at = int(np.argmax(bounds))
            if bounds[at] > best_bound:
                best = Event(relation, float(thresholds[at]), likelier)
                best_bound = float(bounds[at])
    return best


def _at_ranks(scores: Scores) -> Scores:
    """Return scores at ranks that are dense towards both ends, where rare events are."""
    ranks = np.unique(np.geomspace(1, len(scores), _RANKS).astype(np.int64)) - 1
    return np.unique(np.concatenate([scores[ranks], scores[::-1][ranks]]))
