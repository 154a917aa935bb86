r"""Server optimizers: what to make of the privatized sum. Post-processing, so free of cost.

A SignDS round gives a direction in which most entries are noise. Momentum averages that
noise over rounds; a step of fixed length makes the rate independent of how much of the
direction is noise, so that it can be planned to decay over the run.

Adaptive server optimizers: Adam, Yogi and Adagrad, as Flower's strategies have them.

Each keeps of every weight a running mean of steps m and of their squares v, and moves it by
:math:`\eta\, m / (\sqrt v + \tau)` (Reddi et al., "Adaptive Federated Optimization", 2021). What
they work on is privatized, so they cost nothing. The names of the parameters, their defaults and
the arithmetic are those of ``FedAdam``, ``FedYogi`` and ``FedAdagrad`` in ``flwr.serverapp``: fed
the same steps, they move a model alike.

**Noise.** Where most of a step is noise, v is the noise's square, much the same for every weight,
and what is left of them is momentum with a rate of :math:`\eta / (\sqrt v + \tau)`. In the first
rounds every weight whose step is far above :math:`\tau` moves by about :math:`\eta`, however long
its step is: the size of what is proposed counts little, and a step size that was learned with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


class ServerOptimizer:
    """Turns the step that a round proposes into the step that the model takes; a base class."""

    #: Whether only the direction of what is proposed counts.
    sets_length: ClassVar[bool] = False

    def step(self, proposed: Vector, server_round: int) -> Vector:
        """Return the step of this round.

        Parameters
        ----------
        proposed : ndarray of float32, shape (d,)
            The round's scaled sum of signs.
        server_round : int
            From 1.
        """
        raise NotImplementedError

    def describe(self) -> str:
        """Return one line for the log."""
        return type(self).__name__

    def reset(self) -> None:
        """Begin anew: a run begins, maybe of another model."""

    def on_run_start(self, rounds: int, weights: Sequence[NDArray[Any]]) -> None:
        """Learn in a run's first round how many rounds it has, and of what model.

        Parameters
        ----------
        rounds : int
            Planned, at least 1.
        weights : sequence of ndarray
            The arrays that are trained, before the first step.
        """

    def check(self) -> None:
        """Raise RuntimeError if no step can be made yet; called before a round asks anybody."""

    def lengthen(self, rounds: int) -> None:
        """Learn that the run may have so many rounds in all, as clients came."""

    def on_signal(self, signal: float, reports: int) -> None:
        """Learn what a round's reports have in common, before its step.

        Parameters
        ----------
        signal : float
            What the square length of their sum has beyond noise, over the noise.
        reports : int
            How many there are, at least 1.
        """


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
class Momentum(ServerOptimizer):
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

    def reset(self) -> None:
        """Begin anew, with a sum of zero."""
        self._velocity.vector = None

    def describe(self) -> str:
        """Return one line for the log."""
        return f"momentum {self.momentum:g}, learning rate {self.learning_rate:g}"


@dataclass(frozen=True)
class FixedLength(ServerOptimizer):
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

    sets_length = True

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

    def reset(self) -> None:
        """Begin anew, with no direction."""
        self._velocity.vector = None

    def describe(self) -> str:
        """Return one line for the log."""
        return (
            f"steps of length {self.length:g}, momentum {self.momentum:g}, "
            f"decaying to {self.final_fraction:g} over {self.rounds} rounds"
        )


@dataclass
class _Moments:
    """Running mean and running square of steps; start at zero and take the model's size."""

    mean: Vector | None = None
    square: Vector | None = None

    def of(self, proposed: Vector) -> tuple[Vector, Vector]:
        """Return both, as zeros before the first step."""
        if self.mean is None or self.square is None:
            self.mean = np.zeros_like(proposed, dtype=np.float32)
            self.square = np.zeros_like(proposed, dtype=np.float32)
        return self.mean, self.square


