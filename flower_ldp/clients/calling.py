"""Calling the app: whatever it does, one thing comes of it.

An app that raises, exits, answers with an error, gives something that is no message, or is late
comes to the same as one that answers: a report of the same form leaves. The cause goes to the
client's log, cut to a bounded length, and to the owner's counter. In a simulation it is raised
instead, so that whoever writes the app sees it.

Where the owner sets a fixed moment, the app runs in a thread of its own. One that is late is
left behind: its answer is dropped, what it does to Flower's context is lost, and the thread goes
on until it or the process ends. What it takes of the processor can delay what comes after.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from flower_ldp.clients.admission import Handling
from flower_ldp.errors import ReleaseError

_log = logging.getLogger("flower_ldp")

ResultT = TypeVar("ResultT")
#: Longest text of a cause in the log, in characters.
MOST_CAUSE = 8_000


class AppFailedError(ReleaseError):
    """In a simulation: the app failed, and the log says how."""


@dataclass(frozen=True)
class _Outcome(Generic[ResultT]):
    """What came of an attempt: a result, or an error and what the log says of it."""

    result: ResultT | None
    error: BaseException | None = None
    cause: str = ""


@dataclass(frozen=True)
class AppCall:
    """One call of the app, for one message.

    Parameters
    ----------
    handling : Handling
        The owner's word on how an answer leaves.
    arrived : float
        When the message came, by :func:`time.monotonic`.
    """

    handling: Handling
    arrived: float

    def run(self, compute: Callable[[], ResultT], instead: Callable[[], ResultT]) -> ResultT:
        """Return what ``compute`` returns, or what ``instead`` returns if that failed.

        With a fixed moment it returns at that moment, and ``compute`` runs in another thread.

        Parameters
        ----------
        compute : callable
            Calls the app and builds what may leave.
        instead : callable
            Builds what leaves otherwise. It sees no private data.

        Raises
        ------
        AppFailedError
            In a simulation, if the app failed.
        KeyboardInterrupt
            If that is what the app raised, or what this process got: it is being killed.
        """
        after = self.handling.answer_after
        spare: ResultT | None = None
        if after is None:
            outcome = _attempt(compute)
        else:
            attempt = _Attempt(compute)
            # Drawn in any case and before it is needed: at the moment, it costs no time.
            spare = instead()
            outcome = attempt.at(self.arrived + after, at_once=self.handling.is_simulation)
        if isinstance(outcome.error, KeyboardInterrupt):
            raise outcome.error
        if outcome.result is not None:
            return outcome.result
        self._failed(outcome.cause)
        return instead() if spare is None else spare

    def _failed(self, cause: str) -> None:
        if self.handling.is_simulation:
            _log.error("simulation: no report leaves, the app failed\n%s", cause)
            raise AppFailedError("the app failed in a simulation")
        _log.error("the app failed; what leaves has the form of any answer\n%s", cause)
        self.handling.failed()


class _Attempt(Generic[ResultT]):
    """An attempt in a thread of its own, which may be left behind."""

    def __init__(self, compute: Callable[[], ResultT]) -> None:
        self._outcomes: queue.SimpleQueue[_Outcome[ResultT]] = queue.SimpleQueue()
        thread = threading.Thread(
            target=lambda: self._outcomes.put(_attempt(compute)),
            name="flower-ldp-app",
            daemon=True,
        )
        thread.start()

    def at(self, moment: float, *, at_once: bool) -> _Outcome[ResultT]:
        """Return at the moment what there is; a failure as soon as it is there, if asked for."""
        try:
            outcome = self._outcomes.get(timeout=max(0.0, moment - time.monotonic()))
        except queue.Empty:
            return _Outcome(None, TimeoutError(), "it gave no answer by the fixed moment")
        if isinstance(outcome.error, KeyboardInterrupt) or (outcome.error and at_once):
            return outcome
        time.sleep(max(0.0, moment - time.monotonic()))
        return outcome


def _attempt(compute: Callable[[], ResultT]) -> _Outcome[ResultT]:
    try:
        return _Outcome(compute())
    except BaseException as error:
        return _Outcome(None, error, cause_of(error))


def cause_of(error: BaseException) -> str:
    """Return the traceback and the text of an error, cut to a bounded length."""
    try:
        return cut_middle("".join(traceback.format_exception(error)))
    except BaseException:  # the error's own text is the app's code too
        return cut_middle(f"{type(error).__name__}, which cannot be shown")


def cut_middle(text: str) -> str:
    """Return the beginning and the end of a text that is too long for a log."""
    if len(text) <= MOST_CAUSE:
        return text
    half = MOST_CAUSE // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n... {left_out} characters are left out ...\n{text[-half:]}"
