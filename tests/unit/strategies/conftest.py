"""Fixtures of strategies: messages outside a run, and what Flower's log is told."""

from __future__ import annotations

import itertools
import logging

import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from tests.fixtures import message

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, logger="flwr")


@pytest.fixture
def outside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have strategies make messages, which Flower makes in a run alone."""

    def make(self: FedAvg, content: RecordDict, nodes: list[int], kind: str) -> list[Message]:
        return [
            message(content, node=node, kind=kind, message_id=f"f-{next(_numbers)}")
            for node in nodes
        ]

    monkeypatch.setattr(FedAvg, "_construct_messages", make)
