"""A proposal about training updates, on the wire: one mechanism's parameters, and a health bit.

A proposal is plain fields of a record. It states every public parameter that the randomizers use,
so that client and server compute the same probabilities. The client accepts it exactly or refuses;
nothing is clamped. A report is the mechanism's bytes, and the health bit where one was asked for
(:mod:`flower_ldp.wire.health`). Its length is public.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.update import Parameter, UpdateMechanism
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire.fields import check_version, in_domain
from flower_ldp.wire.health import (
    AsksHealth,
    health_events,
    health_fields,
    health_length,
    without_health,
)

_VERSION = 1
MechanismT = TypeVar("MechanismT", bound=UpdateMechanism)


@dataclass(frozen=True)
class UpdateProposal(AsksHealth, Generic[MechanismT]):
    """One round of one mechanism, with or without a health bit.

    Parameters
    ----------
    mechanism : UpdateMechanism
        With all parameters that a proposal states (``sized``).
    health_epsilon : float or None
        Of the health bit (:mod:`flower_ldp.wire.health`); None if it is not asked for.
    """

    mechanism: MechanismT
    health_epsilon: float | None = None

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what an answer costs one client."""
        return (*self.mechanism.events(), *health_events(self.health_epsilon))

    def report_bytes(self, dimension: int) -> int:
        """Return the number of bytes of every report of so many entries, health bit included."""
        return self.mechanism.report_length(dimension) + health_length(self.health_epsilon)

    def to_fields(self) -> dict[str, Parameter]:
        """Return the record's fields; raise ValueError if the mechanism leaves one open."""
        return {
            "version": _VERSION,
            "mechanism": self.mechanism.name,
            **self.mechanism.parameters(),
            **health_fields(self.health_epsilon),
        }

    @classmethod
    def from_fields(
        cls, fields: Mapping[str, object], known: Mapping[str, Callable[..., MechanismT]]
    ) -> UpdateProposal[MechanismT]:
        """Parse the record's fields, refusing anything unknown.

        Parameters
        ----------
        fields : mapping
            Of the record.
        known : mapping of str to callable
            By the name of a mechanism, what reads its parameters.

        Raises
        ------
        WireError
            ``"version"`` for another version, ``"fields"`` for another mechanism and for missing,
            unknown or ill-typed fields, ``"domain"`` for values outside their intervals.
        """
        check_version(fields, _VERSION)
        given, health = without_health(fields)
        del given["version"]
        named = given.pop("mechanism", None)
        if not isinstance(named, str) or named not in known:
            told = f"{quoted(named)}, {quoted(sorted(given))}"
            raise WireError("fields", f"not a {' or '.join(known)} proposal: {told}")
        with in_domain():
            return cls(known[named](given), health)
