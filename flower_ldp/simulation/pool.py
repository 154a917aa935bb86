"""Worker processes: several messages at a time, each node's always at the same worker."""

from __future__ import annotations

import os
import queue
import sys
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Literal, TypeAlias

from flwr.app import Message
from flwr.clientapp import ClientApp

from flower_ldp.simulation import flower
from flower_ldp.simulation.contexts import FIRST_NODE, Plan
from flower_ldp.simulation.serving import READY, Spawning

if TYPE_CHECKING:
    from flower_ldp.simulation.forking import Forking

#: How workers begin.
Start = Literal["fork", "spawn"]
#: Starts workers and ends them.
Starter: TypeAlias = "Forking | Spawning"
# No wait is longer at a time: on Windows a wait does not end when the user asks it to.
_SLICE_SECONDS = 0.5


def starter(start: Start | None, app: ClientApp, plan: Plan) -> Starter:
    """Return what starts workers.

    Parameters
    ----------
    start : {"fork", "spawn"} or None
        None forks on Linux, and spawns elsewhere.
    app : ClientApp
        To spawn, at the top level of a module.
    plan : Plan
        Of the nodes.

    Raises
    ------
    ValueError
        If there is no such way here, or the app cannot be found by its name.
    """
    if start not in (None, "fork", "spawn"):
        raise ValueError(f"start must be fork or spawn, got {start!r}")
    if start == "spawn" or (start is None and sys.platform != "linux"):
        return Spawning(app, plan)
    if not hasattr(os, "fork"):
        raise ValueError("this system has no fork; workers can be spawned")
    from flower_ldp.simulation.forking import Forking

    return Forking(app, plan)


class Pool:
    """Works on messages in processes, so that replies come in any order.

    A node's messages go to one worker, by its number, in the order they were sent. A worker that
    dies is an error reply for the message that it held, and another takes its place; what it
    kept in memory of its nodes is lost, what is on disk is not.

    Parameters
    ----------
    workers : int
        How many.
    starter : Starter
        Begins them. The pool closes it.
    """

    def __init__(self, workers: int, starter: Starter) -> None:
        self._starter = starter
        self._lock = threading.Lock()
        self._pending = 0
        self._replies: queue.SimpleQueue[Message | bytes] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        try:
            connections = [starter.start() for _ in range(workers)]
            for connection in connections:
                if connection.recv_bytes() != READY:
                    raise RuntimeError("a worker did not begin as it should")
        except BaseException as error:
            starter.close(at_once=True)
            if isinstance(error, (EOFError, OSError)):
                raise RuntimeError("a worker ended before it began; it said why") from error
            raise
        self._workers = [_Worker(one, starter, self._replies) for one in connections]

    def submit(self, message: Message) -> None:
        """Take a message to a node."""
        with self._lock:
            self._pending += 1
        node = message.metadata.dst_node_id
        self._workers[(node - FIRST_NODE) % len(self._workers)].submit(message)

    def answers(self, timeout: float) -> list[Message]:
        """Return replies that are there, after waiting for the first."""
        wait = max(0.0, min(timeout, _SLICE_SECONDS))
        try:
            found = [self._replies.get(timeout=wait)]
        except queue.Empty:
            return []
        while len(found) < len(self._workers) and not self._replies.empty():
            found.append(self._replies.get())
        with self._lock:
            self._pending -= len(found)
        return [flower.from_bytes(one) if isinstance(one, bytes) else one for one in found]

    @property
    def pending(self) -> int:
        """How many messages have no reply yet."""
        return self._pending

    def close(self) -> None:
        """End the workers: at once, unless none has anything to do."""
        for worker in self._workers:
            worker.close()
        self._starter.close(at_once=self._pending > 0)
        self._pending = 0  # a thread that still waits need not
        for worker in self._workers:
            worker.join()


class _Worker:
    """A worker's messages, and the thread that passes them to it one by one."""

    def __init__(
        self,
        connection: Connection,
        starter: Starter,
        replies: queue.SimpleQueue[Message | bytes],
    ) -> None:
        self._connection: Connection | None = connection
        self._starter = starter
        self._replies = replies
        self._waiting: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def submit(self, message: Message) -> None:
        self._waiting.put(message)

    def close(self) -> None:
        """Begin nothing more."""
        self._closed.set()
        self._waiting.put(None)

    def join(self) -> None:
        """Wait for the thread, once the worker has ended."""
        # Not for ever: a program that an app started may hold the worker's end of the connection.
        self._thread.join(_SLICE_SECONDS)

    def _pass_on(self) -> None:
        while (message := self._waiting.get()) is not None and not self._closed.is_set():
            self._replies.put(self._answered(message))
        if self._connection is not None:
            self._connection.close()

    def _answered(self, message: Message) -> Message | bytes:
        try:
            return self._sent(flower.to_bytes(message)).recv_bytes()
        except (EOFError, OSError):
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            node = message.metadata.dst_node_id
            reason = f"the process that worked for node {node} ended"
        except Exception as error:
            reason = f"the message could not be written: {error}"
        return flower.error_reply(message.metadata, flower.APP_DIED, reason)

    def _sent(self, data: bytes) -> Connection:
        if self._connection is not None:
            try:
                self._connection.send_bytes(data)
            except OSError:  # it ended since its last reply, and held nothing
                self._connection.close()
                self._connection = None
            else:
                return self._connection
        self._connection = self._replacement()
        self._connection.send_bytes(data)
        return self._connection

    def _replacement(self) -> Connection:
        connection = self._starter.start()
        connection.recv_bytes()  # that it is ready
        return connection
