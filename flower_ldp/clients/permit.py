"""Whether a release may happen, and leave to send it: decided before private data is read.

The gate asks its :class:`Admission` with public facts only: who asks, in which run, and
what the answer would cost. A refusal is a :class:`~flower_ldp.errors.RefusalError` with a
constant code. The data owner's policy and durable ledger are such an admission.

An admitted request is paid for, once: the :class:`Permit` keeps the report before it
leaves, and when the same message is delivered again (a retry, a restarted node) it gives
that report back instead of letting a second one be drawn for free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Context

from flower_ldp.clients.admission import GrantedRound, ReleaseRequest
from flower_ldp.clients.extension_use import Prepared


@dataclass(frozen=True)
class Handling:
    """The owner's word on how the app's answer to a message leaves, whatever it is.

    Parameters
    ----------
    is_simulation : bool
        Whether neither data nor budget is real: then a failing app is answered by an error.
    answer_after : float or None
        Seconds from the message's arrival at which the answer leaves; None for no such time.
    failed : callable
        Counts, for the owner alone, that the app failed. Raises nothing.
    """

    is_simulation: bool = False
    answer_after: float | None = None
    failed: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Permit:
    """Leave to send one report that has been paid for.

    Who wants to do something else with a report that is kept replaces ``keep``.

    Parameters
    ----------
    handling : Handling
        How the answer leaves.
    keep : callable
        ``keep(report, last)`` keeps a new report before it leaves; raising stops it. With ``last``
        it is for an app that failed as a whole: what ends with that ends, in the same writing.
    stored : bytes or None
        The report that this very request got before, to be sent again.
    close : callable
        Lets go of what is held open for the report; keeping after it is possible, and slower.
    examples : int or None
        How many examples there are, if the owner's policy says so; public.
    example : {"row", "patient"}
        What one example is.
    granted : GrantedRound or None
        The round of a plan that was charged.
    prepared : Prepared or None
        The extension, ready for this message.
    """

    handling: Handling
    keep: Callable[[bytes, bool], None]
    stored: bytes | None = None
    close: Callable[[], None] = lambda: None
    examples: int | None = None
    example: str = "row"
    granted: GrantedRound | None = None
    prepared: Prepared | None = None


class Admission(Protocol):
    """Decides about releases, and records what they cost."""

    def admit(self, request: ReleaseRequest, context: Context) -> Permit:
        """Charge the release and return the permit for it.

        Raises
        ------
        RefusalError
            If it may not.
        """

    def acknowledge(self, message_type: str, context: Context) -> Handling:
        """Let a message be answered without a release: the answer holds public facts or nothing.

        Raises
        ------
        RefusalError
            If it may not.
        """
