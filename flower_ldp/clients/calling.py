"""Calling the app: whatever it does, one thing comes of it.

An app that raises, exits, answers with an error, gives something that is no message, or is late
comes to the same as one that answers: a report of the same form leaves. The cause goes to the
client's log, cut to a bounded length, and to the owner's counter. In a simulation it is raised
instead, so that whoever writes the app sees it.

Where the owner sets a fixed moment, the app runs in a thread of its own. One that is late is
left behind: its answer is dropped, what it does to Flower's context is lost, and the thread goes
on until it or the process ends. What it takes of the processor can delay what comes after.
A failure is then logged and counted well before the moment or well after it, since between the
moment and the answer it would show in the time.

An app that failed for want of memory or of open files may still hold what it took. So what its
frames hold is let go before anything else is done, and the gate sets some descriptors aside before
it calls the app: whether a report can be kept must not depend on how the app failed.

The node's configuration is the operator's: what an app writes there is not kept. Flower gives an
app the very context that it stores afterwards, and stores what the app made of it: its node's
configuration too, which may name the policy by which the next message is judged. So the app gets a
context of its own, with the same state and copies of the configurations (:func:`kept_node_config`).

The run's configuration is not kept either. It is public, and a rehearsal sees it
(:mod:`~flower_ldp.clients.rehearsal`): an app that wrote there what it made of its data would find
it again where texts leave. What an app wants to keep goes into its state.
"""

from __future__ import annotations

import copy
import logging
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from flwr.app import Context, RecordDict

from flower_ldp.clients.diagnostics import cause_of
from flower_ldp.clients.permit import Handling
from flower_ldp.errors import ReleaseError, say

_log = logging.getLogger("flower_ldp")

ResultT = TypeVar("ResultT")
#: Seconds around a fixed moment in which no failure is logged or counted: that takes some time.
QUIET = 1.0
# The ledger, its journal, its folder, an anchor and the pipes of its command, twice over.
_SPARE_FILES = 24
_MOST_CHAINED = 100


class AppFailedError(ReleaseError):
    """In a simulation: the app failed, and the log says how."""


@dataclass(frozen=True)
class _Outcome(Generic[ResultT]):
    """What came of an attempt: a result, or what the log says of the error.

    The error itself is not kept, since its frames hold all that the app had in hand.
    """

    result: ResultT | None
    cause: str = ""
    interrupt: KeyboardInterrupt | None = None


