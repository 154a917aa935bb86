"""What the gate asks for before private data is read: public facts about one release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.privacy import PrivacyEvent


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
