"""Reports in the ledger bear a mark of the node's, so that nobody else's are sent again.

A message that is delivered again is answered with the report that the ledger holds. Whoever can
write to the ledger could put other bytes there. So the node seals each report with a code
(HMAC-SHA256) over it and over what it answers, under a key in a file beside the ledger that the
node's user alone can read, and sends no stored report without the right one.

An app under the node's own user can read the key: see :mod:`flower_ldp.node.sandbox`.
"""

import hmac
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flwr.app import Context

from flower_ldp.clients import OwnerAuthorizer, ReleaseRequest
from flower_ldp.clients.charging import policy_of
from flower_ldp.clients.keys import own_key
from flower_ldp.clients.permit import Permit
from flower_ldp.errors import RefusalError
from flower_ldp.refusals import REFUSED_LEDGER

#: Begins what is sealed: reports of earlier versions of this package bear no mark.
_MAGIC = b"ldp-mark-1:"
_CODE = 32  # bytes
#: The key's file has the ledger's name and this.
KEY_SUFFIX = "-mark-key"


class MacAuthorizer(OwnerAuthorizer):
    """The owner's authorizer; the stored reports bear the node's mark."""

    def authorize(self, request: ReleaseRequest, context: Context) -> Permit:
        """Charge a release; a stored report is only given again with its mark.

        Raises
        ------
        RefusalError
            With ``REFUSED_LEDGER`` if the key cannot be used, before anything is charged, or if
            a stored report bears no mark; else as the authorizer does.
        """
        return _with_marks(super().authorize, request, context)

    def resume(self, request: ReleaseRequest, context: Context) -> Permit:
        """Go on with a charge that has no report; what is kept bears the mark too."""
        return _with_marks(super().resume, request, context)


def _with_marks(
    charge: Callable[[ReleaseRequest, Context], Permit], request: ReleaseRequest, context: Context
) -> Permit:
    try:
        key = mark_key(Path(policy_of(context).ledger))
    except OSError as error:
        raise RefusalError(REFUSED_LEDGER, f"the key of the marks: {error}") from error
    permit = charge(request, context)
    stored = permit.stored
    if stored is not None:
        stored = unmarked(key, request, stored)

    def keep(report: bytes, last: bool) -> None:
        permit.keep(marked(key, request, report), last)

    return replace(permit, stored=stored, keep=keep)


def marked(key: bytes, request: ReleaseRequest, report: bytes) -> bytes:
    """Return a report with the mark of what it answers."""
    return _MAGIC + _code(key, request, report) + report


def unmarked(key: bytes, request: ReleaseRequest, sealed: bytes) -> bytes:
    """Return the report of which :func:`marked` made this.

    Raises
    ------
    RefusalError
        If it bears no mark, or that of another request or key.
    """
    start = len(_MAGIC) + _CODE
    code, report = sealed[len(_MAGIC) : start], sealed[start:]
    right = hmac.compare_digest(code, _code(key, request, report))
    if not sealed.startswith(_MAGIC) or not right:
        raise RefusalError(
            REFUSED_LEDGER,
            "the stored report bears no mark of this node's: another program wrote it, or the key "
            "was lost",
        )
    return report


def _code(key: bytes, request: ReleaseRequest, report: bytes) -> bytes:
    one = [] if request.memo else [request.run_id, request.message_id]
    kind = [request.message_type, request.part, request.memo, request.parameters]
    answered = json.dumps([*one, *kind]).encode()
    length = len(answered).to_bytes(8, "big")
    return hmac.digest(key, length + answered + report, "sha256")


def mark_key(ledger: Path) -> bytes:
    """Return the key beside a ledger; make it if there is none.

    Raises
    ------
    OSError
        As :func:`~flower_ldp.clients.keys.own_key`.
    """
    return own_key(ledger.with_name(ledger.name + KEY_SUFFIX))
