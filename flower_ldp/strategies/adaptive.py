r"""Adaptive server optimizers: Adam, Yogi and Adagrad, as Flower's strategies have them.

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
from dataclasses import dataclass, field

import numpy as np

from flower_ldp.strategies.server_optimizer import Vector


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

    def forget(self) -> None:
        """Begin anew."""
        self.mean = self.square = None


def _check(eta: float, tau: float, **betas: float) -> None:
    for name, value in (("eta", eta), ("tau", tau)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be in (0, inf), got {value}")
    for name, value in betas.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} must be in [0, 1), got {value}")


@dataclass(frozen=True)
class Adam:
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
    _moments: _Moments = field(default_factory=_Moments, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self.eta, self.tau, beta_1=self.beta_1, beta_2=self.beta_2)

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

    def forget(self) -> None:
        """Begin anew, with means of zero."""
        self._moments.forget()

    def describe(self) -> str:
        """Return one line for the log."""
        betas = f"beta_1 {self.beta_1:g}, beta_2 {self.beta_2:g}"
        return f"Adam, eta {self.eta:g}, {betas}, tau {self.tau:g}"


@dataclass(frozen=True)
class Yogi:
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
    _moments: _Moments = field(default_factory=_Moments, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self.eta, self.tau, beta_1=self.beta_1, beta_2=self.beta_2)

    def step(self, proposed: Vector, server_round: int) -> Vector:
        """Return the step of this round."""
        mean, square = self._moments.of(proposed)
        mean = self.beta_1 * mean + (1 - self.beta_1) * proposed
        squared = proposed**2
        square = square - (1.0 - self.beta_2) * squared * np.sign(square - squared)
        self._moments.mean, self._moments.square = mean, square
        step: Vector = self.eta * mean / (np.sqrt(square) + self.tau)
        return step

    def forget(self) -> None:
        """Begin anew, with means of zero."""
        self._moments.forget()

    def describe(self) -> str:
        """Return one line for the log."""
        betas = f"beta_1 {self.beta_1:g}, beta_2 {self.beta_2:g}"
        return f"Yogi, eta {self.eta:g}, {betas}, tau {self.tau:g}"


@dataclass(frozen=True)
class Adagrad:
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
    _moments: _Moments = field(default_factory=_Moments, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self.eta, self.tau)

    def step(self, proposed: Vector, server_round: int) -> Vector:
        """Return the step of this round."""
        _, square = self._moments.of(proposed)
        square = square + proposed**2
        self._moments.square = square
        step: Vector = np.asarray(self.eta * proposed / (np.sqrt(square) + self.tau), np.float32)
        return step

    def forget(self) -> None:
        """Begin anew, with means of zero."""
        self._moments.forget()

    def describe(self) -> str:
        """Return one line for the log."""
        return f"Adagrad, eta {self.eta:g}, tau {self.tau:g}"
