r"""Priors from the true labels, by a trusted party: **central** label privacy, not local.

RRWithPrior is often run with priors from noisy histograms of the true labels of each cluster.
Who makes them sees the labels of all clients, so this is for comparison with published
figures, and for one data owner whose own labels fill all histograms.

**Theorem.** Two label sets are neighbours if one label differs. All histograms together then
change by 1 in two entries, by 2 in L1, so adding discrete Laplace noise of rate epsilon / 2
to every entry is epsilon-DP per label. Which cluster an example falls in is public. A
label that is randomized later with such a prior costs both epsilons.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.labels.priors import group_counts
from flower_ldp.mechanisms import RandomSource
from flower_ldp.mechanisms.sampling.integer_noise import DiscreteLaplace
from flower_ldp.privacy import PrivacyEvent, Unit, as_fraction


@dataclass(frozen=True)
class CentralHistograms:
    """Histograms of true labels by group, with discrete Laplace noise. Central, not local.

    Parameters
    ----------
    epsilon : float
        Per label, of all histograms together; in [1e-6, 60].
    n_groups, categories : int
        How many groups and labels there are, each at least 1.
    """

    epsilon: float
    n_groups: int
    categories: int

    def __post_init__(self) -> None:
        if not 1e-6 <= self.epsilon <= 60:
            raise ValueError(f"epsilon must be in [1e-6, 60], got {self.epsilon}")
        for name in ("n_groups", "categories"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")

    @property
    def noise(self) -> DiscreteLaplace:
        """The noise of each entry."""
        return DiscreteLaplace(as_fraction(self.epsilon) / 2)

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release: epsilon per label."""
        return (PrivacyEvent("central_histograms", self.epsilon, unit=Unit.LABEL),)

    def randomize(
        self, labels: ArrayLike, groups: ArrayLike, rng: RandomSource
    ) -> NDArray[np.int64]:
        """Return noisy counts, shape (n_groups, categories); some are negative.

        Parameters
        ----------
        labels, groups : array_like of integers, shape (n,)
        """
        counts = group_counts(labels, groups, self.n_groups, self.categories)
        return counts + self.noise.sample(counts.size, rng).reshape(counts.shape)

    def priors(self, noisy: ArrayLike) -> NDArray[np.float64]:
        """Return noisy counts as priors: negative ones are 0, and a row may be all 0."""
        return np.maximum(np.asarray(noisy, dtype=np.float64), 0.0)
