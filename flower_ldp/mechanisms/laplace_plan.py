r"""Planning Laplace noise on rows of probabilities: from noise to epsilon and back.

Noise of scale b has :math:`P(|noise| < a) = 1 - e^{-a/b}`. With the L1 sensitivity of 2 of a
row on the simplex, b = 2 / epsilon; texts that take a sensitivity of 1 name half of the
epsilon that they deliver. Both numbers are given here, because both are asked for.
The formulas are those of continuous noise; the grid changes them by less than a part in a
thousand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flower_ldp.mechanisms.laplace import SIMPLEX_SENSITIVITY

#: The sensitivity that published texts take for a softmax row; it is too small by half.
PUBLISHED_SENSITIVITY = 1


@dataclass(frozen=True)
class LaplacePlan:
    """One setting of the noise on a row of probabilities, under all its names.

    Parameters
    ----------
    epsilon : float
        True epsilon per row and client, for any change of the row; positive.
    """

    epsilon: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ValueError(f"epsilon must be in (0, inf), got {self.epsilon}")

    @classmethod
    def from_published(cls, epsilon: float) -> LaplacePlan:
        """Return the plan of what a text with sensitivity 1 calls ``epsilon``.

        Examples
        --------
        >>> LaplacePlan.from_published(230260).epsilon
        460520.0
        """
        return cls(float(epsilon) * SIMPLEX_SENSITIVITY / PUBLISHED_SENSITIVITY)

    @classmethod
    def from_noise(cls, below: float, probability: float) -> LaplacePlan:
        """Return the plan whose noise on an entry is below a bound that often.

        Parameters
        ----------
        below : float
            Bound on the absolute noise, positive.
        probability : float
            How often it is kept, in (0, 1).

        Raises
        ------
        ValueError
            If a parameter is outside its interval.

        Examples
        --------
        >>> plan = LaplacePlan.from_noise(below=1e-5, probability=0.9)
        >>> round(plan.published_epsilon), round(plan.epsilon)
        (230259, 460517)
        """
        if not (math.isfinite(below) and below > 0):
            raise ValueError(f"below must be in (0, inf), got {below}")
        if not 0 < probability < 1:
            raise ValueError(f"probability must be in (0, 1), got {probability}")
        return cls(-math.log1p(-probability) * SIMPLEX_SENSITIVITY / below)

    @property
    def published_epsilon(self) -> float:
        """The name of the same noise in texts with sensitivity 1."""
        return self.epsilon * PUBLISHED_SENSITIVITY / SIMPLEX_SENSITIVITY

    @property
    def scale(self) -> float:
        """Scale b of the noise on an entry, which is also its mean absolute value."""
        return SIMPLEX_SENSITIVITY / self.epsilon

    def noise_below(self, probability: float) -> float:
        """Return the bound that the absolute noise on an entry keeps that often.

        Raises
        ------
        ValueError
            If ``probability`` is not in (0, 1).
        """
        if not 0 < probability < 1:
            raise ValueError(f"probability must be in (0, 1), got {probability}")
        return -math.log1p(-probability) * self.scale

    def probability_below(self, below: float) -> float:
        """Return how often the absolute noise on an entry is below a bound.

        Raises
        ------
        ValueError
            If ``below`` is negative or NaN.
        """
        if not below >= 0:
            raise ValueError(f"below must be at least 0, got {below}")
        return -math.expm1(-below / self.scale)
