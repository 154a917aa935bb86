"""Strategies without a run: nodes that are only there, and messages that name them."""

from __future__ import annotations

import itertools

import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from tests.fixtures import message

_numbers = itertools.count()


class FakeGrid:
    """So many nodes, from 100 on; nothing can be sent to them."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def get_node_ids(self) -> list[int]:
        return list(range(100, 100 + self.nodes))


def make_messages_outside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have strategies make messages, which Flower makes in a run alone."""

    def make(self: FedAvg, content: RecordDict, nodes: list[int], kind: str) -> list[Message]:
        return [
            message(content, node=node, kind=kind, message_id=f"f-{next(_numbers)}")
            for node in nodes
        ]

    monkeypatch.setattr(FedAvg, "_construct_messages", make)
