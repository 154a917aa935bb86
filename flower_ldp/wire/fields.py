"""What all proposals and reports share: keys of their records, and readers of fields.

A proposal travels with the server's message, in a record of its own, and states every public
parameter that the randomizers use. The client accepts it exactly or refuses; nothing is clamped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

from flower_ldp.errors import WireError, quoted

#: Key of the proposal's record in a message from the server.
PROPOSAL_KEY = "ldp.proposal"
#: Key of the report's record in a reply, and of the packed bytes in that record.
REPORT_KEY = "ldp.report"
PAYLOAD_KEY = "payload"

ValueT = TypeVar("ValueT")
#: What a field of a record may hold here.
Field: TypeAlias = int | float | str | bytes | list[int] | list[float] | list[str]


def check_version(fields: Mapping[str, object], known: int) -> None:
    """Raise WireError unless the field ``version`` is the known one."""
    version = fields.get("version")
    if type(version) is not int or version != known:  # True and 1.0 equal 1
        raise WireError("version", f"proposal version {quoted(version)}")


def many(fields: Mapping[str, object], name: str, kind: type[ValueT]) -> list[ValueT]:
    """Return a field that is a list of values of the very type; raise WireError if it is not."""
    values = fields[name]
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise WireError("fields", f"{name} must be a list of {kind.__name__}, got {quoted(values)}")
    return values


@contextmanager
def in_domain() -> Iterator[None]:
    """Turn a ValueError into a WireError ``"domain"``: a value is outside its interval."""
    try:
        yield
    except WireError:
        raise
    except ValueError as error:
        raise WireError("domain", str(error)) from None
