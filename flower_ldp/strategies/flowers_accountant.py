"""What Flower's own accountant says of its central wrappers, where it is installed."""

from __future__ import annotations


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
        from flwr.serverapp import (
            GaussianPrivacyEvent,
            NeighboringRelation,
            PrivacyConfig,
            RdpAccountant,
            SamplingMethod,
        )

        accountant = RdpAccountant(
            PrivacyConfig(
                target_delta=delta,
                population_size=clients,
                neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
                sampling_method=SamplingMethod.NO_AMPLIFICATION,
            )
        )
    except ImportError:
        return None
    accountant.compose(GaussianPrivacyEvent(noise_multiplier, sampled, clients), rounds)
    return accountant.get_epsilon(delta)
