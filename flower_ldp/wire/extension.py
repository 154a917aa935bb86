"""An extension's report as a proposal states it: the name, the price, the length, the options.

The client's side knows all of it before anything of the extension is loaded: what a report costs,
and how long it is. What stands in a report is the extension's own; it has exactly so many bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from flower_ldp.errors import ReleaseError, WireError, quoted
from flower_ldp.mechanisms import name_complaint
from flower_ldp.mechanisms.base import Parameter, UpdateMechanism, typed
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent

_FIELDS = {"epsilon", "delta", "report-bytes"}
#: Begins the names of the fields that are options.
OPTION = "option."
_MOST_OPTIONS = 16


@dataclass(frozen=True)
class ExtensionReport(UpdateMechanism):
    """A report of a mechanism that is not of this package, as far as it is known unloaded.

    Parameters
    ----------
    name : str
        Of the extension.
    epsilon, delta : float
        What a report costs.
    length : int
        Bytes of every report, without the health bit.
    options : mapping of str to float
        All of the extension's options.

    Raises
    ------
    ValueError
        If a value is out of its domain.
    """

    name: str
    epsilon: float
    delta: float
    length: int
    options: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        complaint = name_complaint(self.name)
        if complaint is not None:
            raise ValueError(complaint)
        if self.length < 1:
            raise ValueError(f"a report must have a byte at least, got {self.length}")
        if len(self.options) > _MOST_OPTIONS or not all(map(math.isfinite, self.options.values())):
            raise ValueError(f"options must be finite, and {_MOST_OPTIONS} at most")
        self.events()  # their domain

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what a report costs one client."""
        return (PrivacyEvent(self.name, self.epsilon, self.delta),)

    def randomize(self, value: object, rng: RandomSource, dimension: int | None = None) -> bytes:
        """Raise ReleaseError: only an extension that was admitted makes reports."""
        raise ReleaseError("the extension was not admitted")

    def report_length(self, dimension: int) -> int:
        """Return the number of bytes of every report."""
        return self.length

    def encode(self, report: bytes, dimension: int) -> bytes:
        """Return the report, which is bytes."""
        return report

    def decode(self, data: bytes, dimension: int) -> bytes:
        """Return a report; raise WireError if it has another length."""
        if len(data) != self.length:
            raise WireError("length", f"{len(data)} bytes, expected {self.length}")
        return data

    def parameters(self) -> dict[str, Parameter]:
        """Return what a proposal states."""
        return {
            "epsilon": float(self.epsilon),
            "delta": float(self.delta),
            "report-bytes": self.length,
            **{OPTION + name: float(value) for name, value in self.options.items()},
        }

    @classmethod
    def named(cls, name: str, given: Mapping[str, object]) -> ExtensionReport:
        """Return what a proposal states of the extension of this name.

        Raises
        ------
        WireError
            ``"fields"`` for missing, unknown or ill-typed fields.
        ValueError
            For values outside their intervals.
        """
        options = [one for one in given if one.startswith(OPTION)]
        if given.keys() - set(options) != _FIELDS:
            raise WireError("fields", f"not an extension's proposal: {quoted(sorted(given))}")
        return cls(
            name,
            typed(given, "epsilon", float),
            typed(given, "delta", float),
            typed(given, "report-bytes", int),
            {one.removeprefix(OPTION): typed(given, one, float) for one in options},
        )
