"""What a gate lets out of the node: reports of the form of an honest one, stored ones included.

**For apps that use** ``LdpMod`` **themselves, only paid reports leave.** The app's own gate draws
the report, charges the site's ledger and seals the report there. :class:`PaidReports`, in the
SuperNode's process, lets out the bytes that the ledger holds for the very message and proposal, if
they are a well-formed report, and nothing else. Where the ledger holds none, because the app
failed, died or did not charge, it answers as any gate does for an app that failed: it draws a
neutral report itself, seals it and sends it.

This trusts the app for the noise, as ``LdpMod`` in the app does: an app that can write to
the ledger can seal a report that it made up, of the form and the length of an honest one. That
is a few hundred bytes of SignDS, but a byte for every weight of the Gaussian mechanism: a whole
model, roughly. To trust the app for nothing, privatize in the SuperNode's process (the default).

**Where the node privatizes**, :class:`WellFormed` looks once more at what its gate has made.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from flower_ldp.clients import RELEASES, OwnerAdmission, Permit, Release, ReleaseRequest
from flower_ldp.clients.diagnostics import cause_of, cut_middle
from flower_ldp.clients.release import OpenRelease, constant, failed, open_proposal
from flower_ldp.errors import RefusalError, ReleaseError, WireError
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.refusals import FAILED, REFUSED_REPEAT
from flower_ldp.wire.proposal import PAYLOAD_KEY, REPORT_KEY

_log = logging.getLogger("flower_ldp")


@dataclass(frozen=True)
class PaidReports:
    """Lets a report out that the ledger holds, or a neutral one where it holds none.

    Every message that the app saw is charged when this returns, also if the app did not
    charge it. Types of message without a release here are refused before the app sees them.

    Parameters
    ----------
    admission : OwnerAdmission
        Finds the charge and the sealed report of a message.
    releases : mapping of str to Release
        Read the proposals, by type of message.
    """

    admission: OwnerAdmission = field(default_factory=OwnerAdmission)
    releases: Mapping[str, Release] = field(default_factory=lambda: RELEASES)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer with the sealed report, or with a constant error."""
        try:
            return Message(self._sealed(message, context, call_next), reply_to=message)
        except Exception as error:
            return without_report(message, error)

    def _sealed(
        self, message: Message, context: Context, call_next: ClientAppCallable
    ) -> RecordDict:
        opened = open_proposal(self.releases, message)
        replied = _replied(message, context, call_next)
        request = opened.request(message.metadata)
        # First the charge: if the app was refused, so is this, with the same constant.
        with contextlib.closing(self._permit(request, context)) as permit:
            going_on = opened.granted(permit)
            content = going_on.content(self._settled(permit, going_on))
        if replied is not None and replied != content:
            _log.warning("the app's reply is not what the ledger holds, which leaves in its place")
        return content

    def _settled(self, permit: Permit, opened: OpenRelease) -> bytes:
        """Return the stored report, or one by the neutral law that is stored first."""
        stored = permit.stored
        if stored is None:
            _log.error("the ledger holds no report of the app's")
        else:
            try:
                opened.check_form(stored)
                return stored
            except WireError as error:
                _log.error("the ledger holds what is no report: %s", error)
        if permit.handling.is_simulation:
            raise ReleaseError("simulation: the app failed, or did not charge its report")
        permit.handling.failed()
        payload = opened.neutral(RandomSource.from_os())
        if stored is None:
            # What ends with the answer does so for messages that are underway, too.
            permit.keep(payload, True)
        return payload

    def _permit(self, request: ReleaseRequest, context: Context) -> Permit:
        """Find or make the charge; one that the app's gate left without a report is gone on with.

        An app that is killed would be seen by its refusal otherwise. Nothing that it drew has left.
        """
        try:
            return self.admission.admit(request, context)
        except RefusalError as refusal:
            if refusal.code != REFUSED_REPEAT:
                raise
        return self.admission.resume(request, context)


def without_report(message: Message, error: Exception) -> Message:
    """Return the constant answer of a gate that refused or failed; the log says why."""
    if not isinstance(error, RefusalError):
        return failed(message, error)
    _log.warning("refused: %s", cut_middle(str(error)))
    return constant(error.code, message)


def _replied(message: Message, context: Context, call_next: ClientAppCallable) -> RecordDict | None:
    """Return what the app replied with, or None if it gave no reply; the log says why."""
    try:
        found = call_next(message, context)
        if found.has_error():
            raise ReleaseError(f"the app answered with an error: {found.error.reason}")
        return found.content
    except Exception as error:
        _log.warning("the app gave no report: %s", cause_of(error))
        return None


def report_of(content: RecordDict) -> bytes:
    """Return the report of a reply that is one report and nothing else.

    Raises
    ------
    ReleaseError
        If it is anything else.
    """
    record = content.get(REPORT_KEY)
    if len(content) != 1 or not isinstance(record, ConfigRecord) or set(record) != {PAYLOAD_KEY}:
        raise ReleaseError("the app's reply is not one report and nothing else")
    payload = record[PAYLOAD_KEY]
    if not isinstance(payload, bytes):
        raise ReleaseError("the app's report is not bytes")
    return payload


@dataclass(frozen=True)
class WellFormed:
    """A gate whose answers are looked at once more before they leave.

    Parameters
    ----------
    gate : Mod
        Builds the answers.
    releases : mapping of str to Release
        Read the proposals, by type of message.
    """

    gate: Mod
    releases: Mapping[str, Release] = field(default_factory=lambda: RELEASES)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer as the gate does, or with the constant failure."""
        opened = None
        with contextlib.suppress(RefusalError):  # before the gate: what it makes of it is its own
            opened = open_proposal(self.releases, message)
        answer = self.gate(message, context, call_next)
        if answer.has_error():
            return answer
        try:
            if opened is None:
                raise WireError("record", "a report that answers no proposal")
            opened.check_form(report_of(answer.content))
        except Exception:
            _log.exception("no report leaves: the gate's answer is none")
            return constant(FAILED, message)
        return answer
