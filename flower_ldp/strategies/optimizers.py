r"""Server optimizers for the privatized sum: post-processing without cost (docs/steps.md).

**Adam, Yogi, Adagrad** have the parameters, defaults and arithmetic of Flower's ``FedAdam``,
``FedYogi`` and ``FedAdagrad`` (Reddi et al. 2021): a step :math:`\eta\, m / (\sqrt v + \tau)`.

**AgreedLength.** For a round's direction g and the running direction v in d dimensions,
:math:`z = \sqrt d \cos(g, v)` counts deviations of chance. The target is a share of its size with
the model at rest, :math:`\sqrt d\, c_g c_v` for :math:`c^2 = x / (1 + x)` and signals x.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_ldp.parameter_bounds import Bounded, Checked, check_in

Vector = NDArray[np.float32]
Positive = Annotated[float, Bounded("(0, inf)")]
#: Of a running mean.
Decay = Annotated[float, Bounded("[0, 1)")]

#: All steps together, over the model's norm, if no length is changed; and the longest first step.
_PATH, _LONGEST_FIRST = 4.0, 0.5
#: What is left of a length after the planned rounds if none is changed.
_FINAL = 0.3
#: What the norm of zeros, and how fast lengths move, are multiplied by where models say nothing.
_ZEROS_NORM, _ZEROS_SPEED = 3.0, 1.5
#: An array says nothing whose square is less than this of what a usual start would give it.
_NOTHING = 1e-4
#: Share of the agreement within rounds that is to be left between them at first, and how it falls.
_SHARE, _FALL = 0.5, 1.5
#: Doublings of the length: all of a run for each deviation of z; deviations that count little; and
#: the most of a round.
_SPEED, _SMALL, _MOST = 60.0, 8.0, 1.0
#: The most of a run, and the least. A model that is wrong only where it is sure agrees with itself
#: at any length, so that lengths which grow with it forget all but the last rounds.
_LONGEST, _SHORTEST = 3.0, -10.0


class ServerOptimizer:
    """Turns a round's proposed step into the model's step."""

    #: Whether only the direction of what is proposed counts.
    sets_length: ClassVar[bool] = False

    def step(self, proposed: Vector, server_round: int) -> Vector:
        """Return the step, float32 of shape (d,) as the proposed one."""
        raise NotImplementedError

    def describe(self) -> str:
        """Return a line for the log."""
        return type(self).__name__

    def reset(self) -> None:
        """Reset the state for a new run."""

    def on_run_start(self, rounds: int, weights: Sequence[NDArray[Any]]) -> None:
        """Prepare for planned rounds."""

    def check(self) -> None:
        """Raise RuntimeError if no step is possible yet."""

    def extend_run(self, rounds: int) -> None:
        """Raise the number of planned rounds."""

    def on_signal(self, signal: float, reports: int) -> None:
        """Receive a round's squared sum beyond noise, over noise."""


@dataclass(frozen=True)
class _Remembering(Checked, ServerOptimizer):
    _vectors: dict[str, Vector] = field(default_factory=dict, init=False, repr=False, compare=False)

    def reset(self) -> None:
        self._vectors.clear()

    def describe(self) -> str:
        return repr(self)

    def _add_momentum(self, momentum: float, proposed: Vector) -> Vector:
        zeros = np.zeros_like(proposed, dtype=np.float32)
        velocity = self._vectors.setdefault("velocity", zeros)
        velocity *= np.float32(momentum)
        velocity += proposed
        return velocity


@dataclass(frozen=True)
class Momentum(_Remembering):
    """Heavy-ball momentum: m = momentum * m + proposed; step = learning_rate * m.

    ``momentum`` is in [0, 1) and ``learning_rate`` positive.
    """

    momentum: Decay = 0.9
    learning_rate: Positive = 1.0

    def step(self, proposed: Vector, server_round: int) -> Vector:
        """Return the step of this round."""
        return np.float32(self.learning_rate) * self._add_momentum(self.momentum, proposed)


@dataclass(frozen=True)
class FixedLength(_Remembering):
    """A step of planned length along the running direction, with linear decay.

    The length falls from ``length`` in round 1 to ``final_fraction * length`` in round
    ``rounds + 1``. ``momentum`` is in [0, 1) and ``final_fraction`` in [0, 1].
    """

    sets_length = True

    length: Positive
    rounds: Annotated[int, Bounded("[1, inf)")]
    momentum: Decay = 0.9
    final_fraction: Annotated[float, Bounded("[0, 1]")] = 0.0

    def step(self, proposed: Vector, server_round: int) -> Vector:
        """Return the step of planned length; zero without a direction."""
        velocity = self._add_momentum(self.momentum, proposed)
        # In float64: squares of float32 entries overflow, and vanish, long before they do.
        norm = math.sqrt(float(np.einsum("i,i->", velocity, velocity, dtype=np.float64)))
        if norm == 0.0:
            return np.zeros_like(velocity)
        progress = min(max(server_round - 1, 0) / self.rounds, 1.0)
        length = self.length * (1.0 - progress * (1.0 - self.final_fraction))
        return np.float32(length / norm) * velocity


