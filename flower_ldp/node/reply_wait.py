"""Bounds the SuperNode's wait for a reply.

Flower's loop waits for ever for each object of an announced reply, or for an app that ended before
it took its message. Here it sees a reply when all its objects are there, and goes on without one
when

* the gate has answered at the policy's fixed moment;
* the app's task is over: it said so, or was silent for a minute;
* no object of an announced reply came for :data:`SILENCE` seconds.

The app's data is then dropped and its task ended, so Flower takes no further call of it. The guard
answers for it when the loop asks for the next message.

Trees of objects are registered under the store's lock. An app could otherwise have Flower drop part
of one, which is never freed, and ends the node when dropped.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

_log = logging.getLogger("flower_ldp")

#: Seconds without an object of an announced reply; Flower itself takes none after as many.
SILENCE = 180.0
_FINISHED, _FAILED = "finished", "failed"


@dataclass
class _Wait:
    run_id: int
    message_id: str
    is_open: Callable[[], bool]
    task: int | None = None
    reply: Message | None = None
    names: frozenset[str] = frozenset()
    missing: set[str] = field(default_factory=set)
    since: float = 0.0


class WaitingState:
    """The node's state as the SuperNode's loop sees it; the runtime API has the state itself.

    ``fetch`` names the method by which the loop asks for replies.
    """

    def __init__(self, factory: Any, fetch: str) -> None:
        self._state = factory.state()
        self._store = self._state.object_store
        _register_as_one(factory.objectstore_factory.store())
        self._fetch: Callable[..., Iterable[Message]] = getattr(self._state, fetch)
        vars(self)[fetch] = self.replies
        self._wait: _Wait | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def opened(self, message: Message, is_open: Callable[[], bool]) -> None:
        """Note the message that the loop is about to get.

        ``is_open`` says whether no answer to it has left.
        """
        if self._wait is not None:  # its app may not have confirmed it: then it is kept till now
            self._store.delete(self._wait.message_id)
        self._wait = _Wait(message.metadata.run_id, message.metadata.message_id, is_open)

    def create_task(self, **asked: Any) -> int | None:
        """Create the task of the open message."""
        task: int | None = self._state.create_task(**asked)
        if self._wait is not None:
            self._wait.task = task
        return task

    def replies(self, *, is_reply: bool) -> Iterable[Message]:
        """Return the whole reply, an empty list to wait on, or an empty iterator to end the wait.

        The loop waits while the result is false; an iterator is true.
        """
        wait = self._wait
        if wait is None:
            return list(self._fetch(is_reply=is_reply))
        # First, so that what came before the task's end is seen below.
        cause = self._end_of(wait)
        for one in self._fetch(is_reply=is_reply):
            self._take(wait, one)
        if wait.reply is not None and self._is_whole(wait):
            return [wait.reply]
        if cause is None:
            return []
        half = " and left half of its reply" if wait.reply is not None else ""
        _log.warning("the app is not waited for: %s%s", cause, half)
        self._end(wait)
        return iter(())

    def _end_of(self, wait: _Wait) -> str | None:
        """Return why the message is not waited for any longer."""
        if not wait.is_open():
            return "its answer has left"
        if wait.task is not None:
            tasks = self._state.get_tasks(task_ids=[wait.task])
            if any(one.status.status == _FINISHED for one in tasks):
                return "it has ended"
        if wait.reply is not None and time.monotonic() - wait.since > SILENCE:
            return f"it sent nothing for {SILENCE:g} s"
        return None

    def _take(self, wait: _Wait, reply: Message) -> None:
        """Keep a reply to the open message; drop any other."""
        name = reply.metadata.message_id
        if wait.reply is None and reply.metadata.reply_to_message_id == wait.message_id:
            try:
                tree = self._store.get_object_tree(name)
            except Exception as error:  # Flower has a type for it, in another module each release
                _log.warning("a reply without objects was dropped: %s", type(error).__name__)
            else:
                wait.reply, wait.since = reply, time.monotonic()
                wait.names = frozenset(one.object_id for one in iterate_object_tree(tree))
                wait.missing = set(wait.names)
                return
        else:
            _log.warning("a reply to no open message was dropped")
        self._state.delete_messages(message_ids=[name])
        if wait.reply is None or wait.reply.metadata.message_id != name:
            self._store.delete(name)

    def _is_whole(self, wait: _Wait) -> bool:
        """Return whether all objects are there, and note when the last one came."""
        missing = {name for name in wait.missing if not self._store.get(name)}
        if len(missing) < len(wait.missing):
            wait.missing, wait.since = missing, time.monotonic()
        # Flower may have deleted some since: it would end the node to ask for them.
        return not missing and all(self._store.get(name) for name in wait.names)

    def _end(self, wait: _Wait) -> None:
        if wait.task is not None:
            self._state.finish_task(wait.task, sub_status=_FAILED, details="not waited for")
        self._state.delete_sessions_in_run(wait.run_id)
        reply = [] if wait.reply is None else [wait.reply.metadata.message_id]
        names = [wait.message_id, *reply]
        self._state.delete_messages(message_ids=names)
        for name in names:
            self._store.delete(name)


def _register_as_one(store: Any) -> None:
    plain, lock = store.preregister, store.lock_store

    def preregister(run_id: int, object_tree: Any) -> list[str]:
        with lock:
            return list(plain(run_id, object_tree))

    vars(store)["preregister"] = preregister
