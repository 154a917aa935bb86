"""The gate: the one way out of a client.

``LdpMod`` wraps a Flower ``ClientApp``. For each message it (1) finds the release for the
message's type, (2) reads the server's proposal, (3) asks its admission, all three from
public data; then it (4) lets the app compute, (5) has the permit keep the release's private
report, and (6) builds a new reply from it. The app's own reply never leaves, not in part;
nor does what an exception says. Anything unexpected ends in one of a few constant errors:

=========================  ==============================================================
reason                     meaning
=========================  ==============================================================
``ldp:refused:message``    no release is set for this type of message
``ldp:refused:proposal``   the server's proposal is missing, malformed or out of range
``ldp:refused:rehearsal``  the app failed on its own public sample data; its text follows
``ldp:refused:<other>``    the admission refused
``ldp:failed``             the app failed, or its reply could not be privatized
=========================  ==============================================================

The refusals depend on public state alone. ``ldp:failed`` may depend on private data (an
app that crashes on some inputs tells that it crashed): one constant for every cause keeps
that to a single bit.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from flower_ldp.clients.admission import Admission, Permit, ReleaseRequest
from flower_ldp.clients.checks import checked_rehearsal, checked_releases, log_refusal
from flower_ldp.clients.owner import OwnerAdmission
from flower_ldp.clients.rehearsal import Rehearsal
from flower_ldp.clients.release import KeptRelease, OpenRelease, Release
from flower_ldp.errors import RefusalError, ReleaseError, WireError
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.wire.proposal import PAYLOAD_KEY, REPORT_KEY

_log = logging.getLogger("flower_ldp")

#: Code of every error that this package sends; the reason tells them apart.
ERROR_CODE = 1_000
REFUSED_MESSAGE = "ldp:refused:message"
REFUSED_PROPOSAL = "ldp:refused:proposal"
FAILED = "ldp:failed"


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
        Types of message whose reply is empty whatever the app returns: the app takes what the
        server sends, and nothing is released.
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
        given = {
            MessageType.TRAIN: train,
            MessageType.EVALUATE: evaluate,
            MessageType.QUERY: query,
        }
        self._releases = checked_releases({**given, **(actions or {})})
        self._rehearsal = checked_rehearsal(rehearsal)
        self._acknowledged = frozenset(acknowledged)
        both = self._acknowledged & self._releases.keys()
        if both:
            raise ValueError(f"either released or acknowledged, not both: {sorted(both)}")
        self._admission: Admission = OwnerAdmission() if admission is None else admission

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer one message with a private report or a constant error."""
        if message.metadata.message_type in self._acknowledged:
            return _acknowledge(message, context, call_next)
        try:
            opened, permit = self._admitted(message, context)
        except RefusalError as refusal:
            log_refusal(message.metadata.run_id, refusal)
            return _constant(refusal.code, message)
        except Exception:
            _log.exception("no report leaves: the request could not be judged")
            return _constant(FAILED, message)
        # From here on private data may be read, and every failure looks the same.
        try:
            payload = permit.stored
            if payload is None:
                payload = _private_report(opened, message, context, call_next)
                permit.seal(payload)
            return _report(payload, message)
        except (Exception, SystemExit):
            # The text may hold private data: it goes to this client's log and no further.
            _log.exception("no report leaves: the app or the release failed")
            return _constant(FAILED, message)

    def _admitted(self, message: Message, context: Context) -> tuple[OpenRelease, Permit]:
        """Judge the request by public facts, and charge it."""
        metadata = message.metadata
        release = self._releases.get(metadata.message_type)
        if release is None:
            raise RefusalError(REFUSED_MESSAGE, f"no release for {metadata.message_type!r}")
        try:
            opened = release.open(message.content)
        except (WireError, ValueError) as error:
            raise RefusalError(REFUSED_PROPOSAL, str(error)) from error
        self._rehearsal.hold(opened, message, context)
        request = ReleaseRequest(
            run_id=metadata.run_id,
            message_id=metadata.message_id,
            message_type=metadata.message_type,
            events=opened.events,
            terms=opened.terms,
            part=opened.part if isinstance(opened, KeptRelease) else "",
            memo=opened.memo if isinstance(opened, KeptRelease) else "",
            basis=opened.basis if isinstance(opened, KeptRelease) else None,
        )
        return opened, self._admission.admit(request, context)


def _private_report(
    opened: OpenRelease, message: Message, context: Context, call_next: ClientAppCallable
) -> bytes:
    reply = call_next(message, context)
    if reply.has_error():
        raise ReleaseError(f"the app answered with an error: {reply.error.reason}")
    # What the app told numpy to do about floating-point errors must not decide what leaves.
    with np.errstate(all="ignore"):
        # A fresh key for each reply: simulation resets a mod's attributes at every call.
        return opened.privatize(reply.content, RandomSource.from_os())


def _acknowledge(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Let the app take a message in, and say no more than whether it did."""
    try:
        reply = call_next(message, context)
        if reply.has_error():
            raise ReleaseError(f"the app answered with an error: {reply.error.reason}")
        return _report(b"", message)
    except (Exception, SystemExit):
        _log.exception("nothing was acknowledged: the app failed")
        return _constant(FAILED, message)


def _report(payload: bytes, message: Message) -> Message:
    record = ConfigRecord({PAYLOAD_KEY: payload})
    return Message(RecordDict({REPORT_KEY: record}), reply_to=message)


def _constant(reason: str, message: Message) -> Message:
    return Message(Error(code=ERROR_CODE, reason=reason), reply_to=message)
