"""One message between the two halves of a gate.

A gate is a mod: ``gate(message, context, call_next)`` admits the message, calls the app, and
turns the app's reply into what may leave. Here the app is another process, and its reply
comes later and from elsewhere. So the gate runs in a thread of its own that stops where it
calls the app: :meth:`HeldMessage.admit` runs it up to there, :meth:`HeldMessage.finish` lets
it go on with the app's reply.
"""

from __future__ import annotations

import logging
import queue
import threading

from flwr.app import Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from flower_ldp.clients.ldp_mod import ERROR_CODE, FAILED
from flower_ldp.errors import ReleaseError

_log = logging.getLogger("flower_ldp")


class HeldMessage:
    """A message that the gate judges now, and whose reply it judges later.

    Parameters
    ----------
    gate : Mod
        Usually an :class:`~flower_ldp.clients.LdpMod`.
    message : Message
        From the server.
    context : Context
        What the site's policy is found by.
    """

    def __init__(self, gate: Mod, message: Message, context: Context) -> None:
        self.message = message
        self._gate = gate
        self._context = context
        self._replies: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        # None says that the gate waits for the app's reply.
        self._answers: queue.SimpleQueue[Message | None] = queue.SimpleQueue()

    def admit(self) -> Message | None:
        """Let the gate judge the message; return its answer, or None if the app is to see it."""
        threading.Thread(target=self._run, name="flower-ldp-gate", daemon=True).start()
        return self._answers.get()

    def finish(self, reply: Message | None) -> Message:
        """Give the gate the app's reply, or None if there is none; return what may leave."""
        self._replies.put(reply)
        answer = self._answers.get()
        return failure(self.message) if answer is None else answer

    def _run(self) -> None:
        try:
            call_next: ClientAppCallable = self._call_app
            answer = self._gate(self.message, self._context, call_next)
        except BaseException:
            _log.exception("no report leaves: the gate failed")
            answer = failure(self.message)
        self._answers.put(answer)

    def _call_app(self, message: Message, context: Context) -> Message:
        self._answers.put(None)
        reply = self._replies.get()
        if reply is None:
            raise ReleaseError("the app gave no readable reply")
        return reply


def failure(message: Message) -> Message:
    """Return the one answer for everything that went wrong after a message was admitted."""
    return Message(Error(code=ERROR_CODE, reason=FAILED), reply_to=message)
