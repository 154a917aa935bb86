"""What is charged to the ledger, and what its fields may hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.books import COUNTED, Book, ExactEvent
from flower_ldp.errors import quoted
from flower_ldp.privacy import PrivacyEvent, Unit

#: Longest name and longest parameters, in characters: the other side chooses some of them.
MOST_NAME, MOST_PARAMETERS = 1_024, 65_536
MOST_REPORT = 2**28
"""Longest report that is stored, in bytes."""
NO_RUN = 0
"""Run of releases whose reports answer messages of every run: limits of each run count them."""
MOST_RELEASES = 2**32
"""Largest number of releases of one charge."""
MOST_TIME = 253_402_300_799_000_000
"""Latest time, in microseconds since 1970: the end of the year 9999."""


def check_name(name: str, value: str) -> None:
    """Refuse a name that is empty, long, or cannot be shown on one line."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {type(value).__name__}")
    if not (1 <= len(value) <= MOST_NAME and value.isprintable()):
        raise ValueError(
            f"{name} must have 1 to {MOST_NAME} printable characters, got {quoted(value)}"
        )


def check_number(name: str, value: int, most: int) -> None:
    """Refuse what is no whole number in [0, most]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if not 0 <= value <= most:
        raise ValueError(f"{name} must be in [0, {most}], got {value}")


def check_window(seconds: float) -> None:
    """Refuse what is no length of a window."""
    if isinstance(seconds, bool) or not 0 < seconds <= 1e12:
        raise ValueError(f"window_seconds must be in (0, 1e12], got {seconds}")


def check_run(run_id: int) -> None:
    """Refuse what is no run of Flower's: they have unsigned 64-bit numbers."""
    check_number("run_id", run_id, 2**64 - 1)


@dataclass(frozen=True)
class Charge:
    """A release that is about to happen.

    Parameters
    ----------
    data_id : str
        The operator's name for the data, whichever node or process answers for it. Of a part
        of it: ``data#layout/part``, where the parts of a layout share no example and are fixed
        by index, never by content.
    run_id : int
        Flower's, in [0, 2^64).
    message_id : str
        Flower's; the same message delivered again has the same.
    message_type : str
        ``"train"``, ``"evaluate"`` or ``"query"``.
    fingerprint : bytes
        Digest of the public request (1 to 64 bytes): two requests that may be answered with
        the same report have the same.
    events : tuple of PrivacyEvent
        What the release costs; at least one.
    parameters : str
        Public parameters, as a JSON object.
    waived : mapping of str to tuple of Unit
        By mechanism, the units for which the data's owner declares that the release only
        post-processes what is paid for: units finer than the release's own. What is waived for
        a unit is waived for all finer ones.
    during : int, optional
        The run that asks, of a release in :data:`NO_RUN`, whose report may answer messages of
        every run and type: that run's limits count it too.
    releases : int
        Number of releases that this pays for, in [0, 2^32]: one, or the rounds of a plan that
        is charged as a whole. 0 if nothing leaves on account of this charge alone.
    rounds : int, optional
        Of a round of a plan that was charged as a whole: how many rounds the plan has. Then
        ``data_id`` is a part that only its rounds are charged to, and there are no events.
    example : {"row", "patient"}
        What one example is to the release.

    Raises
    ------
    ValueError, TypeError
        Naming the parameter; also if the cost is too large to be represented.
    """

    data_id: str
    run_id: int
    message_id: str
    message_type: str
    fingerprint: bytes
    events: tuple[PrivacyEvent, ...]
    parameters: str = "{}"
    waived: Mapping[str, tuple[Unit, ...]] = field(default_factory=dict)
    during: int | None = None
    releases: int = 1
    rounds: int | None = None
    example: str = "row"

    def __post_init__(self) -> None:
        for name in ("data_id", "message_id", "message_type"):
            check_name(name, getattr(self, name))
        check_number("releases", self.releases, MOST_RELEASES)
        check_run(self.run_id)
        if self.during is not None:
            check_run(self.during)
            if self.run_id != NO_RUN:
                raise ValueError(f"during is for releases in run {NO_RUN}, got run {self.run_id}")
        if not isinstance(self.fingerprint, bytes) or not 1 <= len(self.fingerprint) <= 64:
            raise ValueError("fingerprint must have 1 to 64 bytes")
        if self.rounds is not None:
            check_number("rounds", self.rounds, MOST_RELEASES)
        if bool(self.events) == (self.rounds is not None):
            raise ValueError("events must hold at least one event, and of a round none")
        for event in self.events:
            check_name("mechanism", event.mechanism)
        if len(self.parameters) > MOST_PARAMETERS:
            raise ValueError(f"parameters must have at most {MOST_PARAMETERS} characters")
        try:
            parsed = json.loads(self.parameters)
            self.parameters.encode("utf-8")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"parameters must be JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise ValueError("parameters must be a JSON object")
        for unit in Unit:
            self.book.amount(unit, COUNTED).bounded()

    @cached_property
    def exact(self) -> tuple[ExactEvent, ...]:
        """The events as they are stored."""
        return tuple(
            ExactEvent(
                event.mechanism,
                event.unit.value,
                Amount.cost(event.epsilon, event.delta),
                int(event.count),
                self._waived(event),
            )
            for event in self.events
        )

    @cached_property
    def book(self) -> Book:
        """What the release costs."""
        return Book.of(self.exact, self.releases)

    def _waived(self, event: PrivacyEvent) -> tuple[str, ...]:
        declared = self.waived.get(event.mechanism, ())
        for unit in declared:
            if unit is event.unit or unit not in event.unit.within:
                raise ValueError(
                    f"waived for {event.mechanism} must be units finer than {event.unit.value}, "
                    f"got {unit.value}"
                )
        freed = {finer for unit in declared for finer in unit.within}
        return tuple(unit.value for unit in Unit if unit in freed)
