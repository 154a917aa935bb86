"""The gate for apps that use ``LdpMod`` themselves: only paid reports leave.

The app's own gate draws the report, charges the site's ledger and seals the report there.
This gate, in the SuperNode's process, lets out the bytes that the ledger holds for the very
message and proposal, if they are a well-formed report, and nothing else.

This trusts the app for the noise, as ``LdpMod`` in the app does: an app that can write to
the ledger can seal a report that it made up, of the form and the length of an honest one. That
is a few hundred bytes of SignDS, but a byte for every weight of the Gaussian mechanism: a whole
model, roughly. To trust the app for nothing, privatize in the SuperNode's process (the default).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from flower_ldp.clients import Admission, OwnerAdmission, Release, ReleaseRequest
from flower_ldp.clients.ldp_mod import ERROR_CODE, FAILED, REFUSED_MESSAGE, REFUSED_PROPOSAL
from flower_ldp.errors import RefusalError, ReleaseError, WireError
from flower_ldp.node.releases import check_form, node_releases
from flower_ldp.wire.proposal import PAYLOAD_KEY, REPORT_KEY

_log = logging.getLogger("flower_ldp")


@dataclass(frozen=True)
class PaidReports:
    """Lets a reply out if it is a report that the ledger holds.

    Every message that the app saw is charged when this returns, also if the app did not
    charge it. Types of message without a release here are refused before the app sees them.

    Parameters
    ----------
    admission : Admission
        Finds the charge and the sealed report of a message.
    releases : mapping of str to Release
        Read the proposals, by type of message.
    """

    admission: Admission = field(default_factory=OwnerAdmission)
    releases: Mapping[str, Release] = field(default_factory=node_releases)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer with the sealed report, or with a constant error."""
        try:
            payload = self._sealed(message, context, call_next)
        except RefusalError as refusal:
            _log.warning("refused: %s", refusal)
            return Message(Error(code=ERROR_CODE, reason=refusal.code), reply_to=message)
        except Exception:
            _log.exception("no report leaves")
            return Message(Error(code=ERROR_CODE, reason=FAILED), reply_to=message)
        record = ConfigRecord({PAYLOAD_KEY: payload})
        return Message(RecordDict({REPORT_KEY: record}), reply_to=message)

    def _sealed(self, message: Message, context: Context, call_next: ClientAppCallable) -> bytes:
        metadata = message.metadata
        release = self.releases.get(metadata.message_type)
        if release is None:
            raise RefusalError(REFUSED_MESSAGE, f"no release for {metadata.message_type!r}")
        try:
            opened = release.open(message.content)
        except (WireError, ValueError) as error:
            raise RefusalError(REFUSED_PROPOSAL, str(error)) from error
        reply = call_next(message, context)
        request = ReleaseRequest(
            run_id=metadata.run_id,
            message_id=metadata.message_id,
            message_type=metadata.message_type,
            events=opened.events,
            terms=opened.terms,
        )
        # First the charge: if the app was refused, so is this, with the same constant.
        stored = self.admission.admit(request, context).stored
        if stored is None:
            raise ReleaseError("the app did not charge its report to the site's ledger")
        if reply.has_error() or report_of(reply.content) != stored:
            raise ReleaseError("the app's reply is not the report that the ledger holds")
        check_form(opened, stored)
        return stored


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
