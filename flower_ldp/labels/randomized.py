"""Randomized labels, with all that is known of how they were drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_ldp.labels.stages import LabelMechanism
from flower_ldp.mechanisms import RRWithPrior


@dataclass(frozen=True, eq=False)
class RandomizedLabels:
    """Labels that may be used in any way, for ever: they are paid for.

    Parameters
    ----------
    reports : ndarray of int64, shape (n,)
        Randomized labels.
    members : ndarray of int64, shape (n,)
        Which examples of the label set they are about.
    mechanism : KaryResponse or RRWithPrior
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
        if isinstance(self.mechanism, RRWithPrior):
            prior = np.zeros(self.mechanism.categories) if self.prior is None else self.prior
            return self.mechanism.likelihood(self.reports, prior)
        return self.mechanism.likelihood(self.reports)
