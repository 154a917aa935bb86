"""Authorization: whether a release may happen, decided before private data is read.

The :class:`Authorizer` sees public facts only. An admitted request is charged once, and its
:class:`Permit` keeps the report before it leaves. A repeated message gets the same report.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Context

from flower_ldp.errors import RefusalError
from flower_ldp.extensions.contract import ExtensionReport
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.refusals import REFUSED_POLICY
from flower_ldp.shuffle.sealing import RoundKey


@dataclass(frozen=True)
class PriorCharge:
    """An earlier charge, such as a private training, that releases rest on for free."""

    events: tuple[PrivacyEvent, ...]
    parameters: str


@dataclass(frozen=True)
class GrantedRound:
    """One charged round of private training."""

    plan: TrainingPlan
    examples: int
    example: str


@dataclass(frozen=True)
class ReleaseRequest:
    """A release that the server asks for.

    Parameters
    ----------
    run_id, message_id, message_type
        As Flower has them, and the same where a message is delivered again.
    events : tuple of PrivacyEvent
        Cost of the answer.
    parameters : str
        The whole proposal as canonical JSON.
    part, memo, basis
        As of :class:`~flower_ldp.clients.release.KeptRelease`.
    is_round : bool
        Whether this is a round of private training, for which a plan is charged and no events.
    proposed : TrainingPlan, optional
        The server's plan.
    classes : int
        Outputs of the model to train, at least 2; for the outlook.
    extension, entries
        The extension to load, and the entries of its report.
    per_example : bool
        Whether the release is about examples, whose number the policy must state.
    analyzer_key : RoundKey, optional
        Of the round, if the report leaves as a ciphertext for it; not verified.
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
    classes: int = 2
    extension: ExtensionReport | None = None
    entries: int = 0
    per_example: bool = False
    analyzer_key: RoundKey | None = None


@dataclass(frozen=True)
class ReplyTiming:
    """How the app's answer to a message leaves.

    In a simulation, data and budget are not real, and a failing app is answered by an error.
    ``answer_after`` is the seconds from the message's arrival to the answer, or None. ``failed``
    counts a failure of the app, and raises nothing.
    """

    is_simulation: bool = False
    answer_after: float | None = None
    failed: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Permit:
    """Permission to send one charged report.

    Parameters
    ----------
    timing : ReplyTiming
    keep : callable
        ``keep(report, last)`` stores a new report before it leaves; an exception stops it. ``last``
        marks an app that failed as a whole, and ends what that ends in the same write.
    stored : bytes or None
        The report that this request got before, to be sent again.
    close : callable
        Releases what is held open; ``keep`` still works, more slowly.
    examples, example : int or None, and {"row", "patient"}
        Number of examples by the policy, public, and their unit.
    granted, prepared
        The charged round, and the loaded extension.
    """

    timing: ReplyTiming
    keep: Callable[[bytes, bool], None]
    stored: bytes | None = None
    close: Callable[[], None] = lambda: None
    examples: int | None = None
    example: str = "row"
    granted: GrantedRound | None = None
    prepared: ExtensionReport | None = None

    def known_examples(self) -> int:
        """Return how many examples there are, or refuse."""
        if self.examples is None:
            raise RefusalError(REFUSED_POLICY, "how many examples there are is not known")
        return self.examples


class Authorizer(Protocol):
    """Decides about releases and records their cost."""

    def authorize(self, request: ReleaseRequest, context: Context) -> Permit:
        """Charge the release and return its permit, or raise RefusalError."""

    def acknowledge(self, message_type: str, context: Context) -> ReplyTiming:
        """Allow an answer of public facts or nothing, or raise RefusalError."""
