"""Arguments and results of the ledger: charges, limits, receipts, entries, time.

**Time** follows the clock and never goes back. A charge more than 400 days past the latest entry is
refused until the owner confirms the clock, since it would empty all windows for good. A *ledger*
that is ahead can go on from its latest entry at the clock's pace: dates stay ahead, windows have
their full length.
"""

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Literal

from flower_ldp.accounting.amounts import COUNTED, ZCDP, Amount, Book, ExactEvent, check_name
from flower_ldp.accounting.zcdp import largest_rho, zcdp_cost
from flower_ldp.errors import LedgerError, quoted
from flower_ldp.parameter_bounds import MOST_PARAMETERS, Bounded, Checked, check_fields
from flower_ldp.privacy import PrivacyEvent, Unit, as_fraction

Scope = Literal["run", "life", "window"]
Kind = Literal["again", "acknowledged", "failed", "unprotected"]
"""What is counted beside charges: a stored report that was sent again, a message that was
acknowledged with nothing in it, an app that failed after a charge, a raw reply (NOT_ENCRYPT)."""

MOST_REPORT = 2**28
"""Longest report that is stored, in bytes."""
NO_RUN = 0
"""Run of releases whose reports answer messages of every run: limits of each run count them."""
MOST_TIME = 253_402_300_799_000_000
"""Latest time, in microseconds since 1970: the end of the year 9999."""
DAY = 86_400_000_000
"""Microseconds in a day."""
MOST_JUMP = 400 * DAY
"""How far past the latest entry a charge may be: a phone may have been off for months."""
MOST_CLOCK = 7_258_118_400_000_000
"""The year 2200: a clock that shows it is wrong."""
_RUNS, _WINDOWS, _RELEASES = Bounded("[0, 2^64)"), Bounded("(0, 1e12]"), Bounded("[0, 2^32]")


def check_run(run_id: int) -> None:
    """Raise ValueError unless a run is an unsigned 64-bit number."""
    _RUNS.check("run_id", run_id, int)


@dataclass(frozen=True)
class Charge:
    """A release that is about to happen.

    Parameters
    ----------
    data_id : str
        The operator's name for the data, the same for every node and process. Of a part:
        ``data#layout/part``. Parts of a layout share no example and are fixed by index, never by
        content.
    run_id : int
        Flower's, in [0, 2^64).
    message_id : str
        Flower's, equal when the same message is delivered again.
    message_type : str
        ``"train"``, ``"evaluate"`` or ``"query"``.
    fingerprint : bytes
        Digest of the public request (1 to 64 bytes), equal for requests that one report may answer.
    events : tuple of PrivacyEvent
        Cost of the release; at least one.
    parameters : str
        Public parameters, as a JSON object.
    waived : mapping of str to tuple of Unit
        By mechanism, units finer than the release's own for which the owner declares it
        post-processing. A waiver holds for all finer units too.
    during : int, optional
        The run that asks for a release in :data:`NO_RUN`; its limits count it too.
    releases : int
        Number of releases that this pays for, in [0, 2^32]: one, or a plan's rounds. 0 if nothing
        leaves for this charge alone.
    rounds : int, optional
        For a round of a charged plan: the plan's number of rounds. ``data_id`` is then a part for
        its rounds alone, and there are no events.
    example : {"row", "patient"}
        What one example of the release is.

    Raises
    ------
    ValueError
        Naming the parameter; also if the cost is too large to be represented.
    """

    data_id: str
    run_id: Annotated[int, _RUNS]
    message_id: str
    message_type: str
    fingerprint: bytes
    events: tuple[PrivacyEvent, ...]
    parameters: str = "{}"
    waived: Mapping[str, tuple[Unit, ...]] = field(default_factory=dict)
    during: Annotated[int | None, _RUNS] = None
    releases: Annotated[int, _RELEASES] = 1
    rounds: Annotated[int | None, _RELEASES] = None
    example: str = "row"

    def __post_init__(self) -> None:
        for name in ("data_id", "message_id", "message_type"):
            check_name(name, getattr(self, name))
        check_fields(self)
        if self.during is not None and self.run_id != NO_RUN:
            raise ValueError(f"during is for releases in run {NO_RUN}, got run {self.run_id}")
        if not isinstance(self.fingerprint, bytes) or not 1 <= len(self.fingerprint) <= 64:
            raise ValueError("fingerprint must have 1 to 64 bytes")
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
        for unit, kind in itertools.product(Unit, (COUNTED, ZCDP)):
            self.book.amount(unit, kind).bounded()

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
                zcdp_cost(event),
            )
            for event in self.events
        )

    @cached_property
    def book(self) -> Book:
        """Cost of the release."""
        return Book.of(self.exact, self.releases)

    def _waived(self, event: PrivacyEvent) -> tuple[str, ...]:
        declared = self.waived.get(event.mechanism, ())
        for unit in declared:
            if unit is event.unit or unit not in event.unit.within:
                wanted = f"units finer than {event.unit.value}, got {unit.value}"
                raise ValueError(f"waived for {event.mechanism} must be {wanted}")
        freed = {finer for unit in declared for finer in unit.within}
        return tuple(unit.value for unit in Unit if unit in freed)


