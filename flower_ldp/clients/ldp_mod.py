"""The gate: a Flower mod that lets only private reports leave a client.

Release, proposal and authorizer are consulted by public data. Then the app runs, the permit keeps
the private report, and a new reply is built from it. Nothing of the app's reply and no text of an
exception leaves.

**After the charge every answer has the same form.** If the app fails or is late, a neutral report
leaves, or in a simulation an error (docs/failures.md). ``KeyboardInterrupt`` counts as a killed
process and is not answered. Other errors have constant reasons (:mod:`flower_ldp.refusals`).

**Side channels** (docs/threat_model.md). All reports to one proposal have one length. At a fixed
moment a late app's answer and context are dropped, and failures are logged well before or after it.
Frames of a failed app are cleared and spare file descriptors reserved, so that keeping a report
does not depend on the failure.

**Context.** Only the app's state is kept: a changed configuration could name another policy, or
carry private data into a rehearsal.
"""

from __future__ import annotations

import copy
import logging
import os
import queue
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from flower_ldp import inner_gate
from flower_ldp.clients import release
from flower_ldp.clients.authorizer import OwnerAuthorizer
from flower_ldp.clients.diagnostics import cause_of, log_refusal
from flower_ldp.clients.permit import Authorizer, Permit, ReplyTiming
from flower_ldp.clients.rehearsal import Rehearsal
from flower_ldp.clients.release import OpenRelease, Release
from flower_ldp.errors import RefusalError, ReleaseError, say
from flower_ldp.mechanisms.inputs import noted
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.refusals import FAILED

_log = logging.getLogger("flower_ldp")
ResultT = TypeVar("ResultT")
#: Seconds around a fixed moment in which no failure is logged or counted: that takes some time.
QUIET = 1.0
# The ledger, its journal, its folder, an anchor and the pipes of its command, twice over.
_SPARE_FILES = 24
_MOST_CHAINED = 100


