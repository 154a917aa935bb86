"""A progress bar at a terminal, and lines elsewhere."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from flwr.app import Message
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from flower_ldp.simulation.progress import Pace, Watcher

#: Between two looks at the clock of the display: a message may take less than a millisecond.
BAR_SECONDS, LINE_SECONDS = 0.1, 5.0


@contextlib.contextmanager
def watching(progress: bool | Watcher | None, rounds: int | None) -> Iterator[Watcher | None]:
    """Give who is told of messages and replies: a bar, lines, somebody else or nobody.

    Parameters
    ----------
    progress : bool or Watcher, optional
        None is a bar if the error output is a terminal, and nobody otherwise. True is lines where
        there is none.
    rounds : int, optional
        How many there will be, if known.
    """
    if progress is None:
        progress = sys.stderr.isatty()
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield None
    elif sys.stderr.isatty():
        with _bar() as show, contextlib.closing(Display(Pace(rounds), show, BAR_SECONDS)) as shown:
            yield shown
    else:
        with contextlib.closing(Display(Pace(rounds), _line, LINE_SECONDS)) as shown:
            yield shown


class Display:
    """Shows a run's pace now and then, and at its end.

    Parameters
    ----------
    pace : Pace
        Counts.
    show : callable
        Shows it.
    every : float
        Seconds between two times at least.
    clock : callable
        Returns seconds.
    """

    def __init__(
        self,
        pace: Pace,
        show: Callable[[Pace], None],
        every: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pace = pace
        self._show = show
        self._every = every
        self._clock = clock
        self._shown = clock()
        self._is_shown = True

    def sent(self, messages: Sequence[Message]) -> None:
        """Count messages."""
        self._pace.sent(messages)
        self._maybe_show()

    def answered(self, waiting: int) -> None:
        """Count a reply."""
        self._pace.answered(waiting)
        self._maybe_show()

    def close(self) -> None:
        """Show where the run ended."""
        if not self._is_shown:
            self._show(self._pace)

    def _maybe_show(self) -> None:
        now = self._clock()
        self._is_shown = now - self._shown >= self._every
        if self._is_shown:
            self._shown = now
            self._show(self._pace)


def _line(pace: Pace) -> None:
    said = ", ".join(part for part in (pace.text(), pace.clients(), pace.left()) if part)
    print(said, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[Pace], None]]:
    """Draw a bar, beneath what is logged meanwhile.

    No thread draws it, and the output of apps is not touched: a debugger's prompt stays whole.
    """
    columns = [TextColumn("{task.fields[text]}"), BarColumn()]
    columns += [TextColumn("{task.fields[clients]}"), TextColumn("{task.fields[left]}")]
    error_output = sys.stderr
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, auto_refresh=False, redirect_stdout=False)
    task = bar.add_task("", total=None, text="", clients="", left="")

    def show(pace: Pace) -> None:
        bar.update(
            task,
            total=pace.asked,
            completed=pace.answered_now,
            text=pace.text(),
            clients=pace.clients(),
            left=pace.left(),
        )
        bar.refresh()

    with bar, _logs_above(error_output):
        yield show


@contextlib.contextmanager
def _logs_above(error_output: TextIO) -> Iterator[None]:
    """Let logs go where the bar makes room for them: handlers keep the output they began with."""
    handlers = [
        handler
        for name in (None, "flwr")
        for handler in logging.getLogger(name).handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is error_output
    ]
    for handler in handlers:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler in handlers:
            handler.setStream(error_output)
