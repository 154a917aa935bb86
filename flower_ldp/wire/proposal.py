"""The server's proposal for a SignDS round, as plain fields of a record.

A proposal travels with the model, in a record of its own. It states every public
parameter that the randomizers use, so that client and server compute the same h, v_th
and keeping probability. The client accepts it exactly or refuses; nothing is clamped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.magrr import MagRR
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.privacy import PrivacyEvent

#: Key of the proposal's record in a message from the server.
PROPOSAL_KEY = "ldp.proposal"
#: Key of the report's record in a reply, and of the packed bytes in that record.
REPORT_KEY = "ldp.report"
PAYLOAD_KEY = "payload"

_VERSION = 1
_REQUIRED = {"version", "mechanism", "epsilon", "k", "threshold-ratio", "dim-out"}
_MAGNITUDE = {"magnitude-epsilon", "magnitude-threshold"}


@dataclass(frozen=True)
class SignDSProposal:
    """One round of SignDS, with or without a magnitude bit.

    Parameters
    ----------
    selection : SignDS
        The dimension selection; to be sent, with k written out (``sized``).
    magnitude_epsilon : float or None
        Per bit, per client; None if no bit is asked for.
    magnitude_threshold : float or None
        What the client compares its magnitude with; None together with the epsilon.
    """

    selection: SignDS
    magnitude_epsilon: float | None = None
    magnitude_threshold: float | None = None

    def __post_init__(self) -> None:
        if (self.magnitude_epsilon is None) != (self.magnitude_threshold is None):
            raise ValueError("magnitude_epsilon and magnitude_threshold go together")
        if self.magnitude_threshold is not None and not (0 < self.magnitude_threshold < math.inf):
            raise ValueError(
                f"magnitude_threshold must be in (0, inf), got {self.magnitude_threshold}"
            )
        if self.magnitude_epsilon is not None:
            MagRR(self.magnitude_epsilon)  # its domain

    @property
    def magnitude(self) -> MagRR | None:
        """The mechanism of the magnitude bit, if one is asked for."""
        return None if self.magnitude_epsilon is None else MagRR(self.magnitude_epsilon)

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what an answer costs one client: the selection and, if asked for, the bit."""
        magnitude = self.magnitude
        return self.selection.events() + (magnitude.events() if magnitude else ())

    def to_fields(self) -> dict[str, int | float | str]:
        """Return the record's fields.

        Raises
        ------
        ValueError
            If the selection leaves k open: a proposal states it.
        """
        if self.selection.k is None:
            raise ValueError("a proposal states k: use selection.sized(dimension)")
        fields: dict[str, int | float | str] = {
            "version": _VERSION,
            "mechanism": "signds",
            "epsilon": float(self.selection.epsilon),
            "k": float(self.selection.k),
            "threshold-ratio": float(self.selection.threshold_ratio),
            "dim-out": self.selection.dim_out,
        }
        if self.magnitude_epsilon is not None and self.magnitude_threshold is not None:
            fields["magnitude-epsilon"] = float(self.magnitude_epsilon)
            fields["magnitude-threshold"] = float(self.magnitude_threshold)
        return fields

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> SignDSProposal:
        """Parse the record's fields, refusing anything unknown.

        Raises
        ------
        WireError
            ``"version"`` for another version, ``"fields"`` for missing, unknown or
            ill-typed fields, ``"domain"`` for values outside their intervals.
        """
        version = fields.get("version")
        if type(version) is not int or version != _VERSION:  # True and 1.0 equal 1
            raise WireError("version", f"proposal version {quoted(version)}")
        names = set(fields)
        if names not in (_REQUIRED, _REQUIRED | _MAGNITUDE) or fields["mechanism"] != "signds":
            raise WireError("fields", f"not a SignDS proposal: {quoted(sorted(names))}")
        dim_out = fields["dim-out"]
        if not isinstance(dim_out, int) or isinstance(dim_out, bool):
            raise WireError("fields", f"dim-out must be an integer, got {quoted(dim_out)}")
        try:
            return cls(
                SignDS(
                    epsilon=float_field(fields, "epsilon"),
                    k=float_field(fields, "k"),
                    threshold_ratio=float_field(fields, "threshold-ratio"),
                    dim_out=dim_out,
                ),
                *(float_field(fields, name) for name in sorted(_MAGNITUDE & names)),
            )
        except WireError:
            raise
        except ValueError as error:
            raise WireError("domain", str(error)) from None


def float_field(fields: Mapping[str, object], name: str) -> float:
    """Return a field that must be a float; raise WireError if it is none."""
    value = fields[name]
    if not isinstance(value, float):
        raise WireError("fields", f"{name} must be a float, got {quoted(value)}")
    return value
