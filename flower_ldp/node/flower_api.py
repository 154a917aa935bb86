"""The Flower internals that the guarded node uses, and a check that they are unchanged.

Flower opens a SuperNode's connection to the SuperLink in one place, as a context manager that
yields a :class:`Channel`. Nothing else reaches the SuperLink, so the guard wraps this connection.
The runtime API has many ways out, and the SuperNode's errors bypass it.

The node does not start with another Flower, which might have a second way out.
"""

import argparse
import contextlib
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import copy
from types import SimpleNamespace
from typing import Any, NamedTuple

import flwr.supercore.inflatable.inflatable_object as inflatable
import flwr.supernode.main as service
import flwr.supernode.start_client_internal as worker
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.cli import flower_supernode

from flower_ldp.node import FlowerChanged, check_here, stop
from flower_ldp.node.reply_wait import WaitingState

NodeConfig = dict[str, bool | float | int | str]

#: What the SuperNode starts apps by, in the isolation ``subprocess``.
_EXECUTOR = "flower-superexec"
#: How the SuperNode's loop asks its state for replies: since 1.41, and before.
_FETCH = ("get_messages_legacy", "get_messages")

#: By what its loop reads a bundle's settings.
_CONFIG = "get_fused_config_from_fab"

# The module, which has the same name as its function and is hidden by it.
_command: Any = sys.modules[flower_supernode.__module__]

_PARAMETERS = {
    "receive": (),
    "send": ("message", "object_tree", "clientapp_runtime"),
    "get_run": ("run_id",),
    "get_fab": ("fab_hash", "run_id"),
    "pull_object": ("run_id", "object_id"),
    "push_object": ("run_id", "session_id", "object_id", "contents"),
    "confirm_message_received": ("run_id", "object_id"),
}


class Channel(NamedTuple):
    """The SuperNode's connection to the SuperLink, in the order in which Flower unpacks it.

    A message travels as its metadata (``send``) and a tree of objects (``push_object``).
    """

    node_id: int
    receive: Callable[[], tuple[Message, Any] | None]
    send: Callable[[Message, Any, float], tuple[set[str], str]]
    get_run: Callable[[int], Any]
    get_fab: Callable[[str, int], Any]
    pull_object: Callable[[int, str], bytes]
    push_object: Callable[[int, str, str, bytes], None]
    confirm_message_received: Callable[[int, str], None]


#: Is told of a message that the SuperNode is about to get, and how to ask whether no answer to it
#: has left.
Opened = Callable[[Message, Callable[[], bool]], None]


class Setup(NamedTuple):
    """The wrapper of a node's connection, and the configuration for the app."""

    guard: Callable[[Channel, Opened], Channel]
    app_config: NodeConfig


def run_supernode(prepare: Callable[[NodeConfig], Setup]) -> None:
    """Run Flower's SuperNode, with the arguments in ``sys.argv``, behind a guard.

    ``prepare`` gets the node's configuration before anything is connected. Raises FlowerChanged.
    """
    check_flower()
    start = _command.start_client_internal
    connect = worker._init_connection

    def guarded_start(*, node_config: NodeConfig, state_factory: Any, **rest: Any) -> None:
        setup = prepare(dict(node_config))
        waiting = WaitingState(state_factory, _fetch_name())
        objects = state_factory.objectstore_factory
        factory = SimpleNamespace(state=lambda: waiting, objectstore_factory=objects)

        @contextlib.contextmanager
        def guarded_connect(*args: Any, **kwargs: Any) -> Iterator[Channel]:
            with connect(*args, **kwargs) as found:
                try:
                    channel = checked_channel(found)
                except FlowerChanged as error:
                    stop(str(error))  # Flower would catch the exception
                yield setup.guard(channel, waiting.opened)

        worker._init_connection = guarded_connect
        start(node_config=setup.app_config, state_factory=factory, **rest)

    _command.start_client_internal = guarded_start
    _command.flower_supernode()


def _fetch_name() -> str:
    for name in _FETCH:
        if name in worker._push_messages.__code__.co_names:
            return name
    raise FlowerChanged("the SuperNode's loop asks for replies by another name")


def flower_arguments() -> argparse.Namespace:
    """Return how Flower's command reads ``sys.argv``."""
    arguments: argparse.Namespace = _command._parse_args_run_supernode().parse_args()
    return arguments


