"""The gate: the one way out of a client.

``LdpMod`` wraps a Flower ``ClientApp``. For each message it (1) finds the release for the
message's type, (2) reads the server's proposal, (3) asks its admission, all three from
public data; then it (4) lets the app compute, (5) has the permit keep the release's private
report, and (6) builds a new reply from it. The app's own reply never leaves, not in part;
nor does what an exception says.

**Once the app was called, the answer has one form.** An app that raises, exits, answers with an
error, gives no message or another one, or is late, leaves as a report by the neutral law
(:mod:`flower_ldp.mechanisms.base`), kept and sent as any report; what it failed of stays in the
client's log and in the owner's counter. An acknowledgement is empty, whatever the app did. Only a
policy with ``mode: simulation`` makes an error of it, and of a reply of which not all can be read,
since nothing is protected there and whoever writes an app has to see it fail.
``KeyboardInterrupt`` is a killed process: there is no answer.

In an app of a guarded node that privatizes, the mod steps aside (:mod:`flower_ldp.inner_gate`).

All else ends in one of a few constant errors (:mod:`flower_ldp.refusals`), which depend on public
state alone. Messages are judged before the app is called, and all reports
to one proposal have one length, so that whether a report can be kept does not depend on it.
"""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Collection, Mapping

import numpy as np
from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable

from flower_ldp import inner_gate
from flower_ldp.clients import release
from flower_ldp.clients.calling import AppCall, AppFailedError
from flower_ldp.clients.diagnostics import cause_of, log_refusal
from flower_ldp.clients.owner import OwnerAdmission
from flower_ldp.clients.permit import Admission, Handling, Permit
from flower_ldp.clients.rehearsal import Rehearsal
from flower_ldp.clients.release import OpenRelease, Release
from flower_ldp.errors import RefusalError, say
from flower_ldp.mechanisms.inputs import noted
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.refusals import FAILED

_log = logging.getLogger("flower_ldp")


class LdpMod:
    """Flower client mod that lets only private reports leave.

    Put it **first** in the list of mods: the first mod is outermost, and what lies outside
    the gate is not guarded by it.

    Parameters
    ----------
    train, evaluate, query : Release, optional
        How replies to these types of message are privatized. A type without a release is
        refused before the app sees the message.
    admission : Admission, optional
        Decides, from public facts, whether a release may happen. By default the data
        owner does, by a policy file that the operator names
        (:class:`~flower_ldp.clients.OwnerAdmission`); without a policy nothing leaves, in a
        simulation either.
    actions : mapping of str to Release, optional
        The same for types of message with an action, as ``"train.forward"``.
    acknowledged : collection of str
        Types of message whose reply is empty whatever the app does: the app takes what the
        server sends, and nothing is released. The admission is asked for these too.
    rehearsal : Rehearsal, optional
        The app's work on public sample data, called before the first charge of a run; what it
        raises is public, and is answered in words.

    Raises
    ------
    ValueError
        If a type of message is both released and acknowledged.
    TypeError
        If a release is a class or no release, or the rehearsal is none.

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
        admission: Admission | None = None,
        actions: Mapping[str, Release] | None = None,
        acknowledged: Collection[str] = (),
        rehearsal: Rehearsal | None = None,
    ) -> None:
        given = {MessageType.TRAIN: train, MessageType.EVALUATE: evaluate, MessageType.QUERY: query}
        self._releases = _checked({**given, **(actions or {})})
        if not isinstance(rehearsal, Rehearsal | None):
            raise TypeError(
                f"rehearsal must be a Rehearsal, as Rehearsal(train=...), got {rehearsal!r:.100}"
            )
        self._rehearsal = Rehearsal() if rehearsal is None else rehearsal
        self._acknowledged = frozenset(acknowledged)
        both = self._acknowledged & self._releases.keys()
        if both:
            raise ValueError(f"either released or acknowledged, not both: {sorted(both)}")
        self._admission: Admission = OwnerAdmission() if admission is None else admission

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer one message with a private report, an empty one, or a constant error."""
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
            except RefusalError:  # without the admission its text is not told either
                self._admission.acknowledge(message.metadata.message_type, context)
                raise
            permit = self._admission.admit(opened.request(message.metadata), context)
            with contextlib.closing(permit):
                opened, payload = opened.granted(permit), permit.stored
                if payload is None:  # else the message gets the report that it got before
                    call = AppCall(permit.handling, arrived, context)
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
        """Let the app take a message in, and say no more than that it came."""
        handling = self._admission.acknowledge(message.metadata.message_type, context)

        def taken(own: Context) -> bytes:
            release.content_of(call_next(release.for_app(message, released=False), own))
            return b""

        return release.report(AppCall(handling, arrived, context).run(taken, lambda: b""), message)


def _new_report(
    opened: OpenRelease, permit: Permit, call: AppCall, ask: Callable[[Context], Message]
) -> bytes:
    """Have the app compute, and return the private report that the permit keeps."""

    def computed(own: Context) -> tuple[bytes, bool]:
        return _private_report(opened, permit.handling, lambda: ask(own)), False

    payload, is_last = call.run(computed, lambda: (_neutral(opened), True))
    # What ends with a failure ends with the answer, not a second later.
    permit.keep(payload, is_last)
    return payload


def _private_report(opened: OpenRelease, handling: Handling, ask: Callable[[], Message]) -> bytes:
    try:
        content = opened.reply(lambda: release.content_of(ask()), handling)
    except release.IncompleteError as error:
        if handling.is_simulation:
            raise
        say(_log, logging.ERROR, "the app failed in a part: %s", cause_of(error))
        handling.failed()
        content = error.content
    # What the app told numpy to do about floating-point errors must not decide what leaves.
    with np.errstate(all="ignore"), noted() as unread:
        # A fresh key for each reply: simulation resets a mod's attributes at every call.
        payload = opened.privatize(content, RandomSource.from_os())
        if unread and handling.is_simulation:
            raise release.unreadable(opened, content, unread)
    if unread:
        handling.failed()
    return payload


def _neutral(opened: OpenRelease) -> bytes:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an app may have made errors of them
        return opened.neutral(RandomSource.from_os())


def _checked(given: Mapping[str, Release | None]) -> dict[str, Release]:
    """Return the releases that were given; raise TypeError for a class, or what opens nothing."""
    for kind, one in given.items():
        if isinstance(one, type):
            told = f"got the class {one.__name__}: write {kind}={one.__name__}()"
            raise TypeError(f"{kind} must be a release, {told}")
        if one is not None and not callable(getattr(one, "open", None)):
            raise TypeError(
                f"{kind} must be a release, as SignDSRelease() or ProtectedEvalRelease(), got "
                f"{one!r:.100}; mechanisms and their epsilons are the server's to propose"
            )
    return {kind: one for kind, one in given.items() if one is not None}
