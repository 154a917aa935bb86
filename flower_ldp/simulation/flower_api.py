"""Flower's internals that the simulation uses: messages, contexts and identities on the wire.

Checked with Flower 1.32 to 1.41. Before 1.38 there is no ``TaskIdentity``, and a message learns its
sender when it is sent.
"""

import contextlib
import copy
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, cast

from flwr.app import ArrayRecord, Context, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common import serde
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.message_pb2 import Context as ContextProto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

TaskIdentity: Any
try:
    from flwr.supercore.task_identity import TaskIdentity
except ModuleNotFoundError:
    TaskIdentity = None

#: What the process's identity was before each run that is under way.
_identities: list[tuple[int | None, ...]] = []
_identities_lock = threading.Lock()

#: The server's identity among the nodes.
SERVER = SUPERLINK_NODE_ID
APP_FAILED = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
APP_DIED = ErrorCode.CLIENT_APP_CRASHED
#: What a SuperLink says of a message whose time to live is over, whether it has a reply or not.
TOO_LATE = ErrorCode.MESSAGE_UNAVAILABLE
OVER = "the message's time to live has passed"
NODE_GONE = ErrorCode.NODE_UNAVAILABLE
#: How many models are kept as they are sent; a strategy sends one, or a few.
_MODELS = 4


def awaited_nodes() -> int:
    """Return how many nodes Flower's sampling waits for, if it is the caller; else 0."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is sample_nodes.__code__:
            return int(frame.f_locals["min_available_nodes"])
    return 0


@contextlib.contextmanager
def server_identity(run_id: int) -> Iterator[None]:
    """Make the server of this run the sender of messages that are made meanwhile.

    Flower has one identity per process; each grid corrects the messages that it sends.
    """
    if TaskIdentity is None:
        yield
        return
    with _identities_lock:
        _identities.append((TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id))
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, SERVER
    try:
        yield
    finally:
        with _identities_lock:
            before = _identities.pop()
            if not _identities or TaskIdentity._run_id == run_id:
                TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before


class OutgoingMessage(Message):
    """A message to a node, with shared, frozen content: named records in protobuf."""

    def __init__(self, metadata: Metadata, parts: tuple[Any, ...]) -> None:
        super().__init__(metadata=metadata, content=RecordDict())  # type: ignore[call-overload]
        self.parts = parts
        serde.message_to_proto(self)  # what cannot be written is refused now


class MessageEncoder:
    """Turns contents into protobuf, once for messages with the same model, by its arrays' bytes."""

    def __init__(self) -> None:
        self._models: OrderedDict[tuple[object, ...], tuple[Any, list[bytes]]] = OrderedDict()

    def parts(self, content: RecordDict) -> tuple[Any, ...]:
        """Return named records in protobuf; raise as :func:`outgoing` does."""
        return tuple(self._part(name, record) for name, record in content.items())

    def _part(self, name: str, record: Any) -> Any:
        if not isinstance(record, ArrayRecord):
            return _in_protobuf(name, record)
        arrays = list(record.items())
        key = name, *((key, one.dtype, one.shape, one.stype, id(one.data)) for key, one in arrays)
        if key not in self._models:
            # The bytes are kept too: an address is no other object's while they live.
            self._models[key] = _in_protobuf(name, record), [one.data for _, one in arrays]
            if len(self._models) > _MODELS:
                self._models.popitem(last=False)
        self._models.move_to_end(key)
        return self._models[key][0]


def _in_protobuf(name: str, record: Any) -> Any:
    return serde.recorddict_to_proto(RecordDict({name: record})).items[0]


def outgoing(message: Message, name: str, run_id: int, sealer: MessageEncoder | None) -> Message:
    """Return the message to send, and give both the identity ``name``, as the SuperLink does.

    Without a sealer the copy gets records of its own.

    Raises
    ------
    ValueError
        If a SuperLink would refuse it: a reply, no time to live, another run's.
    TypeError
        If there is a value that Flower does not send.
    """
    where = message.metadata
    parts = None if sealer is None else sealer.parts(message.content)
    if TaskIdentity is None or not where.message_id:
        # A new one knows the run that its thread is in, or another that runs at the same time.
        where.__dict__.update(_run_id=run_id, _src_node_id=SERVER)
    if where.reply_to_message_id or not where.ttl > 0 or where.run_id != run_id:
        raise ValueError(f"no message of this run's server: {where}")
    name_message(message, name)
    if parts is None:
        return make_message(copy.copy(where), own_records(message.content))
    return OutgoingMessage(copy.copy(where), parts)


def own_records(content: RecordDict) -> RecordDict:
    """Return the same content in records of its own; the bytes of arrays are shared."""
    found = RecordDict()
    for name, record in content.items():
        own = copy.copy(record)
        own.__dict__["_data"] = {key: copy.copy(value) for key, value in record.items()}
        found[name] = own
    return found


def with_own_records(message: Message) -> Message:
    """Return a message that shares no record with the one given."""
    if message.has_error():
        return message
    return make_message(message.metadata, own_records(message.content))


def name_message(message: Message, name: str) -> None:
    """Give a message its identity, as the SuperLink does."""
    message.metadata.__dict__["_message_id"] = name


def error_reply(metadata: Metadata, code: int, reason: str) -> Message:
    """Return Flower's error as the reply to a message."""
    asked = make_message(metadata, RecordDict())
    return Message(Error(code=code, reason=reason), reply_to=asked)


def to_bytes(message: Message) -> bytes:
    """Return a message as Flower writes it."""
    proto = serde.message_to_proto(message)
    if isinstance(message, OutgoingMessage):
        proto.content.items.extend(message.parts)
    return bytes(proto.SerializeToString())


def from_bytes(data: bytes) -> Message:
    """Return a message as Flower reads it."""
    return serde.message_from_proto(MessageProto.FromString(data))


def over_the_wire(message: Message) -> Message:
    """Return a message as its receiver would read it from bytes."""
    return from_bytes(to_bytes(message))


def as_objects(message: Message) -> Message:
    """Return a message as its receiver would assemble it from the network's objects."""
    name = message.metadata.message_id
    with no_object_id_recompute():
        tree: Any = get_object_tree(message)
        contents = {key: one.deflate() for key, one in get_all_nested_objects(message).items()}
    found = cast(Message, inflate_object_from_contents(tree.object_id, contents))
    name_message(found, name)
    return found


def context_to_bytes(context: Context) -> bytes:
    """Return a context as Flower writes it."""
    return bytes(serde.context_to_proto(context).SerializeToString())


def context_from_bytes(data: bytes) -> Context:
    """Return a context as the next process would read it from bytes."""
    return serde.context_from_proto(ContextProto.FromString(data))
