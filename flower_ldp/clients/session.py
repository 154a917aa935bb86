"""What the gate hands to the package's own training, and takes back from it: never from the app.

While an app answers a message, the gate holds one :class:`TrainingSession`: the model that the
server sent, the round that was charged, and a place for the model that the training makes. The
training finds it by a context variable, so an app neither gets it nor gives it back. What the app
replies is not looked at.

In the app's process this is a guard against mistakes. An app that wants to can reach any object of
its process, this one too: who pins the app decides what it does.

Rows of private data are read as an app gives them (:class:`Data`), and :func:`by_group` says which
belong to which example.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from flower_ldp.clients.permit import GrantedRound
from flower_ldp.errors import ReleaseError
from flower_ldp.mechanisms.example_sums import ExampleMean

Arrays = Mapping[str, NDArray[Any]]
#: What one example is in a rehearsal, which does not know the owner's policy.
UNKNOWN = "unknown"


@dataclass
class TrainingSession:
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
class CountSession:
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


SessionT = TypeVar("SessionT", TrainingSession, CountSession)
_current = ContextVar[TrainingSession | CountSession | None]("flower_ldp_handover", default=None)


@contextmanager
def in_session(session: TrainingSession | CountSession) -> Iterator[None]:
    """Let the package's own code in the app find this meanwhile."""
    token = _current.set(session)
    try:
        yield
    finally:
        _current.reset(token)


def current_session(kind: type[SessionT]) -> SessionT:
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
            "nothing was charged here for this: guard the app by LdpMod(train=DPSGDRelease(), "
            "evaluate=AccuracyRelease(epsilon=...)), and call this in the thread of its handler"
        )
    return found


#: The most rows of an example that count in a step: every example fills as many places.
MOST_ROWS = 1_000


class Data(Protocol):
    """Rows read by index: what torch calls a map-style data set."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, index: int, /) -> Any:
        """Return a row: numbers, or a tuple or list that may end with its target or label."""


def by_group(groups: Iterable[Hashable] | None, rows: int) -> list[NDArray[np.int64]]:
    """Return the rows of each group; without groups each row is one.

    Parameters
    ----------
    groups : iterable of hashable, optional
        **Private**: of each row, whose it is. Fewer than there are rows leave rows without a group.
        A sequence is read by index: a place that raises is a row without a group. Arrays and
        tensors are read as the numbers that are in them.
    rows : int
        Number of rows.

    Returns
    -------
    list of ndarray of int64
        A row that belongs to nobody is in none.

    Raises
    ------
    ValueError
        If the groups are no list of places, as a dictionary or a set.
    """
    if groups is None:
        return [np.array([row]) for row in range(rows)]
    if isinstance(groups, (Mapping, Set)):
        raise ValueError("groups must say of each row, in the order of rows, whose it is")
    found: dict[Hashable, list[int]] = {}
    for row, group in enumerate(islice(_each(groups), rows)):
        with suppress(Exception):  # comparing keys is their own code
            if (key := _key(group)) is not None:
                found.setdefault(key, []).append(row)
    return [np.array(members, dtype=np.int64) for members in found.values()]


def _each(groups: Iterable[Hashable]) -> Iterator[Hashable]:
    if not isinstance(groups, Sequence):
        yield from groups
        return
    for place in range(len(groups)):
        try:
            group = groups[place]
        except KeyboardInterrupt:
            raise
        except BaseException:  # as of a row: it is this place's alone
            group = None
        yield group


def _key(group: Hashable) -> Hashable:
    """Return what tells a group from others by its value, or None if nothing does.

    None, an empty text and NaN are nobody's. Of numbers in arrays it is the number. What is told
    apart by where it lies in memory, as tensors are and objects without a hash of their own, would
    make each row somebody else's.
    """
    if getattr(group, "ndim", None) == 0 and hasattr(group, "item"):
        group = group.item()
    if type(group) is tuple:
        parts = tuple(map(_key, group))
        return None if None in parts else parts
    if group is None or group == "" or type(group).__hash__ is object.__hash__:
        return None
    hash(group)
    return group if (group == group) is True else None  # NaN is not itself, a tensor not one truth
