r"""Steps whose length nobody names: as long as the rounds' directions still agree.

Reports tell a direction and no length. But if steps are too short, a round's clients want what
those of the rounds before it wanted; if they are too long, clients want the steps taken back. So
the agreement of a round with the running direction tells the length, and it is in the reports that
are there already: post-processing, free of cost.

Noise hides it, but its size is known. In d dimensions the cosine of two directions that have
nothing to do with each other has the standard deviation :math:`1 / \sqrt d`, so

.. math:: z = \sqrt d \cos(g, v)

counts standard deviations of chance, g being the round's direction and v the running one. If the
model had not moved, z would be about :math:`\sqrt d\, c_g c_v`, where :math:`c^2 = x / (1 + x)` are
shares of signal: x is what the squares of sums of reports have beyond noise
(:class:`~flower_ldp.mechanisms.base.PureNoise`), the agreement *within* rounds. The share of it
that steps shall leave is half at first and falls to nothing, as steps come to their end too.

A round counts in v by its reports: one report has as long a noise as the mean of many has short a
one, and the mean of one would be all that v says.

**First length.** A fresh model has the size that its layers are made to have, and training changes
it by a few times that. All steps together, if none was changed, are three times its norm. Arrays of
zeros count with the norm that a usual start would give them, a quarter more: they say nothing of
the scale of features, so from there lengths also move half as fast again. Arrays of next to nothing
count as zeros: nobody means steps so short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.strategies.optimizers import ServerOptimizer, Vector

#: All steps together, over the model's norm, if no length is changed; and the longest first step.
_PATH, _LONGEST_FIRST = 3.0, 0.5
#: What the norm of zeros, and how fast lengths move, are multiplied by where models say nothing.
_ZEROS_NORM, _ZEROS_SPEED = 1.25, 1.5
#: An array says nothing whose square is less than this of what a usual start would give it.
_NOTHING = 1e-4
#: Share of the agreement within rounds that is to be left between them at first, and how it falls.
_SHARE, _FALL = 0.5, 1.5
#: Doublings of the length: all of a run for each deviation of z; deviations that count little; and
#: the most of a round.
_SPEED, _SMALL, _MOST = 60.0, 8.0, 1.0
#: The most of a run, and the least. A model that is wrong only where it is sure agrees with itself
#: at any length, so that lengths which grow with it forget all but the last rounds.
_LONGEST, _SHORTEST = 5.0, -10.0


@dataclass
class _Run:
    """What is known of one run."""

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

    @property
    def first(self) -> float:
        """The first length."""
        return self.norm * min(2.0 * _PATH / (self.rounds + 1), _LONGEST_FIRST)

    @property
    def speed(self) -> float:
        """How fast lengths move for each deviation in each round."""
        return _SPEED / self.rounds * (1.0 + (_ZEROS_SPEED - 1.0) * self.zeros)

    def left(self, server_round: int) -> float:
        """Return what of the first length is left for a round if none is changed.

        A run that goes on after its plan has ever shorter steps, however few were planned.
        """
        over = 1.0 - max(server_round - 1, 0) / self.rounds
        return max(over, 1.0 / max(self.rounds, server_round))


@dataclass(frozen=True)
class AgreedLength(ServerOptimizer):
    """A step along the running direction, as long as rounds agree; no length has to be named.

    The length starts from the model's size and the run's planned rounds, doubles where the round's
    direction is still that of the rounds before, halves where it is not, at most once in a round,
    and falls linearly over the plan besides. It costs no privacy. Only directions count, so
    SignDSStrategy refuses it with a learned step size.

    For fresh models. One that was trained before (all of it, not the trunk of a fresh head) wants
    shorter steps than its size says, and is better given a :class:`FixedLength`.

    Parameters
    ----------
    momentum : float
        Of the direction, in [0, 1).

    Examples
    --------
    >>> from flower_ldp.mechanisms import Codeword
    >>> from flower_ldp.strategies import CodewordStrategy
    >>> strategy = CodewordStrategy(Codeword(epsilon=8.0), AgreedLength())
    """

    sets_length = True

    momentum: float = 0.9
    _runs: list[_Run] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")

    def on_run_start(self, rounds: int, weights: Sequence[NDArray[Any]]) -> None:
        """Learn of a run that begins; what was known of another is forgotten.

        Raises
        ------
        ValueError
            If there is no round.
        """
        if rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {rounds}")
        self._runs[:] = [_Run(rounds, *_size(weights))]

    def check(self) -> None:
        """Raise RuntimeError if no run was begun."""
        _ = self._run

    @property
    def rounds(self) -> int:
        """Rounds that are planned.

        Raises
        ------
        RuntimeError
            If no run was begun.
        """
        return self._run.rounds

    def lengthen(self, rounds: int) -> None:
        """Learn that the run may have so many rounds; fewer than are planned change nothing."""
        run = self._run
        run.rounds = max(run.rounds, rounds)

    def on_signal(self, signal: float, reports: int) -> None:
        """Learn what a round's reports have in common, before its step."""
        run = self._run
        run.signals += signal
        run.reports += reports
        run.latest = reports

    def step(self, proposed: Vector, server_round: int) -> Vector:
        """Return the step; zero while no direction is known.

        Parameters
        ----------
        proposed : ndarray of float32, shape (d,)
            The mean of the round's reports, up to a factor that is the same in each round.
        server_round : int
            From 1.

        Raises
        ------
        RuntimeError
            If no run was begun.
        """
        run = self._run
        # In float64: squares of float32 entries overflow, and vanish, long before they do.
        now = proposed.astype(np.float64)
        now *= max(run.latest, 1)
        norm = float(np.linalg.norm(now))
        if not 0.0 < norm < math.inf:
            return np.zeros_like(proposed, dtype=np.float32)
        left = run.left(server_round)
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
            length = run.first * 2.0**run.doublings * left
            np.multiply(run.velocity, length / along, out=step, casting="same_kind")
        return step

    def describe(self) -> str:
        """Return one line for the log."""
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
    """Change the length by how far a round's direction is the running one."""
    lengths = float(np.linalg.norm(velocity)) * float(np.linalg.norm(now))
    if lengths == 0.0:
        return
    scale = math.sqrt(len(now))
    found = scale * float(now @ velocity) / lengths
    each = max(run.signals / run.reports, 0.0) if run.reports else 0.0
    one, running = each * run.latest, each * run.weight**2 / run.noise
    most = scale * math.sqrt(one / (1.0 + one) * running / (1.0 + running))
    wanted = _SHARE * left**_FALL * most
    change = run.speed * left * (found - wanted) / (_SMALL + most)
    changed = run.doublings + min(max(change, -_MOST), _MOST)
    run.doublings = min(max(changed, _SHORTEST), _LONGEST)


def _size(weights: Sequence[NDArray[Any]]) -> tuple[float, float]:
    """Return a model's norm, and the share of its square that stands for arrays of zeros.

    A usual start of an array draws its entries from an interval about zero, of variance 1 / (3 f),
    f being what a unit sums over. For a layer from many to few that is the longest axis.
    """
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
