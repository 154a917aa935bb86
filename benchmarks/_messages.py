"""Flower's messages as they come out of a grid or a node."""

from __future__ import annotations

import time
from typing import Any

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.supercore.inflatable.inflatable_object import get_object_tree

from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.node.flower_api import Channel, object_ids
from flower_ldp.wire.proposal import PROPOSAL_KEY, UpdateProposal

SERVER, NODE = 1, 2


def train_message(
    content: RecordDict,
    number: int = 0,
    *,
    source: int = SERVER,
    target: int = NODE,
    name: str = "",
    answers: str = "",
    run: int = 1,
) -> Message:
    """Return a message of training; ``answers`` names the one that it replies to."""
    where = Metadata(
        run, name, source, target, answers, f"{number}", time.time(), 3_600.0, MessageType.TRAIN
    )
    made: Message = Message(content=content, metadata=where)  # type: ignore[call-overload]
    return made


def reply_to(message: Message, arrays: ArrayRecord, examples: int) -> Message:
    """Return a client's answer."""
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": examples})})
    return Message(content, reply_to=message)


def signds_proposal(
    epsilon: float, magnitude: float | None = 1.0, threshold: float | None = 1e-3
) -> ConfigRecord:
    """Return the proposal that a SignDS strategy sends."""
    asked = SignDSRound(SignDS(epsilon, 0.2), magnitude, threshold)
    return ConfigRecord({**UpdateProposal(asked).to_fields()})


def asked_by_signds(content: RecordDict, proposal: ConfigRecord, number: int) -> Message:
    """Return what the SignDS strategy sends in a round."""
    content = RecordDict({**content, PROPOSAL_KEY: proposal})
    return train_message(content, number, name=f"ask-{number}")


class End:
    """The SuperLink's end of a node's connection, in memory."""

    node = NODE

    def __init__(self) -> None:
        self.message: Message | None = None
        self.objects: dict[str, bytes] = {}

    def channel(self) -> Channel:
        """Return the node's end."""
        return Channel(
            self.node,
            self.receive,
            self.send,
            lambda run_id: None,
            lambda fab_hash, run_id: None,
            lambda run_id, object_id: self.objects[object_id],
            self.push,
            lambda run_id, object_id: None,
        )

    def receive(self) -> tuple[Message, Any] | None:
        """Hand out the message."""
        return None if self.message is None else (self.message, get_object_tree(self.message))

    def send(self, message: Message, object_tree: Any, run_time: float) -> tuple[set[str], str]:
        """Want all objects of a message."""
        return object_ids(object_tree), "session"

    def push(self, run_id: int, session_id: str, object_id: str, contents: bytes) -> None:
        """Take an object."""
