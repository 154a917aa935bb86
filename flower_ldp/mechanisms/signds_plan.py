"""What a SignDS configuration comes to for one dimension, and what a report of it is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flower_ldp.mechanisms.signds_law import SelectionLaw
from flower_ldp.mechanisms.signds_worth import mean_of_top
from flower_ldp.mechanisms.worth import PureNoise


@dataclass(frozen=True)
class SelectionPlan:
    """What a SignDS configuration comes to for one dimension; all of it public.

    Parameters
    ----------
    dimension : int
        d, number of entries of the update.
    top_size : int
        K = max(1, floor(k d)), the size of S.
    dim_out : int
        h, the number of reported dimensions.
    threshold : int
        v_th, from which on a subset is favoured.
    law : SelectionLaw
        Exact distribution of ``v = |J n S|``.
    """

    dimension: int
    top_size: int
    dim_out: int
    threshold: int
    law: SelectionLaw

    @property
    def expected_inside(self) -> float:
        """E[v]: expected number of reported dimensions that lie in S."""
        return self.law.mean()

    @property
    def contrast(self) -> float:
        """P(j in J | j in S) - P(j in J | j not in S), the signal of one report."""
        rest = self.dimension - self.top_size
        if rest == 0:
            return self.expected_inside / self.top_size
        # E[v] / K - (h - E[v]) / (d - K), of which a small epsilon's digits would be lost.
        return self._excess * self.dimension / (self.top_size * rest)

    @property
    def unbiasing(self) -> float:
        """2 / contrast: what the mean of reports is multiplied by for an unbiased estimate.

        Raises
        ------
        ValueError
            If that is no number, since reports say nothing of the update: all d dimensions are
            reported, or epsilon is as good as 0.
        """
        contrast = self.contrast
        found = 2.0 / contrast if contrast > 0 else math.inf
        if not math.isfinite(found):
            raise ValueError(
                f"reports of {self.dim_out} of {self.dimension} dimensions at this epsilon say "
                "nothing of the update (their contrast is 0), so none can be made unbiased: use "
                "a smaller dim_out, a larger epsilon, or scaling='published'"
            )
        return found

    @property
    def worth(self) -> float:
        """How far a report of length one points along an update of normal entries.

        In standard deviations of the entries; see :mod:`~flower_ldp.mechanisms.signds_worth`.
        """
        fraction = self.top_size / self.dimension
        if fraction == 1.0:
            return 0.0
        excess = self._excess / (1.0 - fraction)
        return excess / math.sqrt(self.dim_out) * mean_of_top(fraction)

    @property
    def efficiency(self) -> float:
        """How many weights' worth a report is (:mod:`~flower_ldp.mechanisms.worth`)."""
        square = self.worth**2
        return square / (1.0 - square / self.dimension)

    def cosine_of_sum(self, reports: int) -> float:
        """Return the expected cosine of a round's sum with the direction of its clients.

        If they agree, and their entries are normal (:mod:`~flower_ldp.mechanisms.signds_worth`).

        Parameters
        ----------
        reports : int
            N, at least 1.
        """
        fraction = self.top_size / self.dimension
        if fraction == 1.0:
            return 0.0
        gained = reports * self.worth**2 / self.dimension
        return math.sqrt(gained / (1.0 + gained / self._along))

    @property
    def lean(self) -> float:
        """0: nothing that rounds and changing updates would not average out."""
        return 0.0

    @property
    def pure_noise(self) -> PureNoise:
        """The law of a sum of uniform selections: l = h, and q the mean square of an overlap."""
        h, share = self.dim_out, self.dim_out / self.dimension
        spread = h * share * (1.0 - share) * (self.dimension - h) / max(self.dimension - 1, 1)
        return PureNoise(h, spread + (h * share) ** 2, self._along)

    @property
    def _along(self) -> float:
        """a^2: squared cosine of the mean report with an update of normal entries."""
        fraction = self.top_size / self.dimension
        return 2.0 * fraction * mean_of_top(fraction) ** 2 if fraction < 1.0 else 1.0

    @property
    def _excess(self) -> float:
        """E[v] less what it is without a signal, h K / d."""
        return self.law.mean_above(self.dim_out * self.top_size, self.dimension)
