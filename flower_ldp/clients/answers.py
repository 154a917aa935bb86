"""What the gate sends, and what of a message the app sees.

An answer has one of two forms: a report, or an error with a constant reason. Both are built from
the message as it came. The app gets another one, with metadata of its own and without the
records that are the gate's, so whatever the app does to it changes nothing that leaves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import copy
from typing import Any, cast

from flwr.app import ConfigRecord, Error, Message, RecordDict

from flower_ldp.clients.calling import cause_of
from flower_ldp.own_log import say
from flower_ldp.refusals import FAILED
from flower_ldp.wire.fields import PAYLOAD_KEY, REPORT_KEY

_log = logging.getLogger("flower_ldp")

#: Code of every error that this package sends; the reason tells them apart.
ERROR_CODE = 1_000
#: Names of records that are for the gate begin with this.
GATES_OWN = "ldp."


def report(payload: bytes, message: Message) -> Message:
    """Return a reply to ``message`` that holds a packed report, or an empty acknowledgement."""
    record = ConfigRecord({PAYLOAD_KEY: payload})
    return Message(RecordDict({REPORT_KEY: record}), reply_to=message)


def reply(content: RecordDict, message: Message) -> Message:
    """Return a reply to ``message`` that holds what a release lets out."""
    return Message(content, reply_to=message)


def constant(reason: str, message: Message) -> Message:
    """Return a reply to ``message`` that says one of a few constant reasons."""
    return Message(Error(code=ERROR_CODE, reason=reason), reply_to=message)


def failed(message: Message, error: BaseException, what: str = "") -> Message:
    """Log why no report leaves, and return the reply that tells the server none of it."""
    say(_log, logging.ERROR, "no report leaves%s: %s", what and f" ({what})", cause_of(error))
    return constant(FAILED, message)


def for_app(message: Message, *, released: bool) -> Message:
    """Return the message that the app and the mods behind the gate see.

    Parameters
    ----------
    message : Message
        As it came. It stays with the gate.
    released : bool
        Whether a report answers it. Then the gate has read the proposal, and the records whose
        names begin with ``ldp.`` are left out.

    Returns
    -------
    Message
        With a metadata object and a dictionary of records of its own.
    """
    kept = {
        name: record
        for name, record in message.content.items()
        if not (released and name.startswith(GATES_OWN))
    }
    # Outside of a run Flower makes messages only from metadata that are complete.
    make = cast(Callable[..., Message], cast(Any, Message))
    return make(content=RecordDict(kept), metadata=copy(message.metadata))
