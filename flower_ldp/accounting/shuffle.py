r"""Amplification by shuffling: what a report costs if nobody can tell whose it is.

**Condition.** A shuffler that the server does not control collects the reports of n
clients, removes every trace of who sent which, and hands them on in random order. Flower
has no such part: a server receives each reply with its sender's identity. Without it the
figure here means nothing, which is why it is never part of a total and stands on a line
of its own that names the condition.

**Theorem** (Feldman, McMillan, Talwar 2021, "Hiding Among the Clones", Theorem 3.1). Let
each of n clients report once through an :math:`\epsilon_0`-DP local randomizer. For any
:math:`\delta \in (0, 1]` with :math:`\epsilon_0 \le \ln(n / (16 \ln(2/\delta)))` the
shuffled reports are :math:`(\epsilon, \delta)`-DP for one client's data replaced, with

.. math:: \epsilon = \ln\left(1 + \frac{e^{\epsilon_0}-1}{e^{\epsilon_0}+1} \left(
    \frac{8\sqrt{e^{\epsilon_0}\ln(4/\delta)}}{\sqrt n} + \frac{8 e^{\epsilon_0}}{n}
    \right)\right).

The constants were not compared with the paper's text; tests hold the formula to be no
smaller than the exact privacy of the paper's pair of clone distributions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class ShuffleBound:
    """The cost of one report among shuffled ones: conditional on the shuffler.

    Parameters
    ----------
    epsilon, delta : float
        Per client and round, towards whoever sees the shuffled reports only.
    clients : int
        Reports that were shuffled together.
    """

    epsilon: float
    delta: float
    clients: int

    def __str__(self) -> str:
        return (
            f"epsilon {self.epsilon:.4g}, delta {self.delta:g} per client and round, ONLY IF a "
            f"shuffler outside the server's control mixes {self.clients:,} reports; Flower has none"
        )


def shuffled(epsilon: float, *, clients: int, delta: float) -> ShuffleBound | None:
    """Return what one report of each of ``clients`` clients costs if they are shuffled.

    Parameters
    ----------
    epsilon : float
        Of one client's whole report in the round (pure, local); finite and positive.
    clients : int
        Clients that report in the round and whose reports are shuffled together. Those that
        drop out do not count, nor do those that help the server.
    delta : float
        Probability with which the bound may fail, in (0, 1).

    Returns
    -------
    ShuffleBound or None
        None where the theorem does not apply: too few clients for this epsilon and delta.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ValueError(f"epsilon must be in (0, inf), got {epsilon}")
    if isinstance(clients, bool) or not isinstance(clients, int) or clients < 1:
        raise ValueError(f"clients must be an integer of at least 1, got {clients}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    if epsilon > math.log(clients / (16.0 * math.log(2.0 / delta))):
        return None
    growth = math.exp(epsilon) / clients
    spread = 8.0 * math.sqrt(growth * math.log(4.0 / delta)) + 8.0 * growth
    # tanh(x/2) = (e^x - 1)/(e^x + 1), without cancellation for a small epsilon.
    amplified = math.log1p(math.tanh(epsilon / 2.0) * spread)
    # Shuffling is post-processing: it never costs more than the report itself.
    return ShuffleBound(min(amplified, epsilon), delta, clients)
