"""The nodes of a run: the client app's answer to a message, with the node's own context."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_ldp.simulation import flower
from flower_ldp.simulation.contexts import FIRST_NODE, Contexts, Plan

_log = logging.getLogger("flwr")

Sent = TypeVar("Sent")


class Nodes:
    """Virtual nodes, one for each partition.

    Parameters
    ----------
    app : ClientApp
        Answers for each of them.
    plan : Plan
        How many there are, and what goes through bytes.
    """

    def __init__(self, app: ClientApp, plan: Plan) -> None:
        self._app = app
        self._plan = plan
        self._contexts = Contexts(plan, plan.shelf())
        self._seen: dict[str, set[int]] = {}

    def answer(self, message: Message) -> Message:
        """Return a node's reply: its app's, or Flower's error if the app raised."""
        if not self._plan.strict:
            return self._answer(message, flower.with_own_records)
        return self._answer(flower.over_the_wire(message), flower.over_the_wire)

    def answer_bytes(self, data: bytes) -> bytes:
        """Return the reply to a message from another process."""
        return self._answer(flower.from_bytes(data), flower.to_bytes)

    def _answer(self, message: Message, send: Callable[[Message], Sent]) -> Sent:
        where = message.metadata
        node = where.dst_node_id
        if node not in self._plan.ids:
            reason = f"there is no node {node}"
            return send(flower.error_reply(where, flower.NODE_GONE, reason))
        if self._plan.expire and where.created_at + where.ttl <= time.time():
            reason = "the message's time to live has passed"
            return send(flower.error_reply(where, flower.TOO_LATE, reason))
        first = self._plan.strict and self._is_first(node, where.message_type)
        try:
            return self._app_reply(message, send, first=first)
        except (Exception, SystemExit) as error:
            _log.exception("the client app of node %d (partition %d)", node, node - FIRST_NODE)
            return send(flower.error_reply(where, flower.APP_FAILED, _words(error)))

    def _app_reply(self, message: Message, send: Callable[[Message], Sent], *, first: bool) -> Sent:
        where = message.metadata
        if first:
            message = flower.as_objects(message)
        node = where.dst_node_id
        context = self._contexts.take(node)
        reply = self._call(message, context)
        if not isinstance(reply, Message):
            raise TypeError(f"a client app returns a Message, got {type(reply).__name__}")
        if reply.metadata.reply_to_message_id != where.message_id:
            raise ValueError("the client app's message is no reply to the one it got")
        sent = send(flower.as_objects(reply) if first else reply)
        self._contexts.keep(node, context)
        return sent

    def _call(self, message: Message, context: Context) -> Message:
        process = os.getpid()
        try:
            reply = self._app(message, context)
        except BaseException as error:
            if os.getpid() != process:
                _end_copy(error)
            raise
        if os.getpid() != process:
            _end_copy(None)
        return reply

    def _is_first(self, node: int, kind: str) -> bool:
        seen = self._seen.setdefault(kind, set())
        found = node not in seen
        seen.add(node)
        return found


def _words(error: BaseException) -> str:
    """Return what Flower says of an error, whatever the app made its text of."""
    try:
        text = f"{type(error)}:<'{error}'>"
    except Exception:
        text = f"{type(error)}, which has no text"
    # The name of a file may hold what is not sent.
    return text.encode(errors="backslashreplace").decode()


def _end_copy(error: BaseException | None) -> NoReturn:
    """End a copy that the app made of this process: only the first one answers."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    status = 0 if error is None else 1
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        status = (error.code or 0) & 0xFF
    os._exit(status)