@dataclass(frozen=True)
class _Adaptive(_Remembering):
    eta: Positive
    beta_1: Decay = 0.9
    beta_2: Decay = 0.99
    tau: Positive = 1e-3

    def step(self, proposed: Vector, server_round: int) -> Vector:
        zeros = np.zeros_like(proposed, dtype=np.float32)
        mean, square = self._vectors.get("mean", zeros), self._vectors.get("square", zeros)
        mean = self.beta_1 * mean + (1 - self.beta_1) * proposed
        square = self._squares(square, proposed**2)
        self._vectors.update(mean=mean, square=square)
        step = self._rate(server_round) * mean / (np.sqrt(square) + self.tau)
        return np.asarray(step, dtype=np.float32)

    def _squares(self, square: Vector, now: Vector) -> Vector:
        raise NotImplementedError

    def _rate(self, server_round: int) -> float:
        return self.eta


@dataclass(frozen=True)
class Adam(_Adaptive):
    r"""Adam on the server, as Flower's ``FedAdam``.

    :math:`m = \beta_1 m + (1 - \beta_1) g` and :math:`v = \beta_2 v + (1 - \beta_2) g^2`. In round
    t, :math:`\eta` is multiplied by :math:`\sqrt{1 - \beta_2^{t+1}} / (1 - \beta_1^{t+1})`.

    Parameters
    ----------
    eta, beta_1, beta_2, tau : float
        Rate, positive; decays, in [0, 1); adaptivity, positive. ValueError otherwise.
    """

    eta: Positive = 0.1

    def _squares(self, square: Vector, now: Vector) -> Vector:
        return self.beta_2 * square + (1 - self.beta_2) * now

    def _rate(self, server_round: int) -> float:
        # One more than the round, which Flower counts from 1: its FedAdam does so.
        times = server_round + 1.0
        rate = self.eta * math.sqrt(1 - self.beta_2**times) / (1 - self.beta_1**times)
        # Flower's product is of doubles, since its rate is numpy's; the model stays in float32.
        return np.float64(rate)


@dataclass(frozen=True)
class Yogi(_Adaptive):
    r"""Yogi on the server, as Flower's ``FedYogi``, with the parameters of :class:`Adam`.

    :math:`v = v - (1 - \beta_2)\, g^2 \operatorname{sign}(v - g^2)`, and :math:`\eta` is constant.
    """

    eta: Positive = 0.01

    def _squares(self, square: Vector, now: Vector) -> Vector:
        return np.asarray(square - (1.0 - self.beta_2) * now * np.sign(square - now))


@dataclass(frozen=True)
class Adagrad(_Remembering):
    """Adagrad on the server, as Flower's ``FedAdagrad``: m is the step, v the sum of all squares.

    ``eta`` and ``tau`` are as for :class:`Adam`.
    """

    eta: Positive = 0.1
    tau: Positive = 1e-3

    def step(self, proposed: Vector, server_round: int) -> Vector:
        """Return the step of this round."""
        square = self._vectors.get("square", np.float32(0.0)) + proposed**2
        self._vectors["square"] = square
        return np.asarray(self.eta * proposed / (np.sqrt(square) + self.tau), np.float32)


@dataclass
class _Run:
    rounds: int
    #: Of the model, and the share of its square that stands for arrays of zeros.
    norm: float
    zeros: float
    #: Binary logarithm of what the first length was multiplied by.
    doublings: float = 0.0
    #: Sum of signals, and of reports they are of.
    signals: float = 0.0
    reports: int = 0
    #: Those of the round whose step is next.
    latest: int = 0
    #: Sum of reports, and of it: the sum of their weights, and of the squares of these.
    velocity: NDArray[np.float64] | None = None
    weight: float = 0.0
    noise: float = 0.0


