"""Server optimizers that are told of the run, and of what each round's reports have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray


@runtime_checkable
class Following(Protocol):
    """A server optimizer that goes by the run and by what its reports have in common."""

    @property
    def begun(self) -> bool:
        """Whether it knows of a run: without one it makes no step, and nobody is to be asked."""

    def begin(self, rounds: int, weights: Sequence[NDArray[Any]]) -> None:
        """Learn of a run that begins.

        Parameters
        ----------
        rounds : int
            Planned, at least 1.
        weights : sequence of ndarray
            The arrays that are trained, before the first step.
        """

    def lengthen(self, rounds: int) -> None:
        """Learn that the run may have so many rounds, as clients came that were not there.

        Parameters
        ----------
        rounds : int
            In all. Fewer than are planned change nothing.
        """

    def hear(self, signal: float, reports: int) -> None:
        """Learn what a round's reports have in common, before its step.

        Parameters
        ----------
        signal : float
            What the square length of their sum has beyond noise, over the noise.
        reports : int
            How many there are, at least 1.
        """
