"""Replies until a deadline: what one node does not finish sending holds up nobody.

Flower asks for all replies of a round at once, and its call returns when each reply that a node
has *announced* is complete. A node that dies in between is waited for until the SuperLink gives
the reply up, three minutes later, whatever the round's timeout says. Here replies are asked for
in groups, each in a thread of its own: a group that is not answered at once is left to its
thread, and at the deadline whatever is missing is missing.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

__all__ = ["send_and_receive"]

#: Requests per look at what has come. In a round of at most so many clients no reply can hold up
#: another; in a larger one, only those of its group.
GROUPS = 64
#: How long a request is waited for before the next one is made beside it.
GRACE_SECONDS = 0.5
#: Between one look and the next: short at first and when something came, as in a simulation.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 3.0


def send_and_receive(
    grid: Grid, messages: Iterable[Message], timeout: float | None = None
) -> list[Message]:
    """Send messages and return the replies that are there in time.

    Parameters
    ----------
    grid : Grid
        Of the server app.
    messages : iterable of Message
        To nodes.
    timeout : float, optional
        Seconds from when they are sent; None waits for every reply.

    Returns
    -------
    list of Message
        Replies and errors, as Flower's ``Grid.send_and_receive`` returns them. One that comes
        later is dropped.
    """
    if getattr(grid, "keeps_time_limits", False) is True:
        # Nothing arrives by halves there, and its clock need not be the machine's.
        return list(grid.send_and_receive(messages, timeout=timeout))
    replies = _Replies(grid.pull_messages, grid.push_messages(list(messages)))
    deadline = _Deadline(timeout)
    pause = FIRST_PAUSE_SECONDS
    while not (replies.complete or deadline.passed):
        before, begun = len(replies.received), time.monotonic()
        for group in replies.groups():
            replies.ask(group)
            replies.take(deadline.within(GRACE_SECONDS))
            if deadline.passed:
                break
        if not replies.complete:
            came = len(replies.received) > before
            pause = FIRST_PAUSE_SECONDS if came else 2 * pause
            # Where asking takes long, for many clients, ask for a third of the time at most.
            pause = min(max(pause, 2 * (time.monotonic() - begun)), LONGEST_PAUSE_SECONDS)
            replies.take(deadline.within(pause))
    return replies.received


class _Deadline:
    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    @property
    def passed(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def within(self, seconds: float) -> float:
        """Return the seconds, or what is left if that is less."""
        return (
            seconds if self._end is None else max(0.0, min(seconds, self._end - time.monotonic()))
        )


@dataclass(frozen=True)
class _Answer:
    """What came of asking for the replies to a group of messages."""

    group: frozenset[str]
    replies: tuple[Message, ...] = ()
    error: BaseException | None = None


class _Replies:
    """The replies to some messages: received, being fetched, or to be asked for (again)."""

    def __init__(
        self, pull: Callable[[Iterable[str]], Iterable[Message]], message_ids: Iterable[str]
    ) -> None:
        self.received: list[Message] = []
        self._pull = pull
        self._missing = set(message_ids)
        self._idle = set(self._missing)
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()

    @property
    def complete(self) -> bool:
        return not self._missing

    def groups(self) -> list[frozenset[str]]:
        """Return the messages that nobody is asking about, in at most :data:`GROUPS` parts."""
        idle = sorted(self._idle)
        parts = min(GROUPS, len(idle))
        return [frozenset(idle[part::parts]) for part in range(parts)]

    def ask(self, group: frozenset[str]) -> None:
        """Begin to fetch a group's replies.

        Nobody may ask for them again meanwhile: Flower hands a reply out once.
        """
        self._idle -= group
        # Not to be waited for when the process ends.
        threading.Thread(target=self._fetch, args=(group,), daemon=True).start()

    def take(self, seconds: float) -> None:
        """Wait until one more group was answered, at most so long.

        Raises
        ------
        Exception
            What asking for it raised.
        """
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            return
        if answer.error is not None:
            raise answer.error
        self.received += answer.replies
        self._missing -= {reply.metadata.reply_to_message_id for reply in answer.replies}
        self._idle |= answer.group & self._missing

    def _fetch(self, group: frozenset[str]) -> None:
        try:
            self._answers.put(_Answer(group, tuple(self._pull(set(group)))))
        except BaseException as error:  # take raises it
            self._answers.put(_Answer(group, error=error))
