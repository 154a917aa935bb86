"""What sums of clipped and noised updates are worth."""

from __future__ import annotations

from dataclasses import dataclass

from flower_ldp.mechanisms.worth import PureNoise, cosine_of


@dataclass(frozen=True)
class GaussianPlan:
    """What a sum of noised updates is worth for one dimension, if each is as long as C.

    Shorter updates have less; see :mod:`~flower_ldp.mechanisms.worth`.

    Parameters
    ----------
    dimension : int
        d.
    noise_per_step : float
        Square of the deviation of an entry's noise, in units of a report.
    efficiency : float
        How many weights' worth a report is: the square of C over the noise's deviation.
    """

    dimension: int
    noise_per_step: float
    efficiency: float

    def cosine_of_sum(self, reports: int) -> float:
        """Return the expected cosine of the sum with the direction of clients that agree."""
        return cosine_of(reports * self.efficiency / self.dimension)

    @property
    def lean(self) -> float:
        """0: nothing that rounds and changing updates would not average out."""
        return 0.0

    @property
    def pure_noise(self) -> PureNoise:
        """The law of a sum of noise: l = d s^2 and q = d s^4 for d entries of variance s^2."""
        square = self.noise_per_step
        return PureNoise(self.dimension * square, self.dimension * square**2)
