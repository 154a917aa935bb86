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
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from flower_ldp.clients.admission import GrantedRound
from flower_ldp.errors import ReleaseError

Arrays = Mapping[str, NDArray[Any]]


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
    """

    granted: GrantedRound
    sent: Arrays
    proximal: float = 0.0
    _begun: bool = False
    _noise_alone: Callable[[], Arrays] | None = None
    _trained: Arrays | None = None

    def begin(self) -> None:
        """Use the round's steps up.

        Raises
        ------
        ReleaseError
            If they were used before: a second training of one message is another mechanism.
        """
        if self._begun:
            raise ReleaseError("the steps of this round are used: one message, one training")
        self._begun = True

    def prepared(self, noise_alone: Callable[[], Arrays]) -> None:
        """Take what makes a model of the round's noise and nothing of the data."""
        self._noise_alone = noise_alone

    def finish(self, trained: Arrays) -> None:
        """Take the model that all steps of the round have made."""
        self._trained = trained

    @property
    def trained(self) -> Arrays | None:
        """The model of the round, once all of its steps are taken."""
        return self._trained

    def noise_alone(self) -> Arrays | None:
        """Return a model of the round's noise alone, if the training came so far."""
        return None if self._noise_alone is None else self._noise_alone()


_current: ContextVar[Handover | None] = ContextVar("flower_ldp_handover", default=None)


@contextmanager
def handed(handover: Handover) -> Iterator[None]:
    """Let the training find this round meanwhile."""
    token = _current.set(handover)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Handover:
    """Return the round that the gate holds for the message that is being answered.

    Raises
    ------
    ReleaseError
        If there is none: no ``LdpMod(train=DPSGDRelease())`` guards the app, or this is another
        thread than that of the app's handler.
    """
    found = _current.get()
    if found is None:
        raise ReleaseError(
            "no round of private training was charged here: guard the app by "
            "LdpMod(train=DPSGDRelease()), and train in the thread of its handler"
        )
    return found
