"""An extension's proposal on the wire: the name, the price, the length of a report, the options.

The client's side knows all of it before anything of the extension is loaded: what a report costs,
and how long it is. What stands in a report is the extension's own; it has exactly so many bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.extension_names import name_complaint
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire.fields import check_version, float_field, one
from flower_ldp.wire.health import (
    AsksHealth,
    health_events,
    health_fields,
    health_length,
    without_health,
)

_VERSION = 1
_FIELDS = {"version", "mechanism", "epsilon", "delta", "report-bytes"}
#: Begins the names of the fields that are options.
OPTION = "option."
_MOST_OPTIONS = 16


@dataclass(frozen=True)
class ExtensionProposal(AsksHealth):
    """One round of a mechanism that is not of this package.

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
    health_epsilon : float or None
        Of the health bit (:mod:`flower_ldp.wire.health`); None if it is not asked for.

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
    health_epsilon: float | None = None

    def __post_init__(self) -> None:
        complaint = name_complaint(self.name)
        if complaint is not None:
            raise ValueError(complaint)
        if self.length < 1:
            raise ValueError(f"a report must have a byte at least, got {self.length}")
        if len(self.options) > _MOST_OPTIONS or not all(map(math.isfinite, self.options.values())):
            raise ValueError(f"options must be finite, and {_MOST_OPTIONS} at most")
        self.events()  # their domain
        super().__post_init__()

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what an answer costs one client."""
        own = PrivacyEvent(self.name, self.epsilon, self.delta)
        return (own, *health_events(self.health_epsilon))

    def report_bytes(self, dimension: int) -> int:
        """Return the number of bytes of every report, health bit included."""
        return self.length + health_length(self.health_epsilon)

    def decode(self, data: bytes, dimension: int) -> bytes:
        """Return a report without its health bit; raise WireError if it has another length."""
        if len(data) != self.length:
            raise WireError("length", f"{len(data)} bytes, expected {self.length}")
        return data

    def to_fields(self) -> dict[str, int | float | str]:
        """Return the record's fields."""
        return {
            "version": _VERSION,
            "mechanism": self.name,
            "epsilon": float(self.epsilon),
            "delta": float(self.delta),
            "report-bytes": self.length,
            **{OPTION + name: float(value) for name, value in self.options.items()},
            **health_fields(self.health_epsilon),
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> ExtensionProposal:
        """Parse the record's fields, refusing anything unknown.

        Raises
        ------
        WireError
            ``"version"`` for another version, ``"fields"`` for missing, unknown or
            ill-typed fields, ``"domain"`` for values outside their intervals.
        """
        check_version(fields, _VERSION)
        fields, health = without_health(fields)
        options = [name for name in fields if name.startswith(OPTION)]
        if set(fields) - set(options) != _FIELDS:
            raise WireError("fields", f"not an extension's proposal: {quoted(sorted(fields))}")
        try:
            return cls(
                one(fields, "mechanism", str),
                float_field(fields, "epsilon"),
                float_field(fields, "delta"),
                one(fields, "report-bytes", int),
                {name.removeprefix(OPTION): float_field(fields, name) for name in options},
                health,
            )
        except ValueError as error:
            raise WireError("domain", str(error)) from None
