"""Whether a release may happen, and leave to send it: decided before private data is read.

The gate asks its :class:`Authorizer` with public facts only: who asks, in which run, and
what the answer would cost. A refusal is a :class:`~flower_ldp.errors.RefusalError` with a
constant code. The data owner's policy and durable ledger are such an authorizer.

An admitted request is paid for, once: the :class:`Permit` keeps the report before it
leaves, and when the same message is delivered again (a retry, a restarted node) it gives
that report back instead of letting a second one be drawn for free.
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
    """What releases rest on and all of the data has paid for once, as a private training.

    Parameters
    ----------
    events : tuple of PrivacyEvent
        What it cost.
    parameters : str
        What it was, as canonical JSON. The same parameters are paid for once.
    """

    events: tuple[PrivacyEvent, ...]
    parameters: str


@dataclass(frozen=True)
class GrantedRound:
    """One round of private training that was charged, and marked as used.

    Parameters
    ----------
    plan : TrainingPlan
        What was charged.
    examples : int
        How many examples there are, by the owner's policy; public.
    example : {"row", "patient"}
        What one example is, by the owner's policy.
    """

    plan: TrainingPlan
    examples: int
    example: str


@dataclass(frozen=True)
class ReleaseRequest:
    """A release that the server asks for.

    Parameters
    ----------
    run_id : int
        Flower's identity of the run.
    message_id : str
        Flower's identity of the message; the same message delivered again has the same.
    message_type : str
        ``"train"``, ``"evaluate"`` or ``"query"``.
    events : tuple of PrivacyEvent
        What the answer would cost.
    parameters : str
        The proposal in full, as canonical JSON: what a record of the release says of its
        parameters, and what tells the same request from another under the same identity.
    part : str
        The part of the client's data that the release is about, if it is not about all: each
        part has an account of its own (:class:`~flower_ldp.clients.release.KeptRelease`).
    memo : str
        What the report is kept under, if any other message may be answered with it too.
    basis : PriorCharge, optional
        What the release rests on, if that is to be paid for as well.
    is_round : bool
        Whether a round of private training is wanted, which has no events of its own: by the
        owner's plan, or by one that is proposed.
    proposed : TrainingPlan, optional
        The server's plan, if it proposes one.
    extension : ExtensionReport, optional
        What the proposal states of an extension, which the authorizer is to load.
    entries : int
        That a report of an extension is about.
    per_example : bool
        Whether an example of the release is what the owner's policy says that one is. The policy
        must then say how many there are.
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
    timing : ReplyTiming
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
    prepared : ExtensionReport or None
        The extension, ready for this message.
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
    """Decides about releases, and records what they cost."""

    def authorize(self, request: ReleaseRequest, context: Context) -> Permit:
        """Charge the release and return the permit for it.

        Raises
        ------
        RefusalError
            If it may not.
        """

    def acknowledge(self, message_type: str, context: Context) -> ReplyTiming:
        """Let a message be answered without a release: the answer holds public facts or nothing.

        Raises
        ------
        RefusalError
            If it may not.
        """