def given_config(arguments: argparse.Namespace) -> NodeConfig:
    """Return the command line's node configuration."""
    text = arguments.node_config
    config: NodeConfig = _command.parse_config_args([text] if text else text)
    return config


def wrap_runtime_api(layer: Callable[[Any], Any]) -> None:
    """Put a layer around the runtime API for apps and executors."""
    create = service.create_app
    vars(service)["create_app"] = lambda *args, **kwargs: layer(create(*args, **kwargs))


def use_own_executor(program: list[str]) -> None:
    """Have the SuperNode start a program in place of ``flower-superexec``."""

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, command: list[str]) -> None:
            super().__init__([*program, *command[1:]] if command[0] == _EXECUTOR else command)

    vars(worker)["subprocess"] = SimpleNamespace(Popen=Popen)


def check_flower() -> None:
    """Raise FlowerChanged unless this module knows the installed Flower."""
    check_here()
    begin = worker.start_client_internal
    if getattr(_command, "start_client_internal", None) is not begin:
        raise FlowerChanged("the command flower-supernode does not call start_client_internal")
    missing = {"node_config", "state_factory"} - inspect.signature(begin).parameters.keys()
    if missing:
        raise FlowerChanged(f"start_client_internal has no parameters {missing}")
    _fetch_name()
    if not hasattr(ObjectStoreFactory().store(), "lock_store"):
        raise FlowerChanged("the store of objects has no lock_store")
    for function, name in (
        (begin, "Popen"),
        (begin, "_init_connection"),
        (worker._pull_and_store_message, _CONFIG),
        (_command._start_supernode_http_api, "create_app"),
    ):
        if name not in function.__code__.co_names:
            raise FlowerChanged(f"the SuperNode's {function.__name__} does not call {name}")
    constants = begin.__code__.co_consts
    if not any(_EXECUTOR in (one if isinstance(one, tuple) else (one,)) for one in constants):
        raise FlowerChanged(f"the SuperNode does not start {_EXECUTOR}")


def checked_channel(found: Any) -> Channel:
    """Return Flower's connection as a Channel, or raise FlowerChanged."""
    if not isinstance(found, tuple) or len(found) != len(Channel._fields):
        raise FlowerChanged(f"the SuperNode's connection yields {found!r}")
    channel = Channel(*found)
    for name, expected in _PARAMETERS.items():
        names = tuple(inspect.signature(getattr(channel, name)).parameters)
        if names != expected:
            raise FlowerChanged(f"the connection's {name} has parameters {names}")
    return channel


def object_ids(tree: Any) -> set[str]:
    """Return the identities of a tree's objects."""
    return {one.object_id for one in inflatable.iterate_object_tree(tree)}


def pull_contents(channel: Channel, run_id: int, tree: Any) -> dict[str, bytes]:
    """Fetch a message's objects from the SuperLink."""
    return pull_objects(sorted(object_ids(tree)), lambda one: channel.pull_object(run_id, one))


def unpack(tree: Any, contents: dict[str, bytes]) -> Message:
    """Build a message from its objects, or raise any exception."""
    message = inflate_object_from_contents(tree.object_id, dict(contents))
    if not isinstance(message, Message):
        raise TypeError(f"expected a message, got {type(message).__name__}")
    # As Flower's own receivers do: a message does not hold its own identity.
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def pack(message: Message) -> tuple[Any, dict[str, bytes]]:
    """Return a message's tree and objects, under the identity of its contents."""
    message.metadata.__dict__["_message_id"] = message.object_id
    with inflatable.no_object_id_recompute():
        objects = inflatable.get_all_nested_objects(message).items()
        return inflatable.get_object_tree(message), {name: one.deflate() for name, one in objects}


def under_identity(message: Message, other: Message) -> Message:
    """Return a copy of a message under another one's metadata."""
    found = copy(message)
    found.__dict__["_metadata"] = other.metadata
    return found


def transmit(channel: Channel, message: Message) -> None:
    """Send a whole message, with a run time of zero."""
    tree, objects = pack(message)
    with inflatable.no_object_id_recompute():
        wanted, session = channel.send(message, tree, 0.0)
    for name in sorted(wanted):
        channel.push_object(message.metadata.run_id, session, name, objects[name])


def check_config(content: bytes, run: Any) -> None:
    """Raise any exception of Flower's about a bundle's settings or a run's overrides.

    In the SuperNode's loop it would end the node.
    """
    vars(worker)[_CONFIG](content, run)
