"""One message between the two halves of a gate.

A gate is a mod: ``gate(message, context, call_next)`` admits the message, calls the app, and
turns the app's reply into what may leave. Here the app is another process, and its reply
comes later and from elsewhere. So the gate runs in a thread of its own that stops where it
calls the app: :meth:`HeldMessage.admit` runs it up to there, :meth:`HeldMessage.finish` lets
it go on with the app's reply. A gate with a fixed moment to answer does not wait longer than that
for the app: then the answer is there before a reply, and ``on_answer`` is told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from flower_ldp.clients.release import constant, failed
from flower_ldp.errors import ReleaseError
from flower_ldp.refusals import FAILED


@dataclass(eq=False, repr=False)
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
    on_answer : callable, optional
        Called in the gate's thread when the answer to a message is there that the app was to see.
    """

    gate: Mod
    message: Message
    context: Context
    on_answer: Callable[[], None] = lambda: None
    # Done when the gate calls the app.
    _asks: Future[Any] = field(init=False, default_factory=Future)
    _reply: Future[Message | None] = field(init=False, default_factory=Future)
    _answer: Future[Message] = field(init=False, default_factory=Future)

    def admit(self) -> Message | None:
        """Let the gate judge the message; return its answer, or None if the app is to see it."""
        threading.Thread(target=self._run, name="flower-ldp-gate", daemon=True).start()
        wait((self._asks, self._answer), return_when=FIRST_COMPLETED)
        if self._answer.done():
            return self._answer.result()
        self._answer.add_done_callback(lambda _: self.on_answer())
        return None

    def finish(self, reply: Message | None) -> Message:
        """Give the gate the app's reply, or None if there is none; return what may leave."""
        self._reply.set_result(reply)
        return self._answer.result()

    def _run(self) -> None:
        try:
            call_next: ClientAppCallable = self._call_app
            answer = self.gate(self.message, self.context, call_next)
        except BaseException as error:
            answer = failed(self.message, error, "the gate failed")
        self._answer.set_result(answer if isinstance(answer, Message) else failure(self.message))

    def _call_app(self, message: Message, context: Context) -> Message:
        self._asks.set_result(None)
        reply = self._reply.result()
        if reply is None:
            raise ReleaseError("the app gave no readable reply")
        return reply


def failure(message: Message) -> Message:
    """Return the answer where the gate itself failed; what the app does never comes to that."""
    return constant(FAILED, message)