class _Windowed(Checked):
    window_seconds: float | None

    @property
    def microseconds(self) -> int:
        """Length of the window, rounded up; 0 without one."""
        return math.ceil((self.window_seconds or 0) * 1_000_000)


@dataclass(frozen=True)
class Limit(_Windowed):
    """The largest joint cost of releases about one unit.

    Parameters
    ----------
    unit : Unit
        Costs of coarser units count too; costs of finer ones guarantee nothing for it.
    scope : str
        ``"run"``: one run together with :data:`NO_RUN`. ``"life"``: ever. ``"window"``: any period
        of ``window_seconds``.
    epsilon : float
        At least 0, at most 9.2 million; rounded down to a multiple of 1e-12.
    delta : float
        In [0, 1]; rounded down to a multiple of 1e-18.
    window_seconds : float, optional
        Positive; for a window alone.
    release_deltas : float, optional
        For a life by zCDP: the part of ``delta``, below half of it, that the deltas of releases may
        add up to. A charge then fits if it fits epsilon and this by sums, or by zCDP
        (:mod:`flower_ldp.accounting.zcdp`).
    """

    unit: Unit
    scope: Scope
    epsilon: float
    delta: Annotated[float, Bounded("[0, 1]")] = 0.0
    window_seconds: Annotated[float | None, _WINDOWS] = None
    release_deltas: Annotated[float | None, Bounded("[0, 0.5)")] = None

    def __post_init__(self) -> None:
        if self.scope not in ("run", "life", "window"):
            raise ValueError(f"scope must be run, life or window, got {quoted(self.scope)}")
        check_fields(self)
        Amount.allowance(self.epsilon, self.delta)
        if (self.window_seconds is None) == (self.scope == "window"):
            raise ValueError("window_seconds must be given for a window and only there")
        if self.release_deltas is not None:
            if self.scope != "life":
                raise ValueError(f"release_deltas must be for life, got {self.scope}")
            if not 2 * as_fraction(self.release_deltas) < as_fraction(self.delta):
                got = f"got {self.release_deltas:g} of {self.delta:g}"
                raise ValueError(f"release_deltas must be below half of delta, {got}")

    @property
    def whole(self) -> Amount:
        """The limit as it was given, exact."""
        return Amount.allowance(self.epsilon, self.delta)

    @property
    def allowed(self) -> Amount:
        """The limit of sums, exact."""
        deltas = self.delta if self.release_deltas is None else self.release_deltas
        return Amount.allowance(self.epsilon, deltas)

    @property
    def allowed_zcdp(self) -> Amount | None:
        """The limit of rho and its delta, exact; None by sums."""
        if self.release_deltas is None:
            return None
        deltas = as_fraction(self.release_deltas)
        rho = largest_rho(as_fraction(self.epsilon), as_fraction(self.delta) - 2 * deltas)
        return Amount.allowance(rho, deltas)

    def fits(self, spent: Amount, zcdp: Amount) -> bool:
        """Return whether sums, or rho and its delta, do not exceed the limit."""
        most = self.allowed_zcdp
        return spent.fits(self.allowed) or (most is not None and zcdp.fits(most))

    def __str__(self) -> str:
        scope = f"{self.window_seconds:g} s" if self.window_seconds else self.scope
        rho = "" if self.allowed_zcdp is None else f", by zCDP rho {self.allowed_zcdp.epsilon_text}"
        return f"{self.whole} per {self.unit.value} and {scope}{rho}"


