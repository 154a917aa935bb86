"""A proposal about training updates, on the wire: one mechanism's parameters, and a health bit.

A proposal states every public parameter of the randomizers. The client accepts it exactly or
refuses. A report is the mechanism's bytes and the health bit, if asked for; its length is public.

With the field ``health-epsilon`` one more byte, 0 or 1, says whether the report is neutral because
the app failed or its reply could not be read. The bit passes binary randomized response and is
charged as ``health``. Given the data, report and bit are drawn independently, so together they cost
the sum of their epsilons, for valid and invalid values alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.base import Parameter, UpdateMechanism, typed
from flower_ldp.mechanisms.randomized_response import BinaryResponse
from flower_ldp.privacy import PrivacyEvent

#: Key of the proposal's record in a message from the server.
PROPOSAL_KEY = "ldp.proposal"
#: Key of the report's record in a reply, and of the packed bytes in that record.
REPORT_KEY = "ldp.report"
PAYLOAD_KEY = "payload"


def canonical(fields: Mapping[str, object]) -> str:
    """Return fields as canonical JSON."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


ValueT = TypeVar("ValueT")
#: What a field of a record may hold here.
Field: TypeAlias = int | float | str | bytes | list[int] | list[float] | list[str]


def check_version(fields: Mapping[str, object], known: int) -> None:
    """Raise WireError unless the field ``version`` is the known one."""
    version = fields.get("version")
    if type(version) is not int or version != known:  # True and 1.0 equal 1
        raise WireError("version", f"proposal version {quoted(version)}")


def many(fields: Mapping[str, object], name: str, kind: type[ValueT]) -> list[ValueT]:
    """Return a field that is a list of values of the very type, or raise WireError."""
    values = fields[name]
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise WireError("fields", f"{name} must be a list of {kind.__name__}, got {quoted(values)}")
    return values


@contextmanager
def in_domain() -> Iterator[None]:
    """Turn a ValueError into a WireError ``"domain"``."""
    try:
        yield
    except WireError:
        raise
    except ValueError as error:
        raise WireError("domain", str(error)) from None


#: The bit's name in a policy and in a ledger.
HEALTH = "health"
#: Its field in a proposal.
HEALTH_FIELD = "health-epsilon"

_VERSION = 1
MechanismT = TypeVar("MechanismT", bound=UpdateMechanism)


class AsksHealth:
    """A proposal that may ask for a health bit."""

    health_epsilon: float | None

    def __post_init__(self) -> None:
        health_events(self.health_epsilon)  # its domain

    @property
    def health(self) -> BinaryResponse | None:
        """The health bit's randomized response, or None."""
        epsilon = self.health_epsilon
        return None if epsilon is None else BinaryResponse(epsilon, name=HEALTH)


def health_events(epsilon: float | None) -> tuple[PrivacyEvent, ...]:
    """Return the bit's cost for one client; ValueError for an epsilon outside (0, 100]."""
    return () if epsilon is None else BinaryResponse(epsilon, name=HEALTH).events()


def health_fields(epsilon: float | None) -> dict[str, float]:
    """Return the bit's field of a proposal, if it is asked for."""
    return {} if epsilon is None else {HEALTH_FIELD: float(epsilon)}


def without_health(fields: Mapping[str, object]) -> tuple[dict[str, object], float | None]:
    """Return a proposal's other fields, and the bit's epsilon; WireError for another type."""
    others = {name: value for name, value in fields.items() if name != HEALTH_FIELD}
    return others, typed(fields, HEALTH_FIELD, float) if HEALTH_FIELD in fields else None


def health_length(epsilon: float | None) -> int:
    """Return the bytes that the bit adds."""
    return 0 if epsilon is None else 1


def append_health(report: bytes, bit: int | None) -> bytes:
    """Return a report with the randomized bit at its end, if there is one."""
    if bit is None:
        return report
    if bit not in (0, 1):
        raise ValueError(f"bit must be 0 or 1, got {bit!r}")
    return report + bytes((bit,))


def split_health(data: bytes, *, asked: bool) -> tuple[bytes, int | None]:
    """Undo :func:`append_health`; WireError ``"health"`` if the last byte is no bit."""
    if not asked:
        return data, None
    if not data or data[-1] not in (0, 1):
        raise WireError("health", "the report does not end in a health bit")
    return data[:-1], data[-1]


@dataclass(frozen=True)
class UpdateProposal(AsksHealth, Generic[MechanismT]):
    """One round of one mechanism, with or without a health bit.

    Parameters
    ----------
    mechanism : UpdateMechanism
        With all parameters that a proposal states (``sized``).
    health_epsilon : float or None
        Of the health bit; None for no bit.
    """

    mechanism: MechanismT
    health_epsilon: float | None = None

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost for one client."""
        return (*self.mechanism.events(), *health_events(self.health_epsilon))

    def report_bytes(self, dimension: int) -> int:
        """Return the number of bytes of every report, health bit included."""
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
        """Parse the record's fields; ``known`` reads parameters by the name of a mechanism.

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
