"""Server optimizers: what to make of the privatized sum. Post-processing, so free of cost.

A SignDS round gives a direction in which most entries are noise. Momentum averages that
noise over rounds; a step of fixed length makes the rate independent of how much of the
direction is noise, so that it can be planned to decay over the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


class ServerOptimizer(Protocol):
    """Turns the step that a round proposes into the step that the model takes."""

    def step(self, proposed: Vector, server_round: int) -> Vector:
        """Return the step of this round.

        Parameters
        ----------
        proposed : ndarray of float32, shape (d,)
            The round's scaled sum of signs.
        server_round : int
            From 1.
        """

    def describe(self) -> str:
        """Return one line for the log."""


@runtime_checkable
class Forgetting(Protocol):
    """A server optimizer that keeps something of one run's rounds, and begins each run anew."""

    def forget(self) -> None:
        """Begin anew: a run begins, maybe of another model."""


@dataclass
class _Velocity:
    """The running sum of momentum; starts at zero and takes the model's size."""

    vector: Vector | None = None

    def update(self, momentum: float, proposed: Vector) -> Vector:
        if self.vector is None:
            self.vector = proposed.astype(np.float32, copy=True)
        else:
            self.vector *= np.float32(momentum)
            self.vector += proposed
        return self.vector


@dataclass(frozen=True)
class Momentum:
    """Heavy-ball momentum: m = momentum * m + proposed; step = learning_rate * m.

    Parameters
    ----------
    momentum : float
        In [0, 1).
    learning_rate : float
        Positive.
    """

    momentum: float = 0.9
    learning_rate: float = 1.0
    _velocity: _Velocity = field(default_factory=_Velocity, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be in (0, inf), got {self.learning_rate}")

    def step(self, proposed: Vector, server_round: int) -> Vector:
        """Return learning_rate times the running sum."""
        velocity = self._velocity.update(self.momentum, proposed)
        return np.float32(self.learning_rate) * velocity

    def forget(self) -> None:
        """Begin anew, with a sum of zero."""
        self._velocity.vector = None

    def describe(self) -> str:
        """Return one line for the log."""
        return f"momentum {self.momentum:g}, learning rate {self.learning_rate:g}"


@dataclass(frozen=True)
class FixedLength:
    """A step of planned length along the running direction, decaying linearly.

    The length is ``length`` in the first round and falls by equal amounts, so that the round
    after ``rounds`` would reach ``final_fraction * length``; from there on it stays. Only the
    direction of the proposal counts, so SignDSStrategy refuses it with a learned step size.

    Parameters
    ----------
    length : float
        Euclidean length of the first step, in units of the weights.
    rounds : int
        Planned number of rounds.
    momentum : float
        Of the direction, in [0, 1).
    final_fraction : float
        In [0, 1].
    """

    length: float
    rounds: int
    momentum: float = 0.9
    final_fraction: float = 0.0
    _velocity: _Velocity = field(default_factory=_Velocity, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.length < math.inf:
            raise ValueError(f"length must be in (0, inf), got {self.length}")
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if not 0 <= self.final_fraction <= 1:
            raise ValueError(f"final_fraction must be in [0, 1], got {self.final_fraction}")

    def step(self, proposed: Vector, server_round: int) -> Vector:
        """Return the step of planned length; zero while no direction is known."""
        velocity = self._velocity.update(self.momentum, proposed)
        # In float64: squares of float32 entries overflow, and vanish, long before they do.
        norm = math.sqrt(float(np.einsum("i,i->", velocity, velocity, dtype=np.float64)))
        if norm == 0.0:
            return np.zeros_like(velocity)
        progress = min(max(server_round - 1, 0) / self.rounds, 1.0)
        length = self.length * (1.0 - progress * (1.0 - self.final_fraction))
        return np.float32(length / norm) * velocity

    def forget(self) -> None:
        """Begin anew, with no direction."""
        self._velocity.vector = None

    def describe(self) -> str:
        """Return one line for the log."""
        return (
            f"steps of length {self.length:g}, momentum {self.momentum:g}, "
            f"decaying to {self.final_fraction:g} over {self.rounds} rounds"
        )
