"""Sessions between the gate and the package's own training and evaluation in the app.

They guard against mistakes only: an app can reach any object in its process.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import islice
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from flower_ldp.clients.permit import GrantedRound
from flower_ldp.errors import ReleaseError
from flower_ldp.mechanisms.example_sums import ExampleMean
from flower_ldp.mechanisms.joint_counts import JointCounts
from flower_ldp.mechanisms.random import Ints

Arrays = Mapping[str, NDArray[Any]]
#: What one example is in a rehearsal, which does not know the owner's policy.
UNKNOWN = "unknown"


@dataclass
class TrainingSession:
    """One round of private training; a ``rehearsal`` raises a row's error."""

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
        """Use up the round's steps; ReleaseError the second time."""
        # Never given back: of several threads one gets the steps.
        if not self._steps.acquire(blocking=False):
            raise ReleaseError("the steps of this round are used: one message, one training")

    @property
    def is_done(self) -> bool:
        """Whether the training is complete."""
        return self.trained is not None


MechanismT = TypeVar("MechanismT", ExampleMean, JointCounts)
TotalT = TypeVar("TotalT", int, Ints)


@dataclass
class _Evaluation(Generic[MechanismT, TotalT]):
    mechanism: MechanismT
    example: str
    sent: Arrays
    total: TotalT | None = None
    rehearsal: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the count is complete."""
        return self.total is not None

    def finish(self, total: TotalT) -> None:
        """Store the count; raise ReleaseError if there is one."""
        if self.total is not None:
            raise ReleaseError("this evaluation was counted: one message, one count")
        self.total = total


class CountSession(_Evaluation[ExampleMean, int]):
    """One evaluation. ``total`` is **private**: the exact count."""


class RankingSession(_Evaluation[JointCounts, Ints]):
    """One evaluation. ``total`` is **private**: the exact counts, of negatives first."""


SessionT = TypeVar("SessionT", TrainingSession, CountSession, RankingSession)
Session = TrainingSession | CountSession | RankingSession
_current = ContextVar[Session | None]("flower_ldp_handover", default=None)


@contextmanager
def in_session(session: Session) -> Iterator[None]:
    """Make the session available in the app."""
    token = _current.set(session)
    try:
        yield
    finally:
        _current.reset(token)


def current_session(kind: type[SessionT]) -> SessionT:
    """Return this thread's session, or raise ReleaseError."""
    found = _current.get()
    if not isinstance(found, kind):
        raise ReleaseError(
            "nothing was charged here for this: guard the app by LdpMod(train=DPSGDRelease(), "
            "evaluate=AccuracyRelease() or AUCRelease()), and call this in its handler's thread"
        )
    return found


#: The most rows of an example that count in a step: every example fills as many places.
MOST_ROWS = 1_000


class Data(Protocol):
    """Rows read by index, as torch's map-style data sets."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, index: int, /) -> Any:
        """Return a row: numbers, a tuple or list with its target last, or for a loss any form."""


#: Types of keys, besides tuples of these.
_KEYS = (str, bytes, int, bool, float, UUID, date, datetime)


def by_group(groups: Iterable[Hashable] | None, rows: int) -> list[NDArray[np.int64]]:
    """Return the row numbers of each group, int64; without groups each row is one.

    ``groups`` is **private**. A missing or failing entry, None, "" and NaN are no group. Arrays and
    tensors are compared by value.
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
    if getattr(group, "ndim", None) == 0 and hasattr(group, "item"):
        group = group.item()
    if type(group) is tuple:
        parts = tuple(map(_key, group))
        return None if None in parts else parts
    if type(group) not in _KEYS or group == "":  # others compare by code of their own
        return None
    return group if group == group else None  # NaN is not itself
