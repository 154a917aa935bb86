"""The Gaussian mechanism on the wire: the proposal's fields and the report's bytes.

A report of d entries is 1 + d bytes: the version, 1, then one signed byte for each entry. The
health bit, where one was asked for, follows (:mod:`flower_ldp.wire.health`). The length is public.
Every byte string of that length within the mechanism's range is a report of its own, so a report
is accepted only if encoding what it says gives the same bytes. A report that is longer, as a
vector, than an honest one is with a chance of e^-64 is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.gaussian import Gaussian
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire.fields import check_version, float_field
from flower_ldp.wire.health import (
    AsksHealth,
    health_events,
    health_fields,
    health_length,
    without_health,
)

_VERSION = 1
_FIELDS = {"version", "mechanism", "epsilon", "delta", "clip-norm"}


@dataclass(frozen=True)
class GaussianProposal(AsksHealth):
    """One round of the Gaussian mechanism.

    Parameters
    ----------
    mechanism : Gaussian
        Epsilon, delta and clip norm.
    health_epsilon : float or None
        Of the health bit (:mod:`flower_ldp.wire.health`); None if it is not asked for.
    """

    mechanism: Gaussian
    health_epsilon: float | None = None

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what an answer costs one client."""
        return (*self.mechanism.events(), *health_events(self.health_epsilon))

    def report_bytes(self, dimension: int) -> int:
        """Return the number of bytes of every report of so many entries, health bit included."""
        return gaussian_length(dimension) + health_length(self.health_epsilon)

    def encode(self, report: NDArray[np.int8]) -> bytes:
        """Return the bytes of a report without the health bit."""
        return encode_gaussian(report)

    def decode(self, data: bytes, dimension: int) -> NDArray[np.int8]:
        """Decode a report without the health bit, strictly.

        Raises
        ------
        WireError
            ``"version"``, ``"length"``, or ``"range"`` for an entry that no client can have sent
            and for a report longer than :meth:`Gaussian.longest`.
        """
        if data and data[0] != _VERSION:
            raise WireError("version", f"version {data[0]}, expected {_VERSION}")
        if len(data) != gaussian_length(dimension):
            raise WireError("length", f"{len(data)} bytes, expected {gaussian_length(dimension)}")
        report = np.frombuffer(data, dtype=np.int8, offset=1)
        largest, longest = self.mechanism.largest, self.mechanism.longest(dimension)
        if report.max() > largest or report.min() < -largest:
            raise WireError("range", f"an entry is outside [-{largest}, {largest}]")
        if np.linalg.norm(report.astype(np.float64)) > longest:
            raise WireError("range", f"the report is longer than {longest:g}")
        return report

    def to_fields(self) -> dict[str, int | float | str]:
        """Return the record's fields."""
        return {
            "version": _VERSION,
            "mechanism": "gaussian",
            "epsilon": float(self.mechanism.epsilon),
            "delta": float(self.mechanism.delta),
            "clip-norm": float(self.mechanism.clip_norm),
            **health_fields(self.health_epsilon),
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> GaussianProposal:
        """Parse the record's fields, refusing anything unknown.

        Raises
        ------
        WireError
            ``"version"`` for another version, ``"fields"`` for missing, unknown or
            ill-typed fields, ``"domain"`` for values outside their intervals.
        """
        check_version(fields, _VERSION)
        fields, health = without_health(fields)
        if set(fields) != _FIELDS or fields["mechanism"] != "gaussian":
            raise WireError("fields", f"not a Gaussian proposal: {quoted(sorted(fields))}")
        numbers = [float_field(fields, name) for name in ("epsilon", "delta", "clip-norm")]
        try:
            return cls(Gaussian(*numbers), health)
        except ValueError as error:
            raise WireError("domain", str(error)) from None


def gaussian_length(dimension: int) -> int:
    """Return the number of bytes of every report of so many entries."""
    return 1 + dimension


def encode_gaussian(report: NDArray[np.int8]) -> bytes:
    """Return the bytes of a report."""
    return bytes((_VERSION,)) + report.astype(np.int8, casting="no").tobytes()