class LdpMod:
    """Flower client mod that lets only private reports leave.

    Put it **first** in the list of mods: the gate does not guard mods outside of it.

    Parameters
    ----------
    train, evaluate, query : Release, optional
        Privatizes replies of this type. A type without a release is refused before the app runs.
    authorizer : Authorizer, optional
        By default :class:`~flower_ldp.clients.OwnerAuthorizer`. Without a policy nothing leaves,
        also in a simulation.
    actions : mapping of str to Release, optional
        For message types with an action, such as ``"train.forward"``.
    acknowledged : collection of str
        Message types that get an empty reply, if the authorizer allows it.
    rehearsal : Rehearsal, optional
        Runs before a run's first charge. Its error text leaves.

    Raises
    ------
    ValueError
        If a message type is both released and acknowledged.
    TypeError
        If a release or the rehearsal is of a wrong type.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> from flower_ldp.clients import LdpMod, SignDSRelease
    >>> app = ClientApp(mods=[LdpMod(train=SignDSRelease())])
    """

    def __init__(
        self,
        *,
        train: Release | None = None,
        evaluate: Release | None = None,
        query: Release | None = None,
        authorizer: Authorizer | None = None,
        actions: Mapping[str, Release] | None = None,
        acknowledged: Collection[str] = (),
        rehearsal: Rehearsal | None = None,
    ) -> None:
        given = {MessageType.TRAIN: train, MessageType.EVALUATE: evaluate, MessageType.QUERY: query}
        self._releases = _checked({**given, **(actions or {})})
        if not isinstance(rehearsal, Rehearsal | None):
            raise TypeError(f"rehearsal must be as Rehearsal(train=...), got {rehearsal!r:.100}")
        self._rehearsal = Rehearsal() if rehearsal is None else rehearsal
        self._acknowledged = frozenset(acknowledged)
        both = self._acknowledged & self._releases.keys()
        if both:
            raise ValueError(f"either released or acknowledged, not both: {sorted(both)}")
        self._authorizer: Authorizer = OwnerAuthorizer() if authorizer is None else authorizer

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer one message by a private report, an empty reply or a constant error.

        In an app of a guarded node it steps aside (:mod:`flower_ldp.inner_gate`).
        """
        arrived = time.monotonic()

        def ask(own: Context) -> Message:
            return call_next(release.for_app(message, released=True), own)

        if inner_gate.node_privatizes:  # it has charged this message, and privatizes the answer
            return call_next(message, context)
        try:
            if message.metadata.message_type in self._acknowledged:
                return self._acknowledge(message, context, call_next, arrived)
            # By public facts alone: what is refused is refused here, before the app is called.
            opened = release.open_proposal(self._releases, message)
            try:
                self._rehearsal.run(opened, message, context)
            except RefusalError:  # without the authorizer its text is not told either
                self._authorizer.acknowledge(message.metadata.message_type, context)
                raise
            permit = self._authorizer.authorize(opened.request(message.metadata), context)
            with closing(permit):
                opened, payload = opened.with_permit(permit), permit.stored
                if payload is None:  # else the message gets the report that it got before
                    call = AppCall(permit.timing, arrived, context)
                    payload = _new_report(opened, permit, call, ask)
                return Message(opened.content(payload), reply_to=message)
        except RefusalError as refusal:
            log_refusal(message.metadata.run_id, refusal)
            return release.constant(refusal.code, message)
        except AppFailedError:
            return release.constant(FAILED, message)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return release.failed(message, error)

    def _acknowledge(
        self, message: Message, context: Context, call_next: ClientAppCallable, arrived: float
    ) -> Message:
        timing = self._authorizer.acknowledge(message.metadata.message_type, context)

        def taken(own: Context) -> bytes:
            release.content_of(call_next(release.for_app(message, released=False), own))
            return b""

        return release.report(AppCall(timing, arrived, context).run(taken, lambda: b""), message)


def _new_report(
    opened: OpenRelease, permit: Permit, call: AppCall, ask: Callable[[Context], Message]
) -> bytes:

    def computed(own: Context) -> tuple[bytes, bool]:
        return _private_report(opened, permit.timing, lambda: ask(own)), False

    payload, is_last = call.run(computed, lambda: (_neutral(opened), True))
    # What ends with a failure ends with the answer, not a second later.
    permit.keep(payload, is_last)
    return payload


def _private_report(opened: OpenRelease, timing: ReplyTiming, ask: Callable[[], Message]) -> bytes:
    try:
        content = opened.reply(lambda: release.content_of(ask()), timing)
    except release.IncompleteError as error:
        if timing.is_simulation:
            raise
        say(_log, logging.ERROR, "the app failed in a part: %s", cause_of(error))
        timing.failed()
        content = error.content
    # What the app told numpy to do about floating-point errors must not decide what leaves.
    with np.errstate(all="ignore"), noted() as unread:
        # A fresh key for each reply: simulation resets a mod's attributes at every call.
        payload = opened.privatize(content, RandomSource.from_os())
        if unread and timing.is_simulation:
            names = ", ".join(dict.fromkeys(unread))
            told = opened.complaint(content) or f"the app's reply cannot be read by {names}"
            raise ReleaseError(told)
    if unread:
        timing.failed()
    return payload


def _neutral(opened: OpenRelease) -> bytes:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an app may have made errors of them
        return opened.neutral(RandomSource.from_os())


def _checked(given: Mapping[str, Release | None]) -> dict[str, Release]:
    for kind, one in given.items():
        if isinstance(one, type):
            raise TypeError(f"{kind} must be a release: write {kind}={one.__name__}()")
        if one is not None and not callable(getattr(one, "open", None)):
            told = (
                "as SignDSRelease() or ProtectedEvalRelease(); epsilons are the server's to propose"
            )
            raise TypeError(f"{kind} must be a release, {told}: got {one!r:.100}")
    return {kind: one for kind, one in given.items() if one is not None}


class AppFailedError(ReleaseError):
    """The app failed in a simulation."""


@dataclass(frozen=True)
class _Outcome(Generic[ResultT]):
    result: ResultT | None
    cause: str = ""
    interrupt: KeyboardInterrupt | None = None


@dataclass(frozen=True)
class AppCall:
    """One call of the app for a message."""

    timing: ReplyTiming
    arrived: float
    context: Context

    def run(self, compute: Callable[[Context], ResultT], instead: Callable[[], ResultT]) -> ResultT:
        """Return ``compute``'s result, or ``instead``'s if ``compute`` failed or is late.

        ``instead`` sees no private data. Raises AppFailedError in a simulation.
        """
        if self.timing.answer_after is not None:
            return self._at(self.arrived + self.timing.answer_after, compute, instead)
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
        # Nothing else is copied: what a mod outside of the gate hung onto the context may not copy.
        own = replace(self.context)
        for part in ("node_config", "state", "run_config"):
            setattr(own, part, copy.deepcopy(getattr(self.context, part)))
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
                if self.timing.is_simulation or left > QUIET:
                    self._failed(outcome.cause)
                else:  # waited for when the process ends, so that the count is not lost
                    threading.Timer(max(0.0, left) + QUIET, self._failed, (outcome.cause,)).start()
            time.sleep(max(0.0, moment - time.monotonic()))
        if outcome.result is None:
            return spare
        keep_state(self.context, own)
        return outcome.result

    def _failed(self, cause: str) -> None:
        if self.timing.is_simulation:
            say(_log, logging.ERROR, "simulation: no report leaves, the app failed: %s", cause)
            raise AppFailedError("the app failed in a simulation")
        say(_log, logging.ERROR, "the app failed; what leaves looks like any answer: %s", cause)
        self.timing.failed()


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
    chained: BaseException | None = error
    for _ in range(_MOST_CHAINED):
        if chained is None:
            return
        traceback.clear_frames(chained.__traceback__)
        chained = chained.__cause__ or chained.__context__


@contextmanager
def _spare_files() -> Iterator[None]:
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
    """Yield a copy of the context; only its state is kept."""
    own = copy.copy(context)
    own.node_config, own.run_config = dict(context.node_config), dict(context.run_config)
    try:
        yield own
    finally:
        keep_state(context, own)


def keep_state(context: Context, own: Context) -> None:
    """Copy the app's state into Flower's context, if possible."""
    try:
        state = own.state
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an attribute can be the app's code
        say(_log, logging.ERROR, "the app left no state to be kept: %s", type(error).__name__)
        return
    if isinstance(state, RecordDict):
        context.state = state
