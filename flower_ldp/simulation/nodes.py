"""The nodes of a run: the client app's answers, and each node's context between two messages."""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from flwr.app import Context, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp

from flower_ldp.simulation import flower_api

_log = logging.getLogger("flwr")

Sent = TypeVar("Sent")

#: Where the contexts of nodes are between two messages.
Keeping = Literal["memory", "disk", "drop"]

Config = Mapping[str, bool | float | int | str]

#: Added to a partition's number: an identity that is no number of a partition, and the same in
#: each run, so that runs can be compared.
FIRST_NODE = 1_000_000


class Folder:
    """A file of bytes for each node."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def get(self, node: int, /) -> bytes | None:
        """Return the file's bytes, or None."""
        with contextlib.suppress(FileNotFoundError):
            return (self._path / str(node)).read_bytes()
        return None

    def __setitem__(self, node: int, kept: bytes, /) -> None:
        """Replace the file at once: a process that dies leaves the old one."""
        new = self._path / f"{node}.new"
        with contextlib.suppress(FileNotFoundError):  # the folder goes when the run ends
            new.write_bytes(kept)
            new.replace(self._path / str(node))


@dataclass(frozen=True)
class Plan:
    """The nodes of a run, without their app.

    Parameters
    ----------
    run_id, count : int
        Of the run, and the number of nodes, at least 1.
    run_config, node_config : mapping
        Of every app, and of every node.
    strict : bool
        Whether messages and contexts pass through bytes.
    contexts, folder : {"memory", "disk", "drop"} and str, optional
        Place of contexts between two messages, and an existing folder for those on disk.
    expire : bool
        Whether nodes check times to live by the machine's clock.
    """

    run_id: int
    count: int
    run_config: Config
    node_config: Config
    strict: bool = True
    contexts: Keeping = "memory"
    folder: str | None = None
    expire: bool = True

    @property
    def ids(self) -> range:
        """The nodes' identities."""
        return range(FIRST_NODE, FIRST_NODE + self.count)


class Nodes:
    """Virtual nodes, one for each partition.

    ``kept`` has the contexts that the app has changed, as Flower's bytes on disk and where messages
    are bytes: an app's own references then do not change them.
    """

    def __init__(self, app: ClientApp, plan: Plan) -> None:
        self._app = app
        self._plan = plan
        self.kept: Folder | dict[int, Any] = {} if plan.folder is None else Folder(plan.folder)
        self._as_bytes = plan.strict or plan.folder is not None
        self._seen: set[tuple[int, str]] = set()
        if self._as_bytes:  # what Flower refuses in a configuration, it refuses before the run
            flower_api.context_to_bytes(self._new(FIRST_NODE))

    def answer(self, message: Message) -> Message:
        """Return a node's reply, or Flower's error if the app raised."""
        if not self._plan.strict:
            return self._answer(message, flower_api.with_own_records)
        return self._answer(flower_api.over_the_wire(message), flower_api.over_the_wire)

    def answer_bytes(self, data: bytes) -> bytes:
        """Return the reply to another process's message."""
        return self._answer(flower_api.from_bytes(data), flower_api.to_bytes)

    def take(self, node: int) -> Context:
        """Return a node's context."""
        kept: Any = self.kept.get(node)
        if kept is None:
            return self._new(node)
        found: Context = flower_api.context_from_bytes(kept) if self._as_bytes else kept
        found.run_config = dict(self._plan.run_config)  # what an app did to it was refused
        return found

    def keep(self, node: int, context: Context) -> None:
        """Store a context as the app left it.

        ValueError for a changed ``run_config``, or a value that Flower does not write.
        """
        if context.run_config != self._plan.run_config:
            raise ValueError("the app changed its run_config, which Flower refuses")
        unchanged = not len(context.state) and context.node_config == self._node_config(node)
        if unchanged and self.kept.get(node) is None:
            return
        kept: Any = context
        if self._as_bytes:
            known = Context(context.run_id, node, context.node_config, context.state, {})
            kept = flower_api.context_to_bytes(known)
        if self._plan.contexts != "drop":
            self.kept[node] = kept

    def _new(self, node: int) -> Context:
        run_config = dict(self._plan.run_config)
        config = self._node_config(node)
        return Context(self._plan.run_id, node, config, RecordDict(), run_config)

    def _node_config(self, node: int) -> UserConfig:
        of_node = {"num-partitions": self._plan.count, "partition-id": node - FIRST_NODE}
        return {**self._plan.node_config, **of_node}

    def _answer(self, message: Message, send: Callable[[Message], Sent]) -> Sent:
        where = message.metadata
        node = where.dst_node_id
        if node not in self._plan.ids:
            return send(
                flower_api.error_reply(where, flower_api.NODE_GONE, f"there is no node {node}")
            )
        if self._plan.expire and where.created_at + where.ttl <= time.time():
            return send(flower_api.error_reply(where, flower_api.TOO_LATE, flower_api.OVER))
        kind = node, where.message_type
        first = self._plan.strict and kind not in self._seen
        self._seen.add(kind)
        try:
            context, process = self.take(node), os.getpid()
            try:
                reply = self._app(flower_api.as_objects(message) if first else message, context)
            finally:
                if os.getpid() != process:
                    _end_copy(sys.exc_info()[1])
            if not isinstance(reply, Message):
                raise TypeError(f"a client app returns a Message, got {type(reply).__name__}")
            if reply.metadata.reply_to_message_id != where.message_id:
                raise ValueError("the client app's message is no reply to the one it got")
            sent = send(flower_api.as_objects(reply) if first else reply)
            self.keep(node, context)
        except (Exception, SystemExit) as error:
            _log.exception("the client app of node %d (partition %d)", node, node - FIRST_NODE)
            return send(flower_api.error_reply(where, flower_api.APP_FAILED, _words(error)))
        return sent


def _words(error: BaseException) -> str:
    try:
        text = f"{type(error)}:<'{error}'>"
    except Exception:
        text = f"{type(error)}, which has no text"
    # The name of a file may hold what is not sent.
    return text.encode(errors="backslashreplace").decode()


def _end_copy(error: BaseException | None) -> NoReturn:
    """End a process that the app forked: only the original answers."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    status = 0 if error is None else 1
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        status = (error.code or 0) & 0xFF
    os._exit(status)
