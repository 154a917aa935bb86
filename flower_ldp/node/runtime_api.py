"""A layer before the node's runtime API: an app may answer its message, and nothing more.

Flower's API also lets an app start apps that outlive its message, store logs and events, answer any
message of its run, and delete what the node is about to send, at which the node ends.

=============================  ===================================================================
call                           is let through
=============================  ===================================================================
``acquire-task``               always: Flower asks for the executor's secret
``send-task-heartbeat``,       always
``pull-task-input``,
``pull-object``
``pull-messages``              once with each token
``confirm-message-received``   of the message that the token was given
``push-object``                of the reply, as its tree says, while its message is the open one
``push-messages``              one reply to that message, while it is the open one; its metadata
                               are made anew from the message's own, its tree is a sound one
``push-task-output``           after that reply
``GET /flower-ldp/gate``       where the node privatizes, so that a gate in the app steps aside
any other                      never
header ``traceparent``         of the executor alone
=============================  ===================================================================

Each call is read here first, up to a number of bytes that is known when the message came. One
thread does all work on calls, for two calls of a token at a time. It stands still around a fixed
moment, so the node spends no time on calls then.

Flower stores the children of each object once and writes a tree out in full. A short tree that
names large subtrees twice, level by level, would not fit into any memory there. Each object must
therefore have the same children wherever it stands, and trees are bounded.

With ``--isolation process`` somebody else starts the app executor. The kernel's table of sockets
shows the callers: one of the node's own user is an app, or will start apps, that can read the
node's key.
"""

import asyncio
import ipaddress
import logging
import math
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Message, MessageType, Metadata
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PushObjectRequest
from flwr.proto.runtime_pb2 import PushAppMessagesRequest
from flwr.supercore.constant import TASK_TOKEN_HEADER
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

from flower_ldp.node.app_process import GATE, PRIVATIZES

_log = logging.getLogger("flower_ldp")

#: An ASGI application, and what sends its answer.
Application = Callable[[Any, Any, Any], Awaitable[None]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
#: The names right below each object of a tree, by its own.
Below = Mapping[str, tuple[str, ...]]

_PREFIX = "/v1/runtime/"
_ACQUIRE, _PULL, _CONFIRM = "acquire-task", "pull-messages", "confirm-message-received"
_PUSH, _OBJECT, _OUTPUT = "push-messages", "push-object", "push-task-output"
_PLAIN = frozenset((_ACQUIRE, "send-task-heartbeat", "pull-task-input", "pull-object"))
_HEALTH = "/health"
#: Where tracing is on, the name of a trace leaves for wherever traces are collected.
_TRACE = b"traceparent"
#: Bytes of a call that holds a few names, and of what is beside the names in an object's head.
_SHORT, _HEAD = 1 << 14, 64
#: Bytes of a reply beyond twice what the message has: of its objects' names (for each of which
#: Flower needs 0.1 ms, in which the node does nothing else), of a model, and of other replies, such
#: as an evaluation's rows.
_NAMES, _MODEL, _ROWS = 1 << 18, 1 << 26, 1 << 28
#: Bytes of one object, of which Flower's chunks of arrays have 5 MiB.
LONGEST_OBJECT = 1 << 23
#: Seconds before a fixed moment from which calls wait, and for which they wait at most.
QUIET, _LONGEST_QUIET = 0.25, 10.0
#: Seconds before a fixed moment from which the end of a task waits for the answer, and bytes of an
#: app's state that are read before it: Flower's node takes less time for them.
_NEAR, _STATE = 15.0, 1 << 23
#: Tokens that are remembered: there is one for each message, and one message at a time.
_REMEMBERED = 1024
_OBJECT_NAME = re.compile(r"[0-9a-f]{64}")
_SOCKETS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class _NotPermitted(Exception):  # noqa: N818  # an answer
    """A call that no app needs."""


@dataclass(frozen=True)
class _Opened:
    """A message for an app, and the permitted size of its reply."""

    message: Metadata
    below: Below
    most_names: int
    most_bytes: int


@dataclass
class _Task:
    """A token's message, and the reply's name and objects; Flower's client pushes two at a time."""

    opened: _Opened | None
    reply: str = ""
    below: Below = field(default_factory=dict)
    pushed: int = 0
    noted: bool = False
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))


