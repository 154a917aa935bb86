"""Deadlines for missing nodes and for replies that stop halfway.

Flower's call returns up to three minutes past the timeout if a node dies; here threads fetch
replies in groups. A reply that would take much more memory than was sent, or cannot be read,
becomes an error.
"""

import math
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from flower_ldp.errors import WireError
from flower_ldp.parameter_bounds import check_in
from flower_ldp.strategies.replies import check_result
from flower_ldp.wire.message_size import check_size, named

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
#: As long as Flower waits for replies if it is not told a timeout.
WAIT_SECONDS = 3_600.0


def send_and_receive(
    grid: Grid, messages: Iterable[Message], timeout: float | None = None
) -> list[Message]:
    """Return the replies that arrive in time."""
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
    while replies.missing and within(1.0):
        before, begun = len(replies.received), time.monotonic()
        for group in replies.groups():
            replies.ask(group)
            replies.take(within(GRACE_SECONDS))
            if not within(1.0):
                break
        if replies.missing:
            came = len(replies.received) > before
            pause = FIRST_PAUSE_SECONDS if came else 2 * pause
            # Where asking takes long, for many clients, ask for a third of the time at most.
            pause = min(max(pause, 2 * (time.monotonic() - begun)), LONGEST_PAUSE_SECONDS)
            replies.take(within(pause))
    return replies.received


def _bytes_of(message: Message) -> int:
    # Flower's count_bytes raises on an empty text, so other records count as they are sent.
    return sum(
        record.count_bytes() if isinstance(record, ArrayRecord) else len(record.deflate())
        for record in message.content.values()
    )


def _count_replies(grid: Grid, sent: int) -> None:
    for kind in type(grid).__mro__:
        module = vars(sys.modules[kind.__module__])
        found = module.get(_INFLATE)
        if found is not None:
            inflate = found.args[0] if isinstance(found, partial) else found
            module[_INFLATE] = partial(_inflate, inflate, sent)


def _inflate(
    inflate: Callable[..., Any], sent: int, name: str, contents: dict[str, bytes], **options: Any
) -> Any:
    own = contents[name]
    try:
        check_size(name, contents, 2 * sent)
        return inflate(name, contents, **options)
    except Exception as error:  # its text may be the client's
        said = error if isinstance(error, WireError) else type(error).__name__
        reason = Error(0, f"a reply that cannot be read: {said}")
        return _make(metadata=_metadata(own), error=reason)


def _metadata(content: bytes) -> Metadata:
    try:
        return Message.inflate(content, dict.fromkeys(named(content), RecordDict())).metadata
    except Exception:
        return Metadata(0, "", 0, 0, "", "", 0.0, 0.0, "query")


class _Replies:
    def __init__(
        self, pull: Callable[[Iterable[str]], Iterable[Message]], message_ids: Iterable[str]
    ) -> None:
        self.received: list[Message] = []
        self._pull = pull
        self.missing = set(message_ids)
        self._idle = set(self.missing)
        self._answers: queue.SimpleQueue[tuple[frozenset[str], list[Message] | BaseException]]
        self._answers = queue.SimpleQueue()

    def groups(self) -> list[frozenset[str]]:
        idle = sorted(self._idle)
        parts = min(GROUPS, len(idle))
        return [frozenset(idle[part::parts]) for part in range(parts)]

    def ask(self, group: frozenset[str]) -> None:
        """Fetch a group's replies, which Flower hands out only once."""
        self._idle -= group
        # Not to be waited for when the process ends.
        threading.Thread(target=self._fetch, args=(group,), daemon=True).start()

    def take(self, seconds: float) -> None:
        try:
            group, replies = self._answers.get(timeout=seconds)
        except queue.Empty:
            return
        if isinstance(replies, BaseException):
            raise replies
        self.received += replies
        self.missing -= {reply.metadata.reply_to_message_id for reply in replies}
        self._idle |= group & self.missing

    def _fetch(self, group: frozenset[str]) -> None:
        try:
            self._answers.put((group, list(self._pull(set(group)))))
        except BaseException as error:  # take raises it
            self._answers.put((group, error))


class NodesUnavailableError(RuntimeError):  # a state of the federation
    """Too few nodes were available for too long."""


def grid_with_deadlines(
    grid: Grid, wait_seconds: float = WAIT_SECONDS, *, clock: Callable[[], float] = time.monotonic
) -> Grid:
    """Return the grid with limits on waiting.

    Its ``get_node_ids`` raises :class:`NodesUnavailableError` ``wait_seconds`` after its first
    call, if nothing was sent in between. Its ``send_and_receive`` returns at the timeout with the
    replies so far. ``wait_seconds`` is in (0, inf), or ValueError; a dead node counts as available
    for up to a minute.

    Examples
    --------
    >>> def main(grid, context):
    ...     strategy.start(grid_with_deadlines(grid, wait_seconds=300), arrays, timeout=600)
    """
    check_in("(0, inf)", "wait_seconds", wait_seconds)
    if isinstance(grid, _GridWithDeadlines):
        return grid
    return cast(Grid, _GridWithDeadlines(grid, wait_seconds, clock))


class StrategyWithDeadlines(Strategy):
    """A strategy whose waiting ends."""

    def expect(self, rounds: int, arrays: ArrayRecord) -> None:
        """Begin a run."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = WAIT_SECONDS,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds as ``Strategy.start`` does, with limits on waiting and early ends.

        Too few nodes may be available for an hour, or as :func:`grid_with_deadlines` says. Replies
        after ``timeout`` seconds are dropped.

        Raises
        ------
        NodesUnavailableError
            If too few nodes were available for too long.
        RunStopped
            If no round gave a model, or clients fail, refuse or have no gate.
        """
        patient = grid_with_deadlines(grid)
        asked = cast(_GridWithDeadlines, patient).asked
        asked.clear()
        self.expect(num_rounds, initial_arrays)
        options = timeout, train_config, evaluate_config, evaluate_fn
        result = Strategy.start(self, patient, initial_arrays, num_rounds, *options)
        check_result(result, asked)
        return result


class _GridWithDeadlines:
    def __init__(self, grid: Grid, wait_seconds: float, clock: Callable[[], float]) -> None:
        self._grid = grid
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._asked_first: float | None = None
        #: Messages sent in this run, by type.
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def get_node_ids(self) -> Iterable[int]:
        nodes = list(self._grid.get_node_ids())
        now = self._clock()
        if self._asked_first is None:
            self._asked_first = now
        elif now - self._asked_first > self._wait_seconds:
            raise NodesUnavailableError(
                f"waited {now - self._asked_first:.0f} s for nodes: {len(nodes)} are there, "
                "and the strategy wants more"
            )
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._asked_first = None
        return self._grid.push_messages(messages)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        self._asked_first = None
        sent = list(messages)
        self.asked.update(message.metadata.message_type for message in sent)
        return send_and_receive(self._grid, sent, timeout)
