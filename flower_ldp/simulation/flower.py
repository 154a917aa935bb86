"""All that the engine knows of Flower's internals: what a network would do with a message.

Public classes make apps and messages. How a message, a context or a run looks on the wire, and
which identity Flower's ``Message`` takes for its sender, is not public, so it stands in this file
alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import (
    context_from_proto,
    context_to_proto,
    message_from_proto,
    message_to_proto,
)
from flwr.proto.message_pb2 import Context as ContextProto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

#: The server's identity among the nodes.
SERVER = SUPERLINK_NODE_ID
APP_FAILED = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
TOO_LATE = ErrorCode.REPLY_MESSAGE_UNAVAILABLE
NODE_GONE = ErrorCode.NODE_UNAVAILABLE


def make_run(run_id: int) -> Run:
    """Return what Flower tells a server app of its run."""
    return Run.create_empty(run_id)


@contextlib.contextmanager
def server_identity(run_id: int) -> Iterator[None]:
    """Let messages that are made meanwhile come from the server, in this run."""
    names = ("_task_id", "_run_id", "_node_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, SERVER
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, name, value)


def name_message(message: Message, name: str) -> None:
    """Give a message its identity, which the SuperLink does."""
    message.metadata.__dict__["_message_id"] = name


def error_reply(metadata: Metadata, code: int, reason: str) -> Message:
    """Return Flower's error as the reply to the message that has this metadata."""
    message = Message(RecordDict(), metadata.dst_node_id, metadata.message_type)
    message.__dict__["_metadata"] = metadata
    return Message(Error(code=code, reason=reason), reply_to=message)


def over_the_wire(message: Message) -> Message:
    """Return a message as its receiver would read it from bytes."""
    return message_from_proto(
        MessageProto.FromString(message_to_proto(message).SerializeToString())
    )


def as_objects(message: Message) -> Message:
    """Return a message as its receiver would put it together from the network's objects."""
    name = message.metadata.message_id
    with no_object_id_recompute():
        tree: Any = get_object_tree(message)
        contents = {key: one.deflate() for key, one in get_all_nested_objects(message).items()}
    found = inflate_object_from_contents(tree.object_id, contents)
    if not isinstance(found, Message):
        raise TypeError(f"expected a message, got {type(found).__name__}")
    name_message(found, name)
    return found


def context_over_the_wire(context: Context) -> Context:
    """Return a context as the next process would read it from bytes."""
    return context_from_proto(
        ContextProto.FromString(context_to_proto(context).SerializeToString())
    )