@dataclass(frozen=True)
class AppCall:
    """One call of the app, for one message.

    Parameters
    ----------
    handling : Handling
        The owner's word on how an answer leaves.
    arrived : float
        When the message came, by :func:`time.monotonic`.
    context : Context
        Flower's. The app gets one of its own, of which the state is kept.
    """

    handling: Handling
    arrived: float
    context: Context

    def run(self, compute: Callable[[Context], ResultT], instead: Callable[[], ResultT]) -> ResultT:
        """Return what ``compute`` returns, or what ``instead`` returns if that failed.

        With a fixed moment it returns at that moment, and ``compute`` runs in another thread. The
        app may be left behind there, so its state is its own too, and kept if it was in time.

        Parameters
        ----------
        compute : callable
            Calls the app with the context that it is given, and builds what may leave.
        instead : callable
            Builds what leaves otherwise. It sees no private data.

        Raises
        ------
        AppFailedError
            In a simulation, if the app failed.
        KeyboardInterrupt
            If that is what the app raised, or what this process got: it is being killed.
        """
        if self.handling.answer_after is not None:
            return self._at(self.arrived + self.handling.answer_after, compute, instead)
        with kept_node_config(self.context) as given, _spare_files():
            outcome = _attempt(lambda: compute(given))
        if outcome.interrupt is not None:
            raise outcome.interrupt
        if outcome.result is not None:
            return outcome.result
        self._failed(outcome.cause)
        return instead()

    def _at(
        self, moment: float, compute: Callable[[Context], ResultT], instead: Callable[[], ResultT]
    ) -> ResultT:
        """Return at the moment what there is; in a simulation, raise as soon as the app failed."""
        own = copy.deepcopy(self.context)
        with _spare_files():
            # In a thread of its own, which may be left behind.
            outcomes: queue.SimpleQueue[_Outcome[ResultT]] = queue.SimpleQueue()

            def attempt() -> None:
                outcomes.put(_attempt(lambda: compute(own)))

            threading.Thread(target=attempt, name="flower-ldp-app", daemon=True).start()
            # Drawn in any case and before it is needed: at the moment, it costs no time.
            spare = instead()
            try:
                outcome = outcomes.get(timeout=max(0.0, moment - time.monotonic()))
            except queue.Empty:
                outcome = _Outcome(None, "it gave no answer by the fixed moment")
            if outcome.interrupt is not None:
                raise outcome.interrupt
            if outcome.result is None:
                left = moment - time.monotonic()
                if self.handling.is_simulation or left > QUIET:
                    self._failed(outcome.cause)
                else:  # waited for when the process ends, so that the count is not lost
                    threading.Timer(max(0.0, left) + QUIET, self._failed, (outcome.cause,)).start()
            time.sleep(max(0.0, moment - time.monotonic()))
        if outcome.result is None:
            return spare
        keep_state(self.context, own)
        return outcome.result

    def _failed(self, cause: str) -> None:
        if self.handling.is_simulation:
            say(_log, logging.ERROR, "simulation: no report leaves, the app failed: %s", cause)
            raise AppFailedError("the app failed in a simulation")
        text = "the app failed; what leaves has the form of any answer: %s"
        say(_log, logging.ERROR, text, cause)
        self.handling.failed()


def _attempt(compute: Callable[[], ResultT]) -> _Outcome[ResultT]:
    try:
        return _Outcome(compute())
    except KeyboardInterrupt as interrupt:
        return _Outcome(None, interrupt=interrupt)
    except BaseException as error:
        cause = cause_of(error)
        with suppress(Exception):  # the links of an app's error may be the app's code
            _let_go(error)
        return _Outcome(None, cause)


def _let_go(error: BaseException) -> None:
    """Clear the frames of an error and of those that led to it: files and memory are freed."""
    chained: BaseException | None = error
    for _ in range(_MOST_CHAINED):
        if chained is None:
            return
        traceback.clear_frames(chained.__traceback__)
        chained = chained.__cause__ or chained.__context__


@contextmanager
def _spare_files() -> Iterator[None]:
    """Set descriptors aside while the app runs, which may use up all others."""
    held: list[int] = []
    with suppress(OSError):  # of fewer the ledger was opened all the same, before the app is called
        held.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(_SPARE_FILES))
    try:
        yield
    finally:
        for one in held:
            with suppress(OSError):  # the app may have closed all that there was
                os.close(one)


@contextmanager
def kept_node_config(context: Context) -> Iterator[Context]:
    """Yield the context for the app, of which only the state is kept.

    Parameters
    ----------
    context : Context
        Flower's, which it stores when the message is answered. Its node, run and both
        configurations stay what they are, and nothing that the app holds leads to them.
    """
    own = copy.copy(context)
    own.node_config, own.run_config = dict(context.node_config), dict(context.run_config)
    try:
        yield own
    finally:
        keep_state(context, own)


def keep_state(context: Context, own: Context) -> None:
    """Give Flower's context the state of the app's, and nothing else of it.

    What Flower could not store, since the app took it away or put something else there, stays as
    it was. That must be no error: after the charge an answer has one form.
    """
    try:
        state = own.state
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an attribute can be the app's code
        say(_log, logging.ERROR, "the app left no state to be kept: %s", type(error).__name__)
        return
    if isinstance(state, RecordDict):
        context.state = state
