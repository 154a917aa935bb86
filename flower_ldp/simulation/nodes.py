"""The nodes of a run in one process: a context for each, and the client app's answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import Context, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp

from flower_ldp.simulation import flower

_log = logging.getLogger("flwr")

#: Added to a partition's number: an identity that is no number of a partition, and the same in
#: each run, so that runs can be compared.
FIRST_NODE = 1_000_000


@dataclass
class Nodes:
    """Virtual nodes, one for each partition.

    Parameters
    ----------
    app : ClientApp
        Answers for each of them.
    count : int
        How many; at least 1.
    run_id : int
        Of the run.
    run_config : mapping
        As every app of the run gets it.
    node_config : mapping
        Of every node, beside ``partition-id`` and ``num-partitions``.
    strict : bool
        Whether messages and contexts go through bytes, as over a network.
    keep_contexts : bool
        Whether a node's state outlasts a message, as Flower keeps it for a run. False saves the
        memory where nodes are asked once.
    """

    app: ClientApp
    count: int
    run_id: int
    run_config: Mapping[str, bool | float | int | str]
    node_config: Mapping[str, bool | float | int | str]
    strict: bool = True
    keep_contexts: bool = True
    _contexts: dict[int, Context] = field(default_factory=dict)
    _seen: set[tuple[int, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        if not isinstance(self.app, ClientApp):
            raise TypeError(f"client_app must be a ClientApp, got {type(self.app).__name__}")
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise ValueError(f"num_nodes must be an integer of at least 1, got {self.count!r}")

    @property
    def ids(self) -> range:
        """The nodes' identities."""
        return range(FIRST_NODE, FIRST_NODE + self.count)

    def answer(self, message: Message) -> Message:
        """Return a node's reply: its app's, or Flower's error if the app raised."""
        node = message.metadata.dst_node_id
        if node not in self.ids:
            return _error(flower.NODE_GONE, f"there is no node {node}", message)
        if message.metadata.created_at + message.metadata.ttl <= time.time():
            return _error(flower.TOO_LATE, "the message's time to live has passed", message)
        first = self.strict and self._is_first(node, message.metadata.message_type)
        received = self._sent(message, first=first)
        context = self._context(node)
        try:
            reply = self.app(received, context)
            if not isinstance(reply, Message):
                raise TypeError(f"a client app returns a Message, got {type(reply).__name__}")
            if reply.metadata.reply_to_message_id != message.metadata.message_id:
                raise ValueError("a client app's message is no reply to the one it got")
            reply = self._sent(reply, first=first)
            self._keep(node, context)
        except Exception as error:
            _log.exception("the client app of node %d (partition %d)", node, node - FIRST_NODE)
            return _error(flower.APP_FAILED, f"{type(error)}:<'{error}'>", message)
        return reply

    def _is_first(self, node: int, kind: str) -> bool:
        found = (node, kind) not in self._seen
        self._seen.add((node, kind))
        return found

    def _sent(self, message: Message, *, first: bool) -> Message:
        if not self.strict:
            return message
        found = flower.over_the_wire(message)
        return flower.as_objects(found) if first else found

    def _context(self, node: int) -> Context:
        known = self._contexts.get(node)
        if known is None:
            config: UserConfig = {
                **self.node_config,
                "partition-id": node - FIRST_NODE,
                "num-partitions": self.count,
            }
            known = Context(
                run_id=self.run_id,
                node_id=node,
                node_config=config,
                state=RecordDict(),
                run_config=dict(self.run_config),
            )
        return flower.context_over_the_wire(known) if self.strict else known

    def _keep(self, node: int, context: Context) -> None:
        if context.run_config != dict(self.run_config):
            raise ValueError("the app changed its run_config, which Flower refuses")
        if self.keep_contexts:
            self._contexts[node] = context


def _error(code: int, reason: str, message: Message) -> Message:
    return flower.error_reply(message.metadata, code, reason)
