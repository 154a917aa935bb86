"""What the ledger is asked with and what it answers: limits, receipts, marks, entries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.books import Book, ExactEvent
from flower_ldp.accounting.ledger.charges import check_number, check_window
from flower_ldp.errors import quoted
from flower_ldp.privacy import Unit

Scope = Literal["run", "life", "window"]
Kind = Literal["again", "acknowledged", "failed"]
"""What is counted beside charges: a stored report that was sent again, a message that was
acknowledged with nothing in it, an app that failed after a charge."""


@dataclass(frozen=True)
class Limit:
    """The most that releases about one unit may cost together.

    Parameters
    ----------
    unit : Unit
        What it protects. Costs about coarser units count towards it too; costs about finer
        ones do not, since they promise nothing for it.
    scope : str
        ``"run"``: within one run, and beside it all in :data:`NO_RUN`. ``"life"``: ever.
        ``"window"``: within any period of ``window_seconds``.
    epsilon : float
        At least 0, at most 9.2 million; rounded down to a multiple of 1e-12.
    delta : float
        In [0, 1]; rounded down to a multiple of 1e-18.
    window_seconds : float, optional
        Length of the period, positive; for a window and only there.
    """

    unit: Unit
    scope: Scope
    epsilon: float
    delta: float = 0.0
    window_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.scope not in ("run", "life", "window"):
            raise ValueError(f"scope must be run, life or window, got {quoted(self.scope)}")
        if not 0 <= self.delta <= 1:
            raise ValueError(f"delta must be in [0, 1], got {self.delta}")
        Amount.allowance(self.epsilon, self.delta)
        if (self.window_seconds is None) == (self.scope == "window"):
            raise ValueError("window_seconds must be given for a window and only there")
        if self.window_seconds is not None:
            check_window(self.window_seconds)

    @property
    def allowed(self) -> Amount:
        """The limit, exact."""
        return Amount.allowance(self.epsilon, self.delta)

    @property
    def microseconds(self) -> int:
        """Length of the window, rounded up; 0 for the other scopes."""
        return math.ceil((self.window_seconds or 0) * 1_000_000)

    def __str__(self) -> str:
        scope = f"{self.window_seconds:g} s" if self.window_seconds else self.scope
        return f"{self.allowed} per {self.unit.value} and {scope}"


@dataclass(frozen=True)
class NumberLimit:
    """The most releases of an account, whatever they cost; those of all its parts together.

    Parameters
    ----------
    most : int
        At least 0.
    window_seconds : float, optional
        Length of the period that it holds for, positive; for life if it is left out.
    """

    most: int
    window_seconds: float | None = None

    def __post_init__(self) -> None:
        check_number("most", self.most, 2**63 - 1)
        if self.window_seconds is not None:
            check_window(self.window_seconds)

    @property
    def microseconds(self) -> int | None:
        """Length of the window, rounded up; None for life."""
        if self.window_seconds is None:
            return None
        return math.ceil(self.window_seconds * 1_000_000)

    def __str__(self) -> str:
        scope = "life" if self.window_seconds is None else f"{self.window_seconds:g} s"
        return f"{self.most:,} releases per {scope}"


@dataclass(frozen=True)
class Receipt:
    """Proof that a charge is in the ledger.

    Parameters
    ----------
    entry : int
        Number of the entry.
    chain : bytes
        The entry's chain value.
    report : bytes, optional
        The report that was sealed when the same message came before: send this one and
        draw nothing. None for a new charge: draw, seal, send.
    """

    entry: int
    chain: bytes
    report: bytes | None = None


@dataclass(frozen=True)
class Mark:
    """A point in a ledger's history, to be kept elsewhere: shows that a file was set back.

    Parameters
    ----------
    ledger : str
        Random name of the ledger.
    entries : int
        Number of entries at that point.
    chain : str
        Chain value of the last one, hexadecimal.
    """

    ledger: str
    entries: int
    chain: str


@dataclass(frozen=True)
class Entry:
    """One charge as the ledger holds it.

    Parameters
    ----------
    number : int
        1, 2, 3, ... in the order of charging.
    at : int
        When, in microseconds since 1970 (UTC).
    data_id, run_id, message_id, message_type, fingerprint, parameters
        As in :class:`~.charges.Charge`.
    events : tuple of ExactEvent
        As in :class:`~.charges.Charge`, exact.
    chain : bytes
        Chain value, 32 bytes.
    sealed : bool
        Whether a report was stored; if not, none has left.
    releases : int
        As in :class:`~.charges.Charge`.
    """

    number: int
    at: int
    data_id: str
    run_id: int
    message_id: str
    message_type: str
    fingerprint: bytes
    parameters: str
    events: tuple[ExactEvent, ...]
    chain: bytes
    sealed: bool
    releases: int

    @property
    def book(self) -> Book:
        """What it cost."""
        return Book.of(self.events, self.releases)

    def rows(self) -> list[dict[str, object]]:
        """Return one flat row for each event, ready for JSON or CSV; amounts are exact."""
        common = {
            "entry": self.number,
            "at": datetime.fromtimestamp(self.at / 1e6, UTC).isoformat(),
            "data_id": self.data_id,
            "run_id": str(self.run_id),
            "message_id": self.message_id,
            "message_type": self.message_type,
            "fingerprint": self.fingerprint.hex(),
            "parameters": self.parameters,
            "sealed": self.sealed,
            "releases": self.releases,
        }
        return [
            {
                **common,
                "mechanism": event.mechanism,
                "unit": event.unit,
                "epsilon": event.cost.epsilon_text,
                "delta": event.cost.delta_text,
                "count": event.count,
                "waived": " ".join(event.waived),
            }
            for event in self.events
        ]


@dataclass(frozen=True)
class Verification:
    """What :meth:`Ledger.verify` found in order.

    Parameters
    ----------
    entries, sealed : int
        Number of entries, and of those with a report.
    totals : int
        Number of running sums that agree with the entries.
    mark : Mark
        The end of the chain.
    """

    entries: int
    sealed: int
    totals: int
    mark: Mark