class AppCalls:
    """A layer around the node's runtime API.

    Parameters
    ----------
    longest_object : int
        Bytes of one object of a reply.
    """

    def __init__(self, longest_object: int = LONGEST_OBJECT) -> None:
        self._longest_object = longest_object
        self._open: _Opened | None = None
        #: Whether this node privatizes what an app replies.
        self.privatizes = False
        self._tasks: OrderedDict[bytes, _Task] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moment, self._sent = math.inf, threading.Event()
        self._sent.set()

    def opened(self, message: Message, tree: Any, size: int = 0) -> None:
        """Note the message that the node gives to an app now, with its objects and its bytes."""
        more = _MODEL if message.metadata.message_type == MessageType.TRAIN else _ROWS
        names = 2 * tree.ByteSize() + _NAMES
        below = {one.object_id: _names_below(one) for one in iterate_object_tree(tree)}
        self._open = _Opened(message.metadata, below, names, 2 * size + more)

    def quiet(self, moment: float, sent: threading.Event) -> None:
        """Hold calls back from shortly before a moment until the answer was sent."""
        self._moment, self._sent = moment, sent
        loop = self._loop
        if loop is not None and not loop.is_closed():
            left = moment - QUIET - time.monotonic()
            # It stands still there, with all that it would read.
            loop.call_soon_threadsafe(lambda: loop.call_later(left, sent.wait, _LONGEST_QUIET))

    def around(self, app: Application) -> Application:
        """Return the API behind this layer."""

        async def layer(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                self._loop = asyncio.get_running_loop()
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
        task = self._tasks.get(token)
        try:
            name = _name(scope)
            if name != _ACQUIRE:
                scope = {**scope, "headers": [one for one in scope["headers"] if one[0] != _TRACE]}
            if name == _OUTPUT:  # an app's state takes time to be read: a near answer goes first
                while not self._sent.is_set() and self._moment - time.monotonic() < _NEAR:
                    await asyncio.sleep(0.05)
            if name == _PULL:
                await self._pull(app, scope, receive, send, token)
            elif name in _PLAIN:
                await app(*_with_body(scope, receive, await _body(receive, _SHORT)), send)
            else:
                if task is None or task.opened is None:
                    raise _NotPermitted(f"{name} before a message was given")
                async with task.turn:
                    body = await self._read(name, task, task.opened, receive)
                    await app(*_with_body(scope, receive, body), send)
        except _NotPermitted as error:
            if task is not None and not task.noted:  # once: an app cannot fill the log so
                task.noted = True
                _log.warning("a call of the app's was refused: %s", str(error)[:200])
            # As if there were no such call: at "forbidden" Flower's client ends its process.
            await _answer(send, 404, b'{"detail": "no such call"}', b"application/json")

    async def _pull(
        self, app: Application, scope: Any, receive: Any, send: Send, token: bytes
    ) -> None:
        """Give a token its message, if Flower knows the token."""
        if token in self._tasks:
            raise _NotPermitted("a second message")
        opened = self._open

        async def noting(event: dict[str, Any]) -> None:
            if event["type"] == "http.response.start" and event["status"] == 200:
                # A call that came before another one ended must not begin the task anew.
                self._tasks.setdefault(token, _Task(opened))
                while len(self._tasks) > _REMEMBERED:
                    self._tasks.popitem(last=False)
            await send(event)

        await app(*_with_body(scope, receive, await _body(receive, _SHORT)), noting)

    async def _read(self, name: str, task: _Task, opened: _Opened, receive: Any) -> bytes:
        """Return the checked body of a call."""
        left = opened.most_bytes - task.pushed
        state = left if self._sent.is_set() else min(left, _STATE)
        most = {_CONFIRM: _SHORT, _PUSH: opened.most_names, _OUTPUT: state}
        body = await _body(receive, most.get(name, min(left, self._longest_object + _SHORT)))
        task.pushed += len(body)
        if name == _CONFIRM:
            confirmed = _parsed(ConfirmMessageReceivedRequest, body).message_object_id
            if confirmed != opened.message.message_id:
                raise _NotPermitted("the confirmation of another message")
        elif name == _OUTPUT:
            if not task.reply:
                # Flower would take the task for done, and wait for its reply for ever.
                raise _NotPermitted("the end of a task before its reply")
        elif opened is not self._open:
            raise _NotPermitted("a reply to a message that is closed")
        elif name == _PUSH:
            return _own_reply(task, opened, _parsed(PushAppMessagesRequest, body))
        else:
            _check_object(task.below, _parsed(PushObjectRequest, body))
        return body


def _check_object(known: Below, asked: PushObjectRequest) -> None:
    """Refuse an object whose head differs from its tree: Flower parses any head in full."""
    content, below = asked.object_content, known.get(asked.object_id)
    head = content[: max(0, content.find(b"\0", 0, _HEAD + 65 * len(below or ())))]
    if below is None or head.split(b" ")[1:2] != [",".join(below).encode()]:
        raise _NotPermitted("an object that is none of the reply's")


def _own_reply(task: _Task, opened: _Opened, asked: PushAppMessagesRequest) -> bytes:
    """Return a task's one reply, with metadata made from its message."""
    if len(asked.messages_list) != 1 or len(asked.message_object_trees) != 1:
        raise _NotPermitted("other than one reply")
    message, said = opened.message, asked.messages_list[0].metadata
    tree = asked.message_object_trees[0]
    if said.message_id != tree.object_id or said.run_id != message.run_id:
        raise _NotPermitted("a reply of another run or identity")
    found = _sound(tree, opened.below)
    # An object of the message's goes when the message does, which the app may bring about.
    if tree.object_id in opened.below or found is None:
        raise _NotPermitted("a reply of objects that cannot be")
    if task.reply and (task.reply, task.below) != (tree.object_id, found):
        raise _NotPermitted("a second reply")
    task.reply, task.below = tree.object_id, found
    said.reply_to_message_id = message.message_id
    said.group_id = message.group_id
    said.message_type = message.message_type
    said.src_node_id, said.dst_node_id = message.dst_node_id, message.src_node_id
    said.ClearField("src_task_id")
    said.ClearField("dst_task_id")
    return bytes(asked.SerializeToString())


def _sound(tree: Any, known: Below) -> Below | None:
    """Return each object's children; None for one without a name, or with two sets of children.

    ``known`` has the children of the objects that Flower has already.
    """
    found = dict(known)
    for one in iterate_object_tree(tree):
        names = _names_below(one)
        if not _OBJECT_NAME.fullmatch(one.object_id):
            return None
        if found.setdefault(one.object_id, names) != names:
            return None
    return found


def _names_below(tree: Any) -> tuple[str, ...]:
    return tuple(one.object_id for one in tree.children)


def _parsed(kind: Any, body: bytes) -> Any:
    try:
        return kind.FromString(body)
    except Exception as error:  # the library's errors have no types
        raise _NotPermitted("one that cannot be read") from error


def _name(scope: Any) -> str:
    path = str(scope["path"])
    name = path.removeprefix(_PREFIX)
    known = name in _PLAIN or name in (_PULL, _CONFIRM, _PUSH, _OBJECT, _OUTPUT)
    if scope["method"] != "POST" or name == path or not known:
        raise _NotPermitted("one that no app has a use for")
    return name


async def _body(receive: Any, most: int) -> bytes:
    body, more = bytearray(), True
    while more:
        event = await receive()
        if event["type"] != "http.request":
            raise _NotPermitted("one that ended early")
        body += event.get("body", b"")
        more = event.get("more_body", False)
        if len(body) > most:
            raise _NotPermitted("one of too many bytes")
    return bytes(body)


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


def watch_own_user(app: Application, noticed: Callable[[str], object]) -> Application:
    """Return the node's API behind a layer that notices callers of the node's own user, and root.

    ``noticed`` is called before such a call is let through, and ends the process.
    """

    async def layer(scope: Any, receive: Any, send: Any) -> None:
        # Executors and apps post; whoever asks for the node's health gets.
        calls = scope["type"] == "http" and scope["method"] != "GET" and scope.get("client")
        if calls and can_read_the_node(owner_of(*scope["client"])):
            noticed(f"a caller of {scope['path']} is of this node's own user, or root")
        await app(scope, receive, send)

    return layer


def can_read_the_node(user: int | None) -> bool:
    """Return whether a user can read this node's files and memory: its own, and root."""
    return user is not None and user in (0, os.geteuid())


def owner_of(host: str, port: int, tables: tuple[Path, ...] = _SOCKETS) -> int | None:
    """Return the user of this machine's socket with this address, by the kernel's tables.

    None if no socket of this network has it, as from another machine or container.
    """
    address = ipaddress.ip_address(host)
    plain = getattr(address, "ipv4_mapped", None) or address
    forms = [plain.packed]
    if plain.version == 4:  # in the table of version 6 it stands so
        forms.append(bytes(10) + b"\xff\xff" + plain.packed)
    wanted = {f"{_words(packed)}:{port:04X}" for packed in forms}
    for table in tables:
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            # A socket that its process has closed is nobody's.
            if fields[1] in wanted and fields[9] != "0":
                return int(fields[7])
    return None


def _words(packed: bytes) -> str:
    """Return an address as the tables have it: words of 32 bits in this machine's order, little."""
    words = (packed[at : at + 4][::-1] for at in range(0, len(packed), 4))
    return b"".join(words).hex().upper()
