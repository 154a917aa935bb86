r"""The true epsilon of the noise that other software adds for its settings.

Each adds normal noise of deviation :math:`\sigma` to updates clipped to length C: up to 2 C apart
under replace-one. T messages are a normal shift by :math:`\sqrt T \, 2C / \sigma`.
"""

import math
from dataclasses import dataclass

from flower_ldp.mechanisms.gaussian import classical_deviation, gaussian_epsilon, largest_shift


@dataclass(frozen=True)
class NormalNoise:
    """Normal noise on inputs at most ``distance`` apart."""

    distance: float
    deviation: float

    @property
    def shift(self) -> float:
        """The distance over the deviation; infinite without noise."""
        return self.distance / self.deviation if self.deviation else math.inf

    def epsilon(self, delta: float, rounds: int = 1) -> float:
        """Return the epsilon of ``rounds`` messages at a total delta."""
        shift = self.shift * math.sqrt(rounds)
        return gaussian_epsilon(shift, delta) if shift < math.inf else math.inf


def local_dp_mod(
    clipping_norm: float, sensitivity: float, epsilon: float, delta: float
) -> NormalNoise:
    """Return the noise of Flower's ``LocalDpMod``."""
    return NormalNoise(2.0 * clipping_norm, sensitivity * classical_deviation(epsilon, delta))


def mindspore_dp(clip: float, epsilon: float, delta: float) -> NormalNoise:
    """Return the noise of MindSpore's ``DP_ENCRYPT``: exact for updates C apart."""
    return NormalNoise(2.0 * clip, clip / largest_shift(epsilon, delta))


def central_wrapper(noise_multiplier: float, share: float, *, replace: bool) -> NormalNoise:
    """Return the noise of Flower's central wrappers on a mean, in units of clip over clients.

    With ``replace`` an update may be replaced by any other or left out; else only by zeros.
    """
    return NormalNoise((2.0 if replace else 1.0) * share, noise_multiplier)


def flowers_epsilon(
    noise_multiplier: float, rounds: int, delta: float, sampled: int, clients: int
) -> float | None:
    """Return the epsilon of ``flwr.serverapp.RdpAccountant``, or None without one.

    It is for adding or removing a client, without amplification by sampling.
    """
    try:
        from flwr import serverapp

        config = serverapp.PrivacyConfig(
            target_delta=delta,
            population_size=clients,
            neighboring_relation=serverapp.NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=serverapp.SamplingMethod.NO_AMPLIFICATION,
        )
        accountant = serverapp.RdpAccountant(config)
    except (ImportError, AttributeError):
        return None
    event = serverapp.GaussianPrivacyEvent(noise_multiplier, sampled, clients)
    accountant.compose(event, rounds)
    return accountant.get_epsilon(delta)
