"""The health bit on the wire: a field of any proposal, and a byte at the end of any report.

A proposal with the field ``health-epsilon`` asks for one more private bit: whether the report
before it is neutral, which it is if the app failed or its reply could not be read. The bit goes
through binary randomized response and is priced in the same charge, as the mechanism ``health``.
A report that was asked for it ends in one byte, 0 or 1; any other is as long as ever.

The bit is about the same data as the report. Given the data, the two are drawn independently, so
both together cost the sum of their epsilons, for valid and invalid values alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.randomized_response import BinaryResponse
from flower_ldp.privacy import PrivacyEvent

#: The bit's name in a policy and in a ledger.
HEALTH = "health"
#: Its field in a proposal.
HEALTH_FIELD = "health-epsilon"


class AsksHealth:
    """A proposal that asks for a health bit, where ``health_epsilon`` is no None."""

    health_epsilon: float | None

    def __post_init__(self) -> None:
        health_response(self.health_epsilon)  # its domain

    @property
    def health(self) -> BinaryResponse | None:
        """What the health bit goes through, if one is asked for."""
        return health_response(self.health_epsilon)


def health_response(epsilon: float | None) -> BinaryResponse | None:
    """Return what the bit goes through, or None if none is asked for.

    Raises
    ------
    ValueError
        If epsilon is outside (0, 100].
    """
    return None if epsilon is None else BinaryResponse(epsilon, name=HEALTH)


def health_events(epsilon: float | None) -> tuple[PrivacyEvent, ...]:
    """Return what the bit costs one client: nothing if none is asked for."""
    response = health_response(epsilon)
    return () if response is None else response.events()


def health_fields(epsilon: float | None) -> dict[str, float]:
    """Return the bit's field of a proposal, if it is asked for."""
    return {} if epsilon is None else {HEALTH_FIELD: float(epsilon)}


def without_health(fields: Mapping[str, object]) -> tuple[dict[str, object], float | None]:
    """Return a proposal's other fields, and the bit's epsilon or None.

    Raises
    ------
    WireError
        ``"fields"`` if it is there and no float.
    """
    others = dict(fields)
    if HEALTH_FIELD not in others:
        return others, None
    epsilon = others.pop(HEALTH_FIELD)
    if not isinstance(epsilon, float):
        raise WireError("fields", f"{HEALTH_FIELD} must be a float, got {quoted(epsilon)}")
    return others, epsilon


def health_length(epsilon: float | None) -> int:
    """Return by how many bytes a report is longer for the bit."""
    return 0 if epsilon is None else 1


def append_health(report: bytes, bit: int | None) -> bytes:
    """Return a report with the randomized bit at its end, if there is one.

    Raises
    ------
    ValueError
        If the bit is neither 0 nor 1.
    """
    if bit is None:
        return report
    if bit not in (0, 1):
        raise ValueError(f"bit must be 0 or 1, got {bit!r}")
    return report + bytes((bit,))


def split_health(data: bytes, *, asked: bool) -> tuple[bytes, int | None]:
    """Undo :func:`append_health`, strictly.

    Parameters
    ----------
    data : bytes
        A whole report.
    asked : bool
        Whether it must end in a bit.

    Returns
    -------
    report : bytes
        The report without the bit.
    bit : int or None
        The randomized bit; None if it was not asked for.

    Raises
    ------
    WireError
        ``"health"`` if the last byte is no bit, or there is none.
    """
    if not asked:
        return data, None
    if not data or data[-1] not in (0, 1):
        raise WireError("health", "the report does not end in a health bit")
    return data[:-1], data[-1]