def told(limit: Limit, spent: tuple[Amount, Amount]) -> str:
    """Return what was spent in words: the sums, and rho where the limit is by zCDP."""
    sums, zcdp = spent
    return f"{sums}" if limit.release_deltas is None else f"{sums} (rho {zcdp.epsilon_text})"


@dataclass(frozen=True)
class NumberLimit(_Windowed):
    """The largest number of an account's releases, all its parts together.

    ``window_seconds``, if any, is the length of its period; for life without it.
    """

    most: Annotated[int, Bounded("[0, 2^63)")]
    window_seconds: Annotated[float | None, _WINDOWS] = None

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
        The sealed report of the same message: send it and draw nothing. None for a new charge:
        draw, seal, send.
    """

    entry: int
    chain: bytes
    report: bytes | None = None


@dataclass(frozen=True)
class Mark:
    """A point in a ledger's history, kept elsewhere to detect a file that was set back.

    Parameters
    ----------
    ledger : str
        Random name of the ledger.
    entries : int
        Their number at that point.
    chain : str
        Chain value of the last one, hexadecimal.
    """

    ledger: str
    entries: int
    chain: str

    def __str__(self) -> str:
        return f"{self.ledger} {self.entries} {self.chain}"


@dataclass(frozen=True)
class Entry:
    """One charge as the ledger holds it; its other fields are those of :class:`Charge`.

    Parameters
    ----------
    number : int
        1, 2, 3, ... in the order of charging.
    at : int
        Microseconds since 1970 (UTC).
    chain : bytes
        Chain value, 32 bytes.
    sealed : bool
        Whether a report was stored; if not, none has left.
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
        """Cost of the entry."""
        return Book.of(self.events, self.releases)

    def rows(self) -> list[dict[str, object]]:
        """Return one flat row for each event, for JSON or CSV; amounts are exact."""
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
                "rho": "" if event.zcdp is None else event.zcdp.epsilon_text,
            }
            for event in self.events
        ]


@dataclass(frozen=True)
class Verification:
    """The numbers of entries, reports and sums that :meth:`Ledger.verify` found in order."""

    entries: int
    sealed: int
    totals: int
    mark: Mark


@dataclass(frozen=True)
class Clock:
    """The clock and the ledger's time, in microseconds since 1970 (UTC).

    ``latest`` is the latest entry's. ``set_at`` and ``set_to`` are the clock's and the ledger's
    time when the owner last set it. All are 0 if there is none.
    """

    shown: int
    latest: int
    set_at: int
    set_to: int

    def __post_init__(self) -> None:
        if not 0 <= self.shown < MOST_CLOCK:
            raise LedgerError(f"the clock shows {self.shown} microseconds since 1970: set it right")

    @property
    def time(self) -> int:
        """The ledger's time, if it were not for the entries."""
        return self.set_to + self.shown - self.set_at

    @property
    def ahead(self) -> int:
        """How much the owner has set the ledger's time ahead of the clock."""
        return self.set_to - self.set_at

    @property
    def jumped(self) -> bool:
        """Whether the time is so far past the latest entry that a charge is refused."""
        known = max(self.latest, self.set_to)
        return self.latest > 0 and self.time - known > MOST_JUMP

    def of_a_charge(self) -> int:
        """Return the time of a charge made now; LedgerError if the clock jumped."""
        if self.jumped:
            raise LedgerError(
                f"the clock shows {day(self.shown)}, more than {MOST_JUMP // DAY} days past the "
                f"ledger's latest entry ({day(self.latest)}): a charge would empty every window. "
                "Set it right; if it is, say so: flower-ldp ledger clock FILE --accept"
            )
        return self.of_a_question()

    def of_a_question(self) -> int:
        """Return the time up to which windows have moved: not at all if the clock jumped."""
        time = self.latest if self.jumped else max(self.time, self.latest)
        if time > MOST_TIME:
            raise LedgerError("the ledger's time is at the end of the year 9999, and cannot go on")
        return time


def day(microseconds: int) -> str:
    """Return the date of a time."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%d")
