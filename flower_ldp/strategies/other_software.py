r"""What a setting of other software gives: the true epsilon of the noise that it adds.

Each is normal noise of deviation :math:`\sigma` on updates clipped to length C. Two clipped updates
are up to 2 C apart, because they may point in opposite directions, and under replace-one any two
are neighbours. So one message is a normal shift by :math:`\mu = 2C / \sigma`, T messages are one by
:math:`\sqrt T \mu`, and epsilon at a delta is read off the exact curve
(:mod:`~flower_ldp.mechanisms.gaussian`). What a setting calls epsilon does not enter but by
the :math:`\sigma` that is made of it.
"""

import math
from dataclasses import dataclass

from flower_ldp.mechanisms.gaussian import classical_deviation, gaussian_epsilon, largest_shift


@dataclass(frozen=True)
class NormalNoise:
    """Normal noise on inputs that are some distance apart.

    Parameters
    ----------
    distance : float
        Largest distance of two neighbouring inputs; positive.
    deviation : float
        Standard deviation of the noise of each entry; not negative.
    """

    distance: float
    deviation: float

    @property
    def shift(self) -> float:
        """Mu: the distance over the deviation; infinite without noise."""
        return self.distance / self.deviation if self.deviation else math.inf

    def epsilon(self, delta: float, rounds: int = 1) -> float:
        """Return the epsilon of so many messages together; infinite without noise.

        Parameters
        ----------
        delta : float
            Of all of them together, in [1e-18, 1).
        rounds : int
            Fixed beforehand, at least 1.
        """
        shift = self.shift * math.sqrt(rounds)
        return gaussian_epsilon(shift, delta) if shift < math.inf else math.inf


def local_dp_mod(
    clipping_norm: float, sensitivity: float, epsilon: float, delta: float
) -> NormalNoise:
    """Return what Flower's ``LocalDpMod`` adds: the textbook's noise for a sensitivity as given.

    The sensitivity does not follow from the clip, and nothing compares the two.

    Parameters
    ----------
    clipping_norm, sensitivity, epsilon, delta : float
        The mod's arguments. All positive, except that the sensitivity may be zero; delta below 1.
    """
    return NormalNoise(2.0 * clipping_norm, sensitivity * classical_deviation(epsilon, delta))


def mindspore_dp(clip: float, epsilon: float, delta: float) -> NormalNoise:
    """Return what MindSpore's ``DP_ENCRYPT`` adds: exact noise, for updates C apart and not 2 C.

    Parameters
    ----------
    clip, epsilon, delta : float
        ``dp_norm_clip``, ``dp_eps`` in [1e-3, 100] and ``dp_delta`` in [1e-18, 0.5].
    """
    return NormalNoise(2.0 * clip, clip / largest_shift(epsilon, delta))


def central_wrapper(noise_multiplier: float, share: float, *, replace: bool) -> NormalNoise:
    """Return what Flower's central wrappers add to a mean, in units of the clip over the clients.

    Parameters
    ----------
    noise_multiplier : float
        The wrapper's; the noise is so many times the clip over the number of sampled clients.
    share : float
        What the client's update weighs in the mean, times the number of clients: 1 where all
        weigh the same.
    replace : bool
        Whether a client's update may be replaced by any other, or left out, which moves a mean as
        far: the others then weigh more, and may point the other way. Else only by zeros.
    """
    return NormalNoise((2.0 if replace else 1.0) * share, noise_multiplier)


def flowers_epsilon(
    noise_multiplier: float, rounds: int, delta: float, sampled: int, clients: int
) -> float | None:
    """Return the epsilon that ``flwr.serverapp.RdpAccountant`` gives so many releases.

    It accounts for Renyi privacy, by adding or removing one client, without amplification by
    sampling: the model that the wrappers with fixed clipping require of an accountant.

    Parameters
    ----------
    noise_multiplier : float
        Of each release, positive.
    rounds : int
        Releases, at least 1.
    delta : float
        In (0, 1).
    sampled, clients : int
        Clients of a round, and of the federation.

    Returns
    -------
    float or None
        None where Flower has no accountant, or ``flwr[dp]`` is not installed.
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