@dataclass(frozen=True)
class _Adaptive(ServerOptimizer):
    """What Adam, Yogi and Adagrad share: their parameters' intervals and their moments."""

    _moments: _Moments = field(default_factory=_Moments, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, value in self._parameters().items():
            if name.startswith("beta") and not 0 <= value < 1:
                raise ValueError(f"{name} must be in [0, 1), got {value}")
            if not name.startswith("beta") and not 0 < value < math.inf:
                raise ValueError(f"{name} must be in (0, inf), got {value}")

    def reset(self) -> None:
        """Begin anew, with means of zero."""
        self._moments.mean = self._moments.square = None

    def describe(self) -> str:
        """Return one line for the log."""
        told = (f"{name} {value:g}" for name, value in self._parameters().items())
        return ", ".join([type(self).__name__, *told])

    def _parameters(self) -> dict[str, float]:
        return {one.name: getattr(self, one.name) for one in fields(self) if one.repr}


@dataclass(frozen=True)
class Adam(_Adaptive):
    r"""Adam on the server, as Flower's ``FedAdam``.

    :math:`m = \beta_1 m + (1 - \beta_1) g` and :math:`v = \beta_2 v + (1 - \beta_2) g^2`, and
    :math:`\eta` is corrected for their start at zero, as Flower does it: by
    :math:`\sqrt{1 - \beta_2^{t+1}} / (1 - \beta_1^{t+1})` in round t.

    Parameters
    ----------
    eta : float
        Server's rate, positive.
    beta_1, beta_2 : float
        Of the means, in [0, 1).
    tau : float
        Adaptivity, positive: steps far smaller than it are not scaled up.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.
    """

    eta: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

    def step(self, proposed: Vector, server_round: int) -> Vector:
        """Return the step of this round."""
        mean, square = self._moments.of(proposed)
        self._moments.mean = self.beta_1 * mean + (1 - self.beta_1) * proposed
        self._moments.square = self.beta_2 * square + (1 - self.beta_2) * proposed**2
        mean, square = self._moments.of(proposed)
        # One more than the round, which Flower counts from 1: its FedAdam does so.
        times = server_round + 1.0
        rate = self.eta * math.sqrt(1 - self.beta_2**times) / (1 - self.beta_1**times)
        # Flower's product is of doubles, since its rate is numpy's; the model stays in float32.
        step: Vector = (np.float64(rate) * mean / (np.sqrt(square) + self.tau)).astype(np.float32)
        return step


@dataclass(frozen=True)
class Yogi(_Adaptive):
    r"""Yogi on the server, as Flower's ``FedYogi``.

    As :class:`Adam`, without the correction of the start, and with
    :math:`v = v - (1 - \beta_2)\, g^2 \operatorname{sign}(v - g^2)`, so that v falls slowly.

    Parameters
    ----------
    eta : float
        Server's rate, positive.
    beta_1, beta_2 : float
        Of the mean and of what the squares change by, in [0, 1).
    tau : float
        Adaptivity, positive.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.
    """

    eta: float = 0.01
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

    def step(self, proposed: Vector, server_round: int) -> Vector:
        """Return the step of this round."""
        mean, square = self._moments.of(proposed)
        mean = self.beta_1 * mean + (1 - self.beta_1) * proposed
        squared = proposed**2
        square = square - (1.0 - self.beta_2) * squared * np.sign(square - squared)
        self._moments.mean, self._moments.square = mean, square
        step: Vector = self.eta * mean / (np.sqrt(square) + self.tau)
        return step


@dataclass(frozen=True)
class Adagrad(_Adaptive):
    r"""Adagrad on the server, as Flower's ``FedAdagrad``: v is the sum of all squares, m the step.

    Steps shrink as the run goes on, so that no length has to be planned to fall.

    Parameters
    ----------
    eta : float
        Server's rate, positive.
    tau : float
        Adaptivity, positive.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.
    """

    eta: float = 0.1
    tau: float = 1e-3

    def step(self, proposed: Vector, server_round: int) -> Vector:
        """Return the step of this round."""
        _, square = self._moments.of(proposed)
        square = square + proposed**2
        self._moments.square = square
        step: Vector = np.asarray(self.eta * proposed / (np.sqrt(square) + self.tau), np.float32)
        return step
