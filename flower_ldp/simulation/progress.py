"""Progress of a run, as a bar at a terminal and as lines elsewhere."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from flwr.app import Message
from rich.console import Console
from rich.progress import BarColumn, Progress

#: Where Flower's strategies write the number of a round.
ROUND_KEY = "server-round"


class Watcher:
    """Is called for messages and replies, one call at a time; this one does nothing."""

    def sent(self, messages: Sequence[Message]) -> None:
        """Note messages that are sent together; at least one."""

    def answered(self, waiting: int) -> None:
        """Note a reply or error, and how many messages still wait."""


@dataclass(eq=False)
class RunProgress(Watcher):
    """Counts replies, estimates the remaining time, and is shown now and then.

    The round is the strategy's own number in its messages; without one, each push is a round.
    ``show`` is called with this, at most once in ``every`` seconds.
    """

    rounds: int | None = None
    show: Callable[[RunProgress], None] = lambda _: None
    every: float = 0.0
    clock: Callable[[], float] = time.monotonic
    #: The round's number, from 1; 0 before the first.
    round: int = field(default=0, init=False)
    #: The type of the last messages, as ``train``.
    kind: str = field(default="", init=False)
    #: How many were sent together with the last ones, and how many of these were answered.
    asked: int = field(default=0, init=False)
    answered_now: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._shown, self._is_shown = self.clock(), True
        self._first, self._first_began = 0, 0.0
        self._round_began = self._push_began = 0.0

    def sent(self, messages: Sequence[Message]) -> None:
        """Count from 0, unless this round goes on."""
        now = self.clock()
        still_wait = self.answered_now < self.asked
        number = _round_of(messages[0]) or (self.round if still_wait else self.round + 1)
        if number != self.round:
            if not self.round:
                self._first, self._first_began = number, now
            self.round, self._round_began = number, now
            still_wait = False  # those of a round that is over
        if not still_wait:
            self.asked = self.answered_now = 0
            self._push_began = now
        self.kind = messages[0].metadata.message_type
        self.asked += len(messages)
        self._maybe_show(now)

    def answered(self, waiting: int) -> None:
        """Count a reply."""
        del waiting  # those of earlier rounds are among them
        self.answered_now = min(self.answered_now + 1, self.asked)
        self._maybe_show(self.clock())

    def close(self) -> None:
        """Show the end of the run."""
        if not self._is_shown:
            self.show(self)

    @property
    def seconds_left(self) -> float | None:
        """Seconds left of the run or, by default, the round; None at first."""
        now = self.clock()
        rounds_left = max(0, self.rounds - self.round) if self.rounds else 0
        done = self.round - self._first
        if self.rounds and done:
            each = (self._round_began - self._first_began) / done
            return rounds_left * each + max(0.0, each - (now - self._round_began))
        if not self.answered_now:
            return None
        each = (now - self._push_began) / self.answered_now
        return each * (self.asked - self.answered_now + rounds_left * self.asked)

    def text(self) -> str:
        """Return the round and the kind of its messages."""
        of = f" of {self.rounds:,}" if self.rounds else ""
        return f"round {self.round:,}{of}, {self.kind}"

    def clients(self) -> str:
        """Return how many clients have answered."""
        return f"{self.answered_now:,} of {self.asked:,} clients"

    def left(self) -> str:
        """Return how long the rest takes."""
        seconds = self.seconds_left
        if seconds is None:
            return ""
        if round(seconds) < 100:
            return f"{round(seconds)} s left"
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours} h {minutes} min left" if hours else f"{minutes} min left"

    def _maybe_show(self, now: float) -> None:
        self._is_shown = now - self._shown >= self.every
        if self._is_shown:
            self._shown = now
            self.show(self)


def _round_of(message: Message) -> int | None:
    records = message.content.config_records.values() if message.has_content() else ()
    numbers = (record.get(ROUND_KEY) for record in records)
    return next((one for one in numbers if isinstance(one, int) and one > 0), None)


#: Between two looks at the clock of the display: a message may take less than a millisecond.
BAR_SECONDS, LINE_SECONDS = 0.1, 5.0


@contextlib.contextmanager
def watching(progress: bool | Watcher | None, rounds: int | None) -> Iterator[Watcher]:
    """Return a watcher that shows a bar or lines, or the given one.

    None is a bar if the error output is a terminal, else nothing. True is lines where there is no
    terminal.
    """
    at_terminal = sys.stderr.isatty()
    progress = at_terminal if progress is None else progress
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield Watcher()
    else:
        every = BAR_SECONDS if at_terminal else LINE_SECONDS
        showing = _bar() if at_terminal else contextlib.nullcontext(_line)
        with showing as show, contextlib.closing(RunProgress(rounds, show, every)) as shown:
            yield shown


def _line(pace: RunProgress) -> None:
    said = ", ".join(part for part in (pace.text(), pace.clients(), pace.left()) if part)
    print(said, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[RunProgress], None]]:
    error_output, console = sys.stderr, Console(stderr=True)
    columns = "{task.description}", BarColumn(), "{task.fields[clients]}", "{task.fields[left]}"
    bar = Progress(*columns, console=console, auto_refresh=False, redirect_stdout=False)
    task = bar.add_task("", total=None, clients="", left="")

    def show(pace: RunProgress) -> None:
        bar.update(
            task,
            total=pace.asked,
            completed=pace.answered_now,
            description=pace.text(),
            refresh=True,
            clients=pace.clients(),
            left=pace.left(),
        )

    with bar, contextlib.ExitStack() as stack:
        # Handlers keep the output they began with; the bar makes room for what is logged.
        for handler in [*logging.getLogger().handlers, *logging.getLogger("flwr").handlers]:
            if isinstance(handler, logging.StreamHandler) and handler.stream is error_output:
                handler.setStream(sys.stderr)
                stack.callback(handler.setStream, error_output)
        yield show
