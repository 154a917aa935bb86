"""Randomized labels, with all that is known of how they were drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.mechanisms.randomized_response import LabelMechanism


@dataclass(frozen=True, eq=False)
class RandomizedLabels:
    """Labels that may be used in any way, for ever: they are paid for.

    Parameters
    ----------
    reports : ndarray of int64, shape (n,)
        Randomized labels; of SubsetSelection sets of labels, as numbers with a bit for each.
    members : ndarray of int64, shape (n,)
        Which examples of the label set they are about.
    mechanism : LabelMechanism
        What made them.
    prior : ndarray of float32, shape (categories,) or (n, categories), or None
        The prior that was used when they were drawn.
    account : str
        The ledger's name for the data that paid. Empty for labels that were drawn without a
        ledger, and that nobody has paid for: such are for benchmarks on public data.
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
