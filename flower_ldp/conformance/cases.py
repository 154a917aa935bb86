"""What an extension is tried on: epsilons, small numbers of entries, and updates of all kinds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from flower_ldp.errors import quoted
from flower_ldp.extensions.contract import Extension, ExtensionMechanism

#: Reports that are counted at most.
MOST_REPORTS = 20_000
_TINY = float(np.float32(1e-45))
_HUGE = float(np.finfo(np.float32).max)


class ConformanceError(Exception):
    """The extension does not do what its contract says; the text says where."""


@dataclass(frozen=True)
class Case:
    """An extension, and what it is tried at.

    Parameters
    ----------
    extension : Extension
        Under test.
    epsilons : sequence of float
        Each must be kept.
    dimensions : sequence of int
        Numbers of entries, so few that all reports can be counted.
    delta : float
        Stated beside each epsilon.
    options : mapping of str to float
        What is not left at its default.
    draws : int
        Of the sampler, for each update that it is tried on.
    """

    extension: Extension
    epsilons: Sequence[float] = (0.25, 1.0, 4.0)
    dimensions: Sequence[int] = (1, 2, 3)
    delta: float = 0.0
    options: Mapping[str, float] = field(default_factory=dict)
    draws: int = 2_000

    def settings(self) -> Iterator[Tried]:
        """Yield the mechanism at each epsilon and number of entries."""
        for epsilon, dimension in itertools.product(self.epsilons, self.dimensions):
            chosen = self.extension.chosen(epsilon, self.delta, self.options)
            yield Tried(chosen.mechanism(dimension), epsilon, self.delta, dimension)


@dataclass(frozen=True)
class Tried:
    """A mechanism at one epsilon and one number of entries."""

    mechanism: ExtensionMechanism
    epsilon: float
    delta: float
    dimension: int

    @property
    def where(self) -> str:
        """The setting, for a message."""
        return f"epsilon {self.epsilon:g}, {self.dimension} entries"

    @cached_property
    def reports(self) -> tuple[bytes, ...]:
        """All reports, each once."""
        found = tuple(itertools.islice(self.mechanism.reports(), MOST_REPORTS + 1))
        if not found or len(found) > MOST_REPORTS or len(set(found)) != len(found):
            raise ConformanceError(
                f"{self.where}: reports() must name each report once, {MOST_REPORTS} at most; "
                "state fewer entries by --ldp-dimensions"
            )
        return found

    def law(self, update: Any) -> tuple[float, ...]:
        """Return the logarithm of each report's probability."""
        try:
            found = tuple(float(self.mechanism.log_prob(one, update)) for one in self.reports)
        except Exception as error:
            told = f"log_prob has no law for {quoted(update)}: {type(error).__name__}"
            raise ConformanceError(f"{self.where}: {told}") from error
        if any(math.isnan(one) or one > 1e-9 for one in found):
            raise ConformanceError(f"{self.where}: log_prob is no logarithm of a probability")
        return found

    def updates(self) -> list[Any]:
        """Return valid updates, as different as updates can be."""
        values = [-_HUGE, -1.0, -_TINY, -0.0, 0.0, _TINY, 1.0, _HUGE]
        if self.dimension > 2:
            values = [-_HUGE, 0.0, _TINY]
        if self.dimension > 4:
            ramp = np.linspace(-1.0, 1.0, self.dimension, dtype=np.float32)
            return [ramp, -ramp, 0 * ramp, _HUGE * ramp, _TINY + 0 * ramp]
        every = itertools.product(values, repeat=self.dimension)
        return [np.array(one, dtype=np.float32) for one in every]

    def broken(self) -> list[Any]:
        """Return what is no valid update: None first, for which the neutral law is defined."""
        size = self.dimension
        filled = [np.full(size, one, dtype=np.float32) for one in (np.nan, np.inf, -np.inf)]
        half = np.zeros(size, dtype=np.float32)
        half[-1] = np.nan
        return [
            None,
            *filled,
            half,
            np.zeros(0, dtype=np.float32),
            np.ones(size + 1, dtype=np.float32),
            np.ones((size, 1, 1), dtype=np.float32),
            np.full(size, 1e300),
            np.full(size, 1j),
            np.array([object()] * size, dtype=object),
            np.array(["text"] * size),
            "text",
            [[1.0], [1.0, 2.0]],
        ]
