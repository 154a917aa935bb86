"""Adds a MAC to stored reports, so that a forged ledger row is never re-sent.

The code (HMAC-SHA256) is over the report and its request. The key is a file beside the ledger that
only the node's user can read. An app under that user can read it too: see
:mod:`flower_ldp.node.sandbox`.
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
    """The owner's authorizer, with the node's MAC on stored reports."""

    def authorize(self, request: ReleaseRequest, context: Context) -> Permit:
        """Charge a release; give a stored report again only with its MAC.

        Raises
        ------
        RefusalError
            With ``REFUSED_LEDGER`` if the key cannot be used (before any charge) or a MAC is wrong;
            else as the base class.
        """
        return _with_marks(super().authorize, request, context)

    def resume(self, request: ReleaseRequest, context: Context) -> Permit:
        """Go on with a charge that has no report."""
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
    """Return a report with its MAC in front."""
    return _MAGIC + _code(key, request, report) + report


def unmarked(key: bytes, request: ReleaseRequest, sealed: bytes) -> bytes:
    """Return the report that :func:`marked` sealed.

    Raises RefusalError if there is no MAC, or that of another request or key.
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
    """Return the key beside a ledger, made if missing; OSError as in ``own_key``."""
    return own_key(ledger.with_name(ledger.name + KEY_SUFFIX))
