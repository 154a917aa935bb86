"""Replies until a deadline: what one node does not finish sending holds up nobody.

Flower asks for all replies of a round at once, and its call returns when each reply that a node
has *announced* is complete. A node that dies in between is waited for until the SuperLink gives
the reply up, three minutes later, whatever the round's timeout says. Here replies are asked for
in groups, each in a thread of its own: a group that is not answered at once is left to its
thread, and at the deadline whatever is missing is missing.

Nor can a node's reply take more memory than its bytes say, or end the run: Flower builds it from
objects that may be named very often, or be none. One that it should not build comes as an error.
"""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from flwr.app import Error, Message, Metadata, RecordDict
from flwr.serverapp import Grid

from flower_ldp.errors import WireError
from flower_ldp.wire.objects import check_size, named

__all__ = ["send_and_receive"]

#: By what the modules of Flower's grids build a message from its objects.
_INFLATE = "inflate_object_from_contents"
#: Bytes that a reply may take in any case: of the names of some thousand arrays.
_LEAST = 1 << 22
_make = cast(Callable[..., Message], Message)  # of metadata that are complete

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
    messages = list(messages)
    _count_replies(grid, max([_LEAST, *map(_bytes_of, messages)]))
    replies = _Replies(grid.pull_messages, grid.push_messages(messages))
    end = math.inf if timeout is None else time.monotonic() + timeout

    def within(seconds: float) -> float:
        return max(0.0, min(seconds, end - time.monotonic()))

    pause = FIRST_PAUSE_SECONDS
    while not replies.complete and within(1.0):
        before, begun = len(replies.received), time.monotonic()
        for group in replies.groups():
            replies.ask(group)
            replies.take(within(GRACE_SECONDS))
            if not within(1.0):
                break
        if not replies.complete:
            came = len(replies.received) > before
            pause = FIRST_PAUSE_SECONDS if came else 2 * pause
            # Where asking takes long, for many clients, ask for a third of the time at most.
            pause = min(max(pause, 2 * (time.monotonic() - begun)), LONGEST_PAUSE_SECONDS)
            replies.take(within(pause))
    return replies.received


def _bytes_of(message: Message) -> int:
    return sum(record.count_bytes() for record in message.content.values())


def _count_replies(grid: Grid, sent: int) -> None:
    """Have a grid of Flower's build no reply that takes much more than what was sent."""
    for kind in type(grid).__mro__:
        module = vars(sys.modules[kind.__module__])
        found = module.get(_INFLATE)
        if found is not None:
            inflate = found.inflate if isinstance(found, _Counted) else found
            module[_INFLATE] = _Counted(inflate, sent)


@dataclass(frozen=True)
class _Counted:
    inflate: Callable[..., Any]
    sent: int

    def __call__(self, name: str, contents: dict[str, bytes], **options: Any) -> Any:
        own = contents[name]
        try:
            check_size(name, contents, self.sent)
            return self.inflate(name, contents, **options)
        except Exception as error:  # its text may be the client's
            said = error if isinstance(error, WireError) else type(error).__name__
            reason = Error(0, f"a reply that cannot be read: {said}")
            return _make(metadata=_metadata(own), error=reason)


def _metadata(content: bytes) -> Metadata:
    """Return a message's metadata from its own object; nobody's if that is none."""
    try:
        return Message.inflate(content, dict.fromkeys(named(content), RecordDict())).metadata
    except Exception:
        return Metadata(0, "", 0, 0, "", "", 0.0, 0.0, "query")


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
