"""What the gate hands to the package's own training, and takes back from it: never from the app.

While an app answers a message, the gate holds one :class:`Handover`: the model that the server
sent, the round that was charged, and a place for the model that the training makes. The training
finds it by a context variable, so an app neither gets it nor gives it back. What the app replies
is not looked at.

In the app's process this is a guard against mistakes. An app that wants to can reach any object of
its process, this one too: who pins the app decides what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar

from numpy.typing import NDArray

from flower_ldp.clients.permit import GrantedRound
from flower_ldp.errors import ReleaseError
from flower_ldp.mechanisms.example_sums import ExampleMean

Arrays = Mapping[str, NDArray[Any]]
#: What one example is in a rehearsal, which does not know the owner's policy.
UNKNOWN = "unknown"


@dataclass
class Handover:
    """One round of private training, between the gate and the training.

    Parameters
    ----------
    granted : GrantedRound
        The plan that was charged, and how many examples there are.
    sent : mapping of str to ndarray
        The model that the server sent: what the round begins from.
    proximal : float
        Weight of FedProx's proximal term, at least 0.
    rehearsal : bool
        Whether the data is public, so that a row that fails is told.
    """

    granted: GrantedRound
    sent: Arrays
    proximal: float = 0.0
    rehearsal: bool = False
    #: The model of the round, once all of its steps are taken.
    trained: Arrays | None = None
    #: What makes a model of the round's noise and nothing of the data, if training came so far.
    noise_alone: Callable[[], Arrays] | None = None
    _steps: Lock = field(default_factory=Lock, repr=False)

    def begin(self) -> None:
        """Use the round's steps up.

        Raises
        ------
        ReleaseError
            If they were used before: a second training of one message is another mechanism.
        """
        # Never given back: of several threads one gets the steps.
        if not self._steps.acquire(blocking=False):
            raise ReleaseError("the steps of this round are used: one message, one training")

    @property
    def is_done(self) -> bool:
        """Whether the training is."""
        return self.trained is not None


@dataclass
class CountHandover:
    """One evaluation, between the gate and the package's own count.

    Parameters
    ----------
    mechanism : ExampleMean
        What the count leaves by; it has how many examples there are.
    example : {"row", "patient"}
        What one example is, by the owner's policy.
    sent : mapping of str to ndarray
        The model that the server sent.
    total : int, optional
        **Private**: what was counted, on the mechanism's grid; once.
    rehearsal : bool
        Whether the data is public, so that a row that fails is told.
    """

    mechanism: ExampleMean
    example: str
    sent: Arrays
    total: int | None = None
    rehearsal: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the count is."""
        return self.total is not None

    def finish(self, total: int) -> None:
        """Take the count.

        Raises
        ------
        ReleaseError
            If there was one before.
        """
        if self.total is not None:
            raise ReleaseError("this evaluation was counted: one message, one count")
        self.total = total


HandedT = TypeVar("HandedT", Handover, CountHandover)
_current: ContextVar[Handover | CountHandover | None] = ContextVar(
    "flower_ldp_handover", default=None
)


@contextmanager
def handed(handover: Handover | CountHandover) -> Iterator[None]:
    """Let the package's own code in the app find this meanwhile."""
    token = _current.set(handover)
    try:
        yield
    finally:
        _current.reset(token)


def current(kind: type[HandedT]) -> HandedT:
    """Return what the gate holds for the message that is being answered.

    Raises
    ------
    ReleaseError
        If there is none of the kind: the release that belongs to it does not guard the app, or
        this is another thread than that of the app's handler.
    """
    found = _current.get()
    if not isinstance(found, kind):
        raise ReleaseError(
            "nothing was charged here for this: guard the app by "
            "LdpMod(train=DPSGDRelease(), evaluate=AccuracyRelease(epsilon=...)), and call this "
            "in the thread of its handler"
        )
    return found
