"""Whether a release may happen: asked before private data is read.

The gate asks its :class:`Admission` with public facts only: who asks, in which run, and
what the answer would cost. A refusal is a :class:`~flower_ldp.errors.RefusalError` with a
constant code. A policy of the data owner's and a durable ledger are such admissions.

An admitted request is paid for, once: the :class:`Permit` keeps the report before it
leaves, and when the same message is delivered again (a retry, a restarted node) it gives
that report back instead of letting a second one be drawn for free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from flwr.app import Context

from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.privacy import PrivacyEvent

if TYPE_CHECKING:
    from flower_ldp.clients.extension_use import Prepared


@dataclass(frozen=True)
class Basis:
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
class PlanRequest:
    """Wanted: a round of private training, by the owner's plan or by one that is proposed.

    Parameters
    ----------
    proposed : TrainingPlan or None
        The server's plan, if it proposes one.
    """

    proposed: TrainingPlan | None = None


@dataclass(frozen=True)
class ExtensionRequest:
    """Wanted: a report of an extension, which the admission is to load.

    Parameters
    ----------
    name : str
        Of the extension.
    epsilon, delta : float
        What the proposal states of a report.
    options : mapping of str to float
        All of the extension's options.
    entries : int
        That the report is about.
    length : int
        Bytes of a report.
    """

    name: str
    epsilon: float
    delta: float
    options: Mapping[str, float]
    entries: int
    length: int


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
    basis : Basis, optional
        What the release rests on, if that is to be paid for as well.
    plan : PlanRequest, optional
        Of a round of private training, which has no events of its own.
    extension : ExtensionRequest, optional
        Of a report of an extension.
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
    basis: Basis | None = None
    plan: PlanRequest | None = None
    extension: ExtensionRequest | None = None
    per_example: bool = False


class Handling(Protocol):
    """The owner's word on how the app's answer to a message leaves, whatever it is."""

    @property
    def is_simulation(self) -> bool:
        """Whether neither data nor budget is real: then a failing app is answered by an error."""

    @property
    def answer_after(self) -> float | None:
        """Seconds from the message's arrival at which the answer leaves; None for no such time."""

    def failed(self) -> None:
        """Count, for the owner alone, that the app failed. Raises nothing."""


class Permit(Handling, Protocol):
    """Leave to send one report that has been paid for."""

    @property
    def stored(self) -> bytes | None:
        """The report that this very request got before, to be sent again; else None."""

    def seal(self, report: bytes) -> None:
        """Keep a new report before it leaves; raising stops it."""

    def close(self) -> None:
        """Let go of what is held open for the report; sealing after it is possible, and slower."""


@runtime_checkable
class ExamplesPermit(Permit, Protocol):
    """Leave to send a report about the examples that the owner's policy counts."""

    @property
    def examples(self) -> int | None:
        """How many examples there are, if the policy says so; public."""

    @property
    def example(self) -> str:
        """What one example is: ``"row"`` or ``"patient"``."""


@runtime_checkable
class EndingPermit(Permit, Protocol):
    """Leave to send a report of several, which end where the app fails as a whole."""

    def seal_last(self, report: bytes) -> None:
        """Keep a report for an app that failed, and with it that they end; as :meth:`seal`.

        It writes as much as that one does, so that neither takes a time of its own.
        """


@runtime_checkable
class RoundPermit(EndingPermit, Protocol):
    """Leave to send the model of one round of a plan."""

    @property
    def granted(self) -> GrantedRound:
        """What was charged."""


@runtime_checkable
class ExtensionPermit(Permit, Protocol):
    """Leave to send one report of an extension."""

    @property
    def prepared(self) -> Prepared:
        """The extension, ready for this message."""


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
