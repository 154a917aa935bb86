"""What an app may ask of the node's runtime API: what answers its message, and nothing more.

Flower's API also lets an app start more apps, which would outlive its message, and store logs and
events; answer any message of its run; and delete what the node is about to send, at which the node
ends. This layer stands before it.

=============================  ===================================================================
call                           is let through
=============================  ===================================================================
``acquire-task``               always: Flower asks for the executor's secret
``send-task-heartbeat``,       always
``pull-task-input``,
``pull-object``,
``push-object``
``pull-messages``              once with each token
``confirm-message-received``   of the message that the token was given
``push-messages``              one reply to that message, while it is the open one; its metadata
                               are made anew from the message's own, its tree is a sound one
``push-task-output``           after that reply
``GET /flower-ldp/gate``       where the node privatizes, so that a gate in the app steps aside
any other                      never
header ``traceparent``         of the executor alone
=============================  ===================================================================
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from flwr.app import Message, Metadata
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PushAppMessagesRequest
from flwr.supercore.constant import TASK_TOKEN_HEADER

from flower_ldp.node.app import GATE, PRIVATIZES
from flower_ldp.node.trees import Below, below, is_sound

_log = logging.getLogger("flower_ldp")

#: An ASGI application, and what sends its answer.
Application = Callable[[Any, Any, Any], Awaitable[None]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_PREFIX = "/v1/runtime/"
_ACQUIRE = "acquire-task"
_PLAIN = frozenset(
    (_ACQUIRE, "send-task-heartbeat", "pull-task-input", "pull-object", "push-object")
)
_PULL, _CONFIRM, _PUSH = "pull-messages", "confirm-message-received", "push-messages"
_OUTPUT = "push-task-output"
_HEALTH = "/health"
#: Where tracing is on, the name of a trace leaves for wherever traces are collected.
_TRACE = b"traceparent"
#: Bytes of a call that is read here: the names of a reply's objects, some 120,000. Flower needs 0.1
#: ms for each, in which the node does nothing else.
_LONGEST = 8 << 20
#: Tokens that are remembered: there is one for each message, and one message at a time.
_REMEMBERED = 1024


class _NotPermitted(Exception):  # noqa: N818  # an answer
    """A call that no app has a use for."""


@dataclass
class _Task:
    """The message that a token was given, and the reply to it: a digest of its tree."""

    message: Metadata | None
    reply: bytes = b""
    noted: bool = False


class AppCalls:
    """A layer around the node's runtime API."""

    def __init__(self) -> None:
        #: Whether this node privatizes what an app replies.
        self.privatizes = False
        self._open: Metadata | None = None
        self._below: Below = {}
        self._tasks: OrderedDict[bytes, _Task] = OrderedDict()

    def opened(self, message: Message, tree: Any) -> None:
        """Take note of the message that the node hands to an app now, and of its objects."""
        self._below = below(tree)
        self._open = message.metadata

    def around(self, app: Application) -> Application:
        """Return the API behind this layer."""

        async def layer(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                await app(scope, receive, send)
            elif scope["type"] == "http":
                await self._call(app, scope, receive, send)

        return layer

    async def _call(self, app: Application, scope: Any, receive: Any, send: Send) -> None:
        if scope["method"] in ("GET", "HEAD") and scope["path"] == _HEALTH:
            await app(scope, receive, send)
            return
        if scope["method"] == "GET" and scope["path"] == GATE and self.privatizes:
            await _answer(send, 200, PRIVATIZES, b"text/plain")
            return
        token = dict(scope["headers"]).get(TASK_TOKEN_HEADER.lower().encode(), b"")
        try:
            name = _name(scope)
            if name != _ACQUIRE:
                scope = {**scope, "headers": [one for one in scope["headers"] if one[0] != _TRACE]}
            if name in (_CONFIRM, _PUSH):
                body = self._read(name, token, await _body(receive))
                scope, receive = _with_body(scope, receive, body)
            elif name == _OUTPUT:
                self._check_answered(token)
            elif name == _PULL:
                await self._pull(app, scope, receive, send, token)
                return
        except _NotPermitted as error:
            self._note(token, error)
            # As if there were no such call: at "forbidden" Flower's client ends its process.
            await _answer(send, 404, b'{"detail": "no such call"}', b"application/json")
            return
        await app(scope, receive, send)

    async def _pull(
        self, app: Application, scope: Any, receive: Any, send: Send, token: bytes
    ) -> None:
        """Give a token its message; Flower says whether it is one."""
        if token in self._tasks:
            raise _NotPermitted("a second message")
        message = self._open

        async def noting(event: dict[str, Any]) -> None:
            if event["type"] == "http.response.start" and event["status"] == 200:
                # A call that came before another one ended must not begin the task anew.
                self._tasks.setdefault(token, _Task(message))
                while len(self._tasks) > _REMEMBERED:
                    self._tasks.popitem(last=False)
            await send(event)

        await app(scope, receive, noting)

    def _read(self, name: str, token: bytes, body: bytes) -> bytes:
        """Return the body of a call as the node may see it."""
        task = self._tasks.get(token)
        if task is None or task.message is None:
            raise _NotPermitted(f"{name} before a message was given")
        if name == _CONFIRM:
            if (
                _parsed(ConfirmMessageReceivedRequest, body).message_object_id
                != task.message.message_id
            ):
                raise _NotPermitted("the confirmation of another message")
            return body
        if task.message is not self._open:
            raise _NotPermitted("a reply to a message that is closed")
        return _own_reply(task, task.message, self._below, _parsed(PushAppMessagesRequest, body))

    def _check_answered(self, token: bytes) -> None:
        task = self._tasks.get(token)
        if task is None or not task.reply:
            # Flower would take the task for done, and wait for its reply for ever.
            raise _NotPermitted("the end of a task before its reply")

    def _note(self, token: bytes, error: Exception) -> None:
        """Write down what an app tried, once for each app: it cannot fill the log so."""
        task = self._tasks.get(token)
        if task is not None and not task.noted:
            task.noted = True
            _log.warning("a call of the app's was refused: %s", str(error)[:200])


def _own_reply(
    task: _Task, message: Metadata, known: Below, asked: PushAppMessagesRequest
) -> bytes:
    """Return the one reply of a task, with the metadata that a reply to its message has."""
    if len(asked.messages_list) != 1 or len(asked.message_object_trees) != 1:
        raise _NotPermitted("other than one reply")
    said = asked.messages_list[0].metadata
    tree = asked.message_object_trees[0]
    if said.message_id != tree.object_id or said.run_id != message.run_id:
        raise _NotPermitted("a reply of another run or identity")
    # An object of the message's goes when the message does, which the app may bring about.
    if tree.object_id in known or not is_sound(tree, known):
        raise _NotPermitted("a reply of objects that cannot be")
    reply = sha256(tree.SerializeToString(deterministic=True)).digest()
    if task.reply not in (b"", reply):
        raise _NotPermitted("a second reply")
    task.reply = reply
    said.reply_to_message_id = message.message_id
    said.group_id = message.group_id
    said.message_type = message.message_type
    said.src_node_id, said.dst_node_id = message.dst_node_id, message.src_node_id
    said.ClearField("src_task_id")
    said.ClearField("dst_task_id")
    written: bytes = asked.SerializeToString()
    return written


def _parsed(kind: Any, body: bytes) -> Any:
    try:
        return kind.FromString(body)
    except Exception as error:  # the library's errors have no types
        raise _NotPermitted("one that cannot be read") from error


def _name(scope: Any) -> str:
    path = str(scope["path"])
    name = path.removeprefix(_PREFIX)
    known = name in _PLAIN or name in (_PULL, _CONFIRM, _PUSH, _OUTPUT)
    if scope["method"] != "POST" or name == path or not known:
        raise _NotPermitted("one that no app has a use for")
    return name


async def _body(receive: Any) -> bytes:
    parts: list[bytes] = []
    length, more = 0, True
    while more:
        event = await receive()
        if event["type"] != "http.request":
            raise _NotPermitted("one that ended early")
        parts.append(event.get("body", b""))
        length, more = length + len(parts[-1]), event.get("more_body", False)
        if length > _LONGEST:
            raise _NotPermitted("one of too many bytes")
    return b"".join(parts)


def _with_body(scope: Any, receive: Any, body: bytes) -> tuple[Any, Any]:
    """Return a call's scope and receiver for another body."""
    headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
    headers.append((b"content-length", str(len(body)).encode()))
    events = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body() -> Any:
        return events.pop() if events else await receive()

    return {**scope, "headers": headers}, receive_body


async def _answer(send: Send, status: int, body: bytes, kind: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
