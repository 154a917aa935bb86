"""The guard: a SuperNode's connection that lets only the gate's answers out.

Nothing that the app produced is sent. The guard collects what the SuperNode wants to send, gives
its content to the gate, and sends the gate's answer instead, built from the server's message.
The run time is zero. Each message gets one answer: replies to no open message are dropped, and an
unanswered message gets the gate's answer for a failed app, with a report of the same form. With a
fixed moment it leaves also while the app still runs; a later reply is then to no open message.

Where the gate privatizes here, the app gets the message without the gate's records, under another
identity.

A gate is a mod that calls the app, but here the app is another process. The gate therefore runs in
a thread that stops where it calls the app (:class:`PendingMessage`), no longer than to its fixed
moment.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp.typing import Mod

from flower_ldp.clients.diagnostics import cause_of
from flower_ldp.clients.release import ERROR_CODE, constant, failed, for_app
from flower_ldp.errors import ReleaseError
from flower_ldp.node import flower_api
from flower_ldp.node.flower_api import Channel, NodeConfig, Opened
from flower_ldp.node.runtime_api import AppCalls
from flower_ldp.refusals import FAILED, is_code
from flower_ldp.wire.message_size import check_size

_log = logging.getLogger("flower_ldp")

#: Bytes that a message may take in any case: equal parts of a model arrive once. And those that a
#: reply may take half of the limit of.
_OF_SERVER, _LEAST = 1 << 30, 1 << 25


@dataclass
class _Outgoing:
    """A reply that the SuperNode is sending, collected until all its objects are there."""

    tree: Any
    missing: set[str]
    contents: dict[str, bytes] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class PendingMessage:
    """A message that the gate judges now, and whose reply it judges later.

    Parameters
    ----------
    gate : Mod
        Usually an :class:`~flower_ldp.clients.LdpMod`.
    message : Message
        From the server.
    context : Context
        With the site's policy.
    on_answer : callable, optional
        Called in the gate's thread when the answer to a message for the app is there.
    since : float, optional
        When the message came.
    size : int, optional
        Its bytes.
    """

    gate: Mod
    message: Message
    context: Context
    on_answer: Callable[[], None] = lambda: None
    since: float = field(default_factory=time.monotonic)
    size: int = 0
    sent: threading.Event = field(init=False, default_factory=threading.Event)
    # Done when the gate calls the app.
    _asks: Future[Any] = field(init=False, default_factory=Future)
    _reply: Future[Message | None] = field(init=False, default_factory=Future)
    _answer: Future[Message] = field(init=False, default_factory=Future)

    def authorize(self) -> Message | None:
        """Let the gate judge the message; return its answer, or None if the app is to see it."""
        threading.Thread(target=self._run, name="flower-ldp-gate", daemon=True).start()
        wait((self._asks, self._answer), return_when=FIRST_COMPLETED)
        if self._answer.done():
            return self._answer.result()
        self._answer.add_done_callback(lambda _: self.on_answer())
        return None

    def finish(self, reply: Message | None) -> Message:
        """Give the gate the app's reply, or None; return what may leave."""
        self._reply.set_result(reply)
        return self._answer.result()

    def _run(self) -> None:
        try:
            answer = self.gate(self.message, self.context, self._call_app)
        except BaseException as error:
            answer = failed(self.message, error, "the gate failed")
        if not isinstance(answer, Message):
            answer = constant(FAILED, self.message)
        self._answer.set_result(answer)

    def _call_app(self, message: Message, context: Context) -> Message:
        self._asks.set_result(None)
        reply = self._reply.result()
        if reply is None:
            raise ReleaseError("the app gave no readable reply")
        return reply


