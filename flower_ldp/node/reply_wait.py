"""What the SuperNode's loop waits for: a whole reply to the open message, or the end of the wait.

Flower's loop takes a reply when the app has announced it, and then waits for ever for each of its
objects; it also waits for ever for an app that ended before it took its message. So an app that is
killed at the wrong moment would stop the node. Here the loop sees a reply when all its objects are
there. It goes on to the next message without one when

* the gate has answered: the policy sets a fixed moment, and that has come;
* the app's task is over: it said so, or Flower has heard nothing of it for a minute;
* a reply was announced, and no object of it came for :data:`SILENCE` seconds.

What the app sent by then is dropped and its task is ended, so that Flower takes no call of it any
more. The guard answers for it when the loop asks for the next message.

Flower takes a tree of objects in one by one. If it drops what is below an object between two of
them, as an app can have it do, the tree is left without its lower part: it is never freed, and to
drop it ends the node. So here a tree is taken in as one.
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
    """The open message, and what has come of its reply."""

    run_id: int
    message_id: str
    is_open: Callable[[], bool]
    task: int | None = None
    reply: Message | None = None
    names: frozenset[str] = frozenset()
    missing: set[str] = field(default_factory=set)
    since: float = 0.0


class WaitingState:
    """A node's state, as the SuperNode's loop is to see it; the runtime API has the state itself.

    Parameters
    ----------
    factory : NodeStateFactory
        Flower's.
    fetch : str
        The name of the method by which the loop asks its state for replies.
    """

    def __init__(self, factory: Any, fetch: str) -> None:
        self._state = factory.state()
        self._store = self._state.object_store
        _register_as_one(factory.objectstore_factory.store())
        self._fetch: Callable[..., Iterable[Message]] = getattr(self._state, fetch)
        vars(self)[fetch] = self.replies
        self._wait: _Wait | None = None

    def __getattr__(self, name: str) -> Any:
        """Return what the loop does not wait by: the state's own."""
        return getattr(self._state, name)

    def opened(self, message: Message, is_open: Callable[[], bool]) -> None:
        """Take note of the message that the loop is about to get.

        Parameters
        ----------
        message : Message
            As the loop sees it.
        is_open : callable
            Whether no answer to it has left.
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
        """Return the whole reply; nothing if there is none yet; or what ends the loop's wait.

        The loop waits while this is false. An iterator is true, and an empty one holds no reply.
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
        """Return why the open message is not waited for any longer."""
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
        """End the app's task, and drop what there is of its message and reply."""
        if wait.task is not None:
            self._state.finish_task(wait.task, sub_status=_FAILED, details="not waited for")
        self._state.delete_sessions_in_run(wait.run_id)
        reply = [] if wait.reply is None else [wait.reply.metadata.message_id]
        names = [wait.message_id, *reply]
        self._state.delete_messages(message_ids=names)
        for name in names:
            self._store.delete(name)


def _register_as_one(store: Any) -> None:
    """Have Flower's store drop nothing while it takes a tree in."""
    plain, lock = store.preregister, store.lock_store

    def preregister(run_id: int, object_tree: Any) -> list[str]:
        with lock:
            return list(plain(run_id, object_tree))

    vars(store)["preregister"] = preregister