@dataclass(frozen=True)
class AgreedLength(Checked, ServerOptimizer):
    """A step along the running direction, as long as the rounds' directions agree. Needs no tuning.

    The length starts from the model's norm and the planned rounds, changes by a factor of at most 2
    per round, and decays linearly to 0.3 of itself over the plan. For a model that was trained
    before as a whole, give a :class:`FixedLength`. ``momentum`` is in [0, 1).

    Examples
    --------
    >>> from flower_ldp.mechanisms import Codeword
    >>> from flower_ldp.strategies import CodewordStrategy
    >>> strategy = CodewordStrategy(Codeword(epsilon=8.0), AgreedLength())
    """

    sets_length = True

    momentum: Decay = 0.6
    _runs: list[_Run] = field(default_factory=list, repr=False, compare=False)

    def on_run_start(self, rounds: int, weights: Sequence[NDArray[Any]]) -> None:
        """Begin a run; raise ValueError without a round."""
        check_in("[1, inf)", "rounds", rounds, int)
        self._runs[:] = [_Run(rounds, *_size(weights))]

    def check(self) -> None:
        """Raise RuntimeError if no run was begun."""
        _ = self._run

    @property
    def rounds(self) -> int:
        """Planned rounds."""
        return self._run.rounds

    def extend_run(self, rounds: int) -> None:
        """Raise the number of planned rounds."""
        run = self._run
        run.rounds = max(run.rounds, rounds)

    def on_signal(self, signal: float, reports: int) -> None:
        """Receive a round's signal."""
        run = self._run
        run.signals += signal
        run.reports += reports
        run.latest = reports

    def step(self, proposed: Vector, server_round: int) -> Vector:
        """Return the step; zero without a direction, RuntimeError without a run.

        A constant factor of the proposed step does not count.
        """
        run = self._run
        # In float64: squares of float32 entries overflow, and vanish, long before they do.
        now = proposed.astype(np.float64)
        now *= max(run.latest, 1)
        norm = float(np.linalg.norm(now))
        if not 0.0 < norm < math.inf:
            return np.zeros_like(proposed, dtype=np.float32)
        # What is left of the run. One that goes on after its plan has ever shorter steps, however
        # few were planned.
        left = 1.0 - max(server_round - 1, 0) / run.rounds
        left = max(left, 1.0 / max(run.rounds, server_round))
        if run.velocity is None:
            run.velocity = now
        else:
            _adapt(run, run.velocity, now, left)
            run.velocity *= self.momentum
            run.velocity += now
        run.weight = self.momentum * run.weight + max(run.latest, 1)
        run.noise = self.momentum**2 * run.noise + max(run.latest, 1)
        along = float(np.linalg.norm(run.velocity))
        step = np.zeros_like(proposed, dtype=np.float32)
        if along > 0.0:
            together = run.rounds - (1.0 - _FINAL) * (run.rounds - 1) / 2.0
            first = run.norm * min(_PATH / together, _LONGEST_FIRST)
            falls = 1.0 - (1.0 - _FINAL) * max(server_round - 1, 0) / run.rounds
            if server_round > run.rounds:
                falls = max(_FINAL * run.rounds, 1.0) / server_round
            length = first * 2.0**run.doublings * falls
            np.multiply(run.velocity, length / along, out=step, casting="same_kind")
        return step

    def describe(self) -> str:
        """Return a line for the log."""
        return f"steps as long as rounds agree, momentum {self.momentum:g}"

    @property
    def _run(self) -> _Run:
        if not self._runs:
            raise RuntimeError(
                "AgreedLength plans its steps from the run's rounds and model: run the rounds by "
                "the strategy's start, call on_run_start, or name a FixedLength. Nobody was asked"
            )
        return self._runs[0]


def _adapt(run: _Run, velocity: NDArray[np.float64], now: NDArray[np.float64], left: float) -> None:
    lengths = float(np.linalg.norm(velocity)) * float(np.linalg.norm(now))
    if lengths == 0.0:
        return
    scale = math.sqrt(len(now))
    found = scale * float(now @ velocity) / lengths
    each = max(run.signals / run.reports, 0.0) if run.reports else 0.0
    one, running = each * run.latest, each * run.weight**2 / run.noise
    most = scale * math.sqrt(one / (1.0 + one) * running / (1.0 + running))
    wanted = _SHARE * left**_FALL * most
    speed = _SPEED / run.rounds * (1.0 + (_ZEROS_SPEED - 1.0) * run.zeros)
    change = speed * left * (found - wanted) / (_SMALL + most)
    changed = run.doublings + min(max(change, -_MOST), _MOST)
    run.doublings = min(max(changed, _SHORTEST), _LONGEST)


def _size(weights: Sequence[NDArray[Any]]) -> tuple[float, float]:
    told = assumed = 0.0
    for array in weights:
        square = float(np.square(array, dtype=np.float64).sum())
        usual = array.size / (3.0 * max(array.shape, default=1)) if array.size else 0.0
        if _NOTHING * usual < square < math.inf:
            told += square
        else:
            assumed += _ZEROS_NORM**2 * usual
    total = told + assumed
    return math.sqrt(total), (assumed / total if total else 0.0)