@dataclass(eq=False, repr=False)
class Guard:
    """Wraps a connection. Flower's SuperNode handles one message at a time.

    Parameters
    ----------
    inner : Channel
        The connection to the SuperLink.
    gate : Mod
        Judges messages and builds the answers, usually an :class:`~flower_ldp.clients.LdpMod`.
    node_config : NodeConfig
        For the gate's context: names the policy.
    hold_seconds : float
        Least time from a granted message to its answer, so that the time reveals less about the
        app's work.
    hides : bool
        Whether the gate's records are hidden from the app.
    calls : AppCalls, optional
        Checks the apps' calls.
    answer_after : callable
        Returns the fixed seconds for a type of message, or None.
    opened : callable
        Is called for each message that the SuperNode gets.
    """

    inner: Channel
    gate: Mod
    node_config: NodeConfig
    _: KW_ONLY
    hold_seconds: float = 0.0
    hides: bool = False
    calls: AppCalls = field(default_factory=AppCalls)
    answer_after: Callable[[str], float | None] = lambda _: None
    opened: Opened = lambda *_: None
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    # Answers leave one at a time: at a fixed moment it is the gate's thread that sends.
    _sending: threading.Lock = field(init=False, default_factory=threading.Lock)
    _open: dict[str, PendingMessage] = field(init=False, default_factory=dict)
    # The server's identities of messages by those that the app knows.
    _originals: dict[str, str] = field(init=False, default_factory=dict)
    _incoming: dict[str, bytes] = field(init=False, default_factory=dict)
    _outgoing: dict[str, _Outgoing] = field(init=False, default_factory=dict)

    def channel(self) -> Channel:
        """Return the guarded connection for Flower's SuperNode."""
        return self.inner._replace(
            receive=self._receive,
            send=self._send,
            pull_object=self._pull_object,
            push_object=self._push_object,
            confirm_message_received=self._confirm,
        )

    def is_open(self, message_id: str) -> bool:
        """Return whether a message, by the SuperNode's identity for it, has no answer yet."""
        with self._lock:
            return self._originals.get(message_id, message_id) in self._open

    def _receive(self) -> tuple[Message, Any] | None:
        """Fetch the next message, which the gate judges before the SuperNode sees it."""
        self._fail_unanswered()
        received = self.inner.receive()
        if received is None:
            return None
        message, tree = received
        run_id, message_id = message.metadata.run_id, message.metadata.message_id
        since = time.monotonic()
        try:
            contents = flower_api.pull_contents(self.inner, run_id, tree)
            size = check_size(tree.object_id, contents, _OF_SERVER)
            whole = flower_api.unpack(tree, contents)
            _check_same(message, whole)
            node, config = self.inner.node_id, dict(self.node_config)
            context = Context(run_id, node, config, RecordDict(), {})
            due = partial(self._due, message_id)
            held = PendingMessage(self.gate, whole, context, due, since, size)
            with self._lock:  # before the gate calls the app, since it may answer by itself then
                self._open[message_id] = held
            answer = held.authorize()
            if answer is not None:
                self._take(message_id)
                self.inner.confirm_message_received(run_id, message_id)
                self._transmit(answer)
                return None
            if self.hides:
                message, tree, contents = self._shown(message, held.message)
            self._incoming.update(contents)
            self.calls.opened(message, tree, size)
            kept = self.answer_after(message.metadata.message_type)
            if kept is not None:
                self.calls.quiet(since + kept, held.sent)
        except Exception:
            # A run that was stopped, a broken connection, a message that is none: the server
            # gets no answer, and the node goes on with the next message.
            _log.exception("message %s could not be received or refused", message_id)
            self._take(message_id)
            return None
        # It is charged: what fails here ends the node, as nothing would answer the message.
        self.opened(message, partial(self.is_open, message.metadata.message_id))
        return message, tree

    def _take(self, message_id: str) -> PendingMessage | None:
        """Return a message and close it; None if it has an answer."""
        with self._lock:
            return self._open.pop(message_id, None)

    def _shown(self, announced: Message, whole: Message) -> tuple[Message, Any, dict[str, bytes]]:
        """Return the app's version of the message, its tree and its objects."""
        seen = for_app(whole, released=True)
        tree, contents = flower_api.pack(seen)
        with self._lock:
            self._originals[seen.metadata.message_id] = whole.metadata.message_id
        return flower_api.under_identity(announced, seen), tree, contents

    def _due(self, message_id: str) -> None:
        """Send the gate's answer at its fixed moment, unless a reply led to one."""
        held = self._take(message_id)
        if held is not None:
            _log.warning("the app is late: the answer leaves without it")
            self._answer_without(held)

    def _pull_object(self, run_id: int, object_id: str) -> bytes:
        kept = self._incoming.get(object_id)
        return self.inner.pull_object(run_id, object_id) if kept is None else kept

    def _confirm(self, run_id: int, object_id: str) -> None:
        self._incoming.clear()
        with self._lock:
            original = self._originals.get(object_id, object_id)
        self.inner.confirm_message_received(run_id, original)

    def _send(self, message: Message, object_tree: Any, _: float) -> tuple[set[str], str]:
        """Ask the SuperNode for all objects of a reply; send nothing yet."""
        reply_to, wanted = message.metadata.reply_to_message_id, flower_api.object_ids(object_tree)
        with self._lock:
            self._outgoing[reply_to] = _Outgoing(object_tree, set(wanted))
        return wanted, reply_to

    def _push_object(self, _: int, session_id: str, object_id: str, contents: bytes) -> None:
        """Collect an object; answer after the last one. Flower calls this from threads."""
        with self._lock:
            outgoing = self._outgoing[session_id]
            outgoing.contents[object_id] = contents
            outgoing.missing.discard(object_id)
            if outgoing.missing:
                return
            del self._outgoing[session_id]
            reply_to = self._originals.get(session_id, session_id)
            held = self._open.get(reply_to)
        reply = None if held is None else _readable(outgoing, held.size)
        held = self._take(reply_to)  # building takes a time: the fixed moment may have come
        if held is None:
            _log.warning("a reply to no open message was dropped")
            return
        self._answer(held, reply)

    def _fail_unanswered(self) -> None:
        """Answer the messages that the SuperNode has left without an answer."""
        self._incoming.clear()
        with self._lock:
            left, self._open = list(self._open.values()), {}
            self._outgoing.clear()
            self._originals.clear()
        for one in left:
            self._answer_without(one)

    def _answer_without(self, held: PendingMessage) -> None:
        """Answer for an app that gave no reply."""
        try:
            self._answer(held, None)
        except Exception:
            _log.exception("a message stays without an answer")

    def _answer(self, held: PendingMessage, reply: Message | None) -> None:
        """Send the answer when it may leave."""
        try:
            answer = held.finish(reply)
            if reply is not None and _is_refusal(reply) and not answer.has_error():
                _log.warning(
                    "the app's own gate (LdpMod) refused what this node has charged: start apps by "
                    "flower-ldp-superexec, so that it steps aside, or see --ldp-gate"
                )
            wait_for = held.since + self.hold_seconds - time.monotonic()
            if wait_for > 0:
                self.calls.quiet(time.monotonic() + wait_for, held.sent)
                time.sleep(wait_for)
            elif self.hold_seconds:
                late = -wait_for
                _log.warning("an answer leaves %.1f s after the time it should be held to", late)
            if self.hold_seconds:  # its metadata holds the time at which it was made
                answer = _made_now(answer, held.message)
            self._transmit(answer)
        finally:
            held.sent.set()

    def _transmit(self, answer: Message) -> None:
        with self._sending:
            flower_api.transmit(self.inner, answer)


def _check_same(announced: Message, whole: Message) -> None:
    """Raise unless a message is the announced one.

    Flower starts the app of the announced run, and the gate judges the message itself.
    """
    for name in ("run_id", "message_type"):
        if getattr(announced.metadata, name) != getattr(whole.metadata, name):
            raise ValueError(f"a message that has another {name} than it was announced with")


def _readable(outgoing: _Outgoing, sent: int) -> Message | None:
    """Return the app's reply, or None if its objects are no message, or take too much."""
    try:
        check_size(outgoing.tree.object_id, outgoing.contents, 2 * max(sent, _LEAST))
        return flower_api.unpack(outgoing.tree, outgoing.contents)
    except Exception as error:
        _log.error("the app's reply cannot be read: %s", cause_of(error))
        return None


def _is_refusal(reply: Message) -> bool:
    """Return whether a reply is the refusal of a gate in the app."""
    return reply.has_error() and reply.error.code == ERROR_CODE and is_code(str(reply.error.reason))


def _made_now(answer: Message, message: Message) -> Message:
    if answer.has_error():
        return Message(answer.error, reply_to=message)
    if not answer.has_content():
        return constant(FAILED, message)
    return Message(answer.content, reply_to=message)
