"""Mechanisms for the parts of a label set, and the labels that they randomize.

Multi-stage training (LP-2ST, Ghazi et al. 2021, Algorithm 4) splits the examples into disjoint
parts. A model trained on the parts before gives the next one's priors. Each label is randomized
once, so it costs the largest of the parts' epsilons (parallel composition).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.mechanisms.randomized_response import LabelMechanism
from flower_ldp.parameter_bounds import check_in
from flower_ldp.privacy import PrivacyEvent, Unit

#: What a ledger and a policy call the reservation of several stages.
STAGES_NAME = "label_stages"


@dataclass(frozen=True)
class LabelStages:
    """Mechanisms for disjoint parts of a label set, chosen by an example's place.

    Parameters
    ----------
    mechanisms : tuple of LabelMechanism
        One for each stage, at label level, all on the same categories.
    shares : tuple of int
        Examples in each stage, of every ``sum(shares)`` successive ones; each in [1, 1000]. The
        order of the examples must not depend on their labels.

    Examples
    --------
    >>> from flower_ldp.mechanisms import KaryResponse
    >>> response = KaryResponse(1.0, 10, unit=Unit.LABEL)
    >>> LabelStages((response, response), (2, 1)).members(1, 7)
    array([2, 5])
    """

    mechanisms: tuple[LabelMechanism, ...]
    shares: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.mechanisms or len(self.mechanisms) != len(self.shares):
            raise ValueError("mechanisms and shares must be as many, and at least one")
        for mechanism in self.mechanisms:
            if not isinstance(mechanism, LabelMechanism):
                raise TypeError(f"mechanisms must be mechanisms of labels, got {mechanism!r}")
            if mechanism.unit is not Unit.LABEL:
                raise ValueError(f"mechanisms must have unit=Unit.LABEL, got {mechanism!r}")
        if len({(mechanism.categories, mechanism.edges) for mechanism in self.mechanisms}) > 1:
            raise ValueError("mechanisms must all have the same categories")
        for share in self.shares:
            check_in("[1, 1000]", "shares", share, int)

    @classmethod
    def of(cls, mechanism: LabelMechanism | LabelStages) -> LabelStages:
        """Return stages as they are, and a mechanism as the only stage."""
        return mechanism if isinstance(mechanism, LabelStages) else cls((mechanism,), (1,))

    @property
    def categories(self) -> int:
        """Return the number of labels."""
        return self.mechanisms[0].categories

    def mechanism(self, stage: int) -> LabelMechanism:
        """Return a stage's mechanism, or raise ValueError if there is no such stage."""
        if not 0 <= stage < len(self.mechanisms):
            raise ValueError(f"stage must be in [0, {len(self.mechanisms)}), got {stage}")
        return self.mechanisms[stage]

    def members(self, stage: int, n: int) -> NDArray[np.int64]:
        """Return which of ``n`` examples are in a stage, in ascending order.

        Raises ValueError if there is no such stage.
        """
        self.mechanism(stage)
        place = np.arange(n) % sum(self.shares)
        start = sum(self.shares[:stage])
        return np.flatnonzero((start <= place) & (place < start + self.shares[stage]))

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of all stages together per label."""
        if len(self.mechanisms) == 1:
            return self.mechanisms[0].events()
        epsilon = max(mechanism.epsilon for mechanism in self.mechanisms)
        return (PrivacyEvent(STAGES_NAME, epsilon, unit=Unit.LABEL),)

    def terms(self, n: int) -> dict[str, Any]:
        """Return the public parameters, for the ledger."""
        laws = [[type(m).__name__, m.name, m.epsilon, *m.law_terms] for m in self.mechanisms]
        known = {"labels": n, "categories": self.categories}
        return {**known, "mechanisms": laws, "shares": list(self.shares)}


@dataclass(frozen=True, eq=False)
class RandomizedLabels:
    """Randomized labels. Any use is post-processing and costs no further epsilon.

    Parameters
    ----------
    reports : ndarray of int64, shape (n,)
        Labels; of SubsetSelection sets of labels, one bit for each.
    members : ndarray of int64, shape (n,)
        Their examples' numbers in the label set.
    mechanism : LabelMechanism
    prior : ndarray of float32, shape (categories,) or (n, categories), or None
        The prior of the draw.
    account : str
        The ledger account that paid. Empty for labels drawn without a ledger: nobody paid for
        these, which are for benchmarks on public data.
    """

    reports: NDArray[np.int64]
    members: NDArray[np.int64]
    mechanism: LabelMechanism
    prior: NDArray[np.float32] | None = None
    account: str = ""

    def likelihood(self) -> NDArray[np.float64]:
        """Return P(report | label y) in column y, shape (n, categories)."""
        prior: ArrayLike | None = self.prior
        if prior is None and self.mechanism.needs_prior:
            prior = np.zeros(self.mechanism.categories)  # nothing is known: uniform
        return self.mechanism.likelihood(self.reports, prior)
