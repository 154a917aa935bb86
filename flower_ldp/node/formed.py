"""No reply of a gate leaves that is not of the form of an honest report, stored ones included."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from flower_ldp.clients import RELEASES, Release
from flower_ldp.clients.release import OpenRelease, open_proposal
from flower_ldp.errors import RefusalError, WireError
from flower_ldp.node.held import failure
from flower_ldp.node.reports import report_of

_log = logging.getLogger("flower_ldp")


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
        opened = self._opened(message)
        answer = self.gate(message, context, call_next)
        if answer.has_error():
            return answer
        try:
            if opened is None:
                raise WireError("record", "a report that answers no proposal")
            opened.check_form(report_of(answer.content))
        except Exception:
            _log.exception("no report leaves: the gate's answer is none")
            return failure(message)
        return answer

    def _opened(self, message: Message) -> OpenRelease | None:
        """Read the proposal before the gate does: what it makes of the message is its own."""
        try:
            return open_proposal(self.releases, message)
        except RefusalError:
            return None
