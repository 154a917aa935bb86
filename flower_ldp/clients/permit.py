"""Authorization: whether a release may happen, decided before private data is read.

The gate asks its :class:`Authorizer` with public facts only; a refusal has a constant code. An
admitted request is charged once, and its :class:`Permit` keeps the report before it leaves. A
message that is delivered again gets the same report, so no second one is drawn for free.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Context

from flower_ldp.extensions.contract import ExtensionReport
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.privacy import PrivacyEvent


def canonical(fields: Mapping[str, object]) -> str:
    """Return fields as canonical JSON: equal texts for equal fields."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class PriorCharge:
    """An earlier charge, such as a private training, that later releases rest on for free.

    Equal ``parameters`` are charged once.
    """

    events: tuple[PrivacyEvent, ...]
    parameters: str


@dataclass(frozen=True)
class GrantedRound:
    """One charged round of private training, with number and kind of examples by the policy."""

    plan: TrainingPlan
    examples: int
    example: str


@dataclass(frozen=True)
class ReleaseRequest:
    """A release that the server asks for.

    Parameters
    ----------
    run_id : int
        Flower's run.
    message_id : str
        Flower's message; equal when a message is delivered again.
    message_type : str
        ``"train"``, ``"evaluate"`` or ``"query"``.
    events : tuple of PrivacyEvent
        Cost of the answer.
    parameters : str
        The whole proposal as canonical JSON. It is recorded, and distinguishes requests under one
        identity.
    part : str
        The part of the client's data (:class:`~flower_ldp.clients.release.KeptRelease`); empty for
        all of it.
    memo : str
        Question under which the report is kept, if it may answer other messages.
    basis : PriorCharge, optional
        A charge that the release rests on and that must be paid as well.
    is_round : bool
        Whether this is a round of private training. It has no events: the owner's plan, or the
        proposed one, is charged.
    proposed : TrainingPlan, optional
        The server's plan.
    extension : ExtensionReport, optional
        The proposed extension, for the authorizer to load.
    entries : int
        Entries of an extension's report.
    per_example : bool
        Whether the release is about examples as the policy defines them. The policy must then state
        their number.
    """

    run_id: int
    message_id: str
    message_type: str
    events: tuple[PrivacyEvent, ...]
    parameters: str
    part: str = ""
    memo: str = ""
    basis: PriorCharge | None = None
    is_round: bool = False
    proposed: TrainingPlan | None = None
    extension: ExtensionReport | None = None
    entries: int = 0
    per_example: bool = False


@dataclass(frozen=True)
class ReplyTiming:
    """How the app's answer to a message leaves.

    Parameters
    ----------
    is_simulation : bool
        Whether data and budget are not real. A failing app is then answered by an error.
    answer_after : float or None
        Seconds from the message's arrival to the answer; None for no fixed moment.
    failed : callable
        Counts for the owner that the app failed. Raises nothing.
    """

    is_simulation: bool = False
    answer_after: float | None = None
    failed: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Permit:
    """Permission to send one charged report. Replace ``keep`` to handle kept reports otherwise.

    Parameters
    ----------
    timing : ReplyTiming
        How the answer leaves.
    keep : callable
        ``keep(report, last)`` stores a new report before it leaves; an exception stops it. ``last``
        marks the report of an app that failed as a whole, and ends what that ends in the same
        write.
    stored : bytes or None
        The report that this request got before, to be sent again.
    close : callable
        Releases what is held open. ``keep`` still works afterwards, more slowly.
    examples : int or None
        Number of examples by the owner's policy; public.
    example : {"row", "patient"}
        Unit of an example.
    granted : GrantedRound or None
        The charged round of a plan.
    prepared : ExtensionReport or None
        The loaded extension.
    """

    timing: ReplyTiming
    keep: Callable[[bytes, bool], None]
    stored: bytes | None = None
    close: Callable[[], None] = lambda: None
    examples: int | None = None
    example: str = "row"
    granted: GrantedRound | None = None
    prepared: ExtensionReport | None = None


class Authorizer(Protocol):
    """Decides about releases and records their cost."""

    def authorize(self, request: ReleaseRequest, context: Context) -> Permit:
        """Charge the release and return its permit.

        Raises
        ------
        RefusalError
            If the release is not allowed.
        """

    def acknowledge(self, message_type: str, context: Context) -> ReplyTiming:
        """Allow an answer without a release, which holds public facts or nothing.

        Raises
        ------
        RefusalError
            If the answer is not allowed.
        """
