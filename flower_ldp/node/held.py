"""One message between the two halves of a gate.

A gate is a mod: ``gate(message, context, call_next)`` admits the message, calls the app, and
turns the app's reply into what may leave. Here the app is another process, and its reply
comes later and from elsewhere. So the gate runs in a thread of its own that stops where it
calls the app: :meth:`HeldMessage.admit` runs it up to there, :meth:`HeldMessage.finish` lets
it go on with the app's reply. A gate with a fixed moment to answer does not wait longer than that
for the app: then the answer is there before a reply, and ``on_answer`` is told.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from flower_ldp.clients.release import constant, failed
from flower_ldp.errors import ReleaseError
from flower_ldp.refusals import FAILED


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

    def __init__(
        self,
        gate: Mod,
        message: Message,
        context: Context,
        on_answer: Callable[[], None] | None = None,
    ) -> None:
        self.message = message
        self._gate = gate
        self._context = context
        self._on_answer = on_answer
        self._replies: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        # Set when it is known whose turn it is, and when the answer is there.
        self._judged, self._done = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._answer: Message | None = None
        self._is_with_app = False

    def admit(self) -> Message | None:
        """Let the gate judge the message; return its answer, or None if the app is to see it."""
        threading.Thread(target=self._run, name="flower-ldp-gate", daemon=True).start()
        self._judged.wait()
        with self._lock:
            self._is_with_app = self._answer is None
            return self._answer

    def finish(self, reply: Message | None) -> Message:
        """Give the gate the app's reply, or None if there is none; return what may leave."""
        self._replies.put(reply)
        self._done.wait()
        return failure(self.message) if self._answer is None else self._answer

    def _run(self) -> None:
        try:
            call_next: ClientAppCallable = self._call_app
            answer = self._gate(self.message, self._context, call_next)
        except BaseException as error:
            answer = failed(self.message, error, "the gate failed")
        with self._lock:
            self._answer = answer if isinstance(answer, Message) else failure(self.message)
            is_with_app = self._is_with_app
        self._judged.set()
        self._done.set()
        if is_with_app and self._on_answer is not None:
            self._on_answer()

    def _call_app(self, message: Message, context: Context) -> Message:
        self._judged.set()
        reply = self._replies.get()
        if reply is None:
            raise ReleaseError("the app gave no readable reply")
        return reply


def failure(message: Message) -> Message:
    """Return the answer where the gate itself failed; what the app does never comes to that."""
    return constant(FAILED, message)
