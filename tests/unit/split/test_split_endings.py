"""Split runs that could only go on in vain: a party without the gate, and parties that refuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from flower_ldp.mechanisms import BottomModelClaim, UnaryEncoding
from flower_ldp.strategies import PartyError, RunStopped, SplitStrategy
from flower_ldp.strategies.split_exchange import Exchange
from flower_ldp.strategies.split_tops import Rows
from flower_ldp.wire.embedding import ALIGN, BACKWARD, EVALUATE, FORWARD
from tests.fixtures import error_reply, message, record
from tests.split_world import Everything, Side, labels, local, tables

NODES, NAMES = (1, 2), ("left", "right")


class Top:
    """A top that moves all bottoms and learns nothing."""

    at: str | None = ""

    def step(self, embeddings: list[Rows], labels: np.ndarray) -> tuple[float, list[Rows]]:
        return 1.0, [np.zeros_like(rows) for rows in embeddings]

    def predict(self, embeddings: list[Rows]) -> np.ndarray:
        return np.zeros(len(embeddings[0]), dtype=np.int64)

    def loss(self, embeddings: list[Rows], labels: np.ndarray) -> float:
        return 1.0


def raw(node: int) -> Message:
    content = RecordDict({"embedding": record({"embedding": np.ones((25, 8))})})
    return message(content, node=node, reply=True)


@dataclass
class Spoiled(Exchange):
    """Two parties, of which some answer otherwise to one type of message."""

    folder: Path
    kind: str
    otherwise: Mapping[int, Message]
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        claim = BottomModelClaim("conditional")
        sides = {n: Side(s, self.folder, claim, 8) for n, s in zip(NODES, NAMES, strict=True)}
        self._inner = local(sides, Everything())

    def nodes(self, least: int) -> list[int]:
        return list(NODES)

    def ask(self, kind: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        self.asked.append(kind)
        if kind != self.kind:
            return self._inner.ask(kind, contents)
        rest = {node: one for node, one in contents.items() if node not in self.otherwise}
        return {**self._inner.ask(kind, rest), **self.otherwise}


def run(exchange: Spoiled) -> None:
    own = tables()
    strategy = SplitStrategy(Top(), UnaryEncoding(1.0, 8), own, labels(own))
    strategy.start(exchange, epochs=1)


@pytest.mark.parametrize("other", [None, "ldp:refused:budget"])
@pytest.mark.parametrize("kind", [ALIGN, FORWARD, EVALUATE, BACKWARD])
def test_a_party_without_the_gate_is_named(kind: str, other: str | None, tmp_path: Path) -> None:
    """Also where another party answers before it, or refuses."""
    first = {} if other is None else {1: error_reply(other, 1)}
    exchange = Spoiled(tmp_path, kind, {**first, 2: raw(2)})
    with pytest.raises(RunStopped) as stopped:
        run(exchange)
    text = str(stopped.value)
    party = "at node 2" if kind == ALIGN else "right"
    for words in (f"party {party}", "split_client_app", "not private", "no epsilon is counted"):
        assert words in text
    assert "left" not in text
    assert exchange.asked[-1] == kind


def test_all_parties_without_the_gate_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match="parties left, right"):
        run(Spoiled(tmp_path, FORWARD, {1: raw(1), 2: raw(2)}))


def test_a_reply_with_a_raw_record_beside_the_report_is_no_other(tmp_path: Path) -> None:
    """What stands beside a report came past the gate: it is not first among the mods."""
    mixed = raw(2)
    mixed.content["ldp.report"] = record({})
    with pytest.raises(PartyError, match=r"party right: .*LdpMod must be the first"):
        run(Spoiled(tmp_path, FORWARD, {2: mixed}))


@pytest.mark.parametrize("kind", [ALIGN, FORWARD, BACKWARD])
def test_where_all_parties_refuse_or_fail_the_error_names_all(kind: str, tmp_path: Path) -> None:
    replies = {1: error_reply("ldp:refused:budget", 1), 2: error_reply("ldp:failed", 2)}
    with pytest.raises(PartyError) as failed:
        run(Spoiled(tmp_path, kind, replies))
    text = str(failed.value)
    assert failed.value.reason == "ldp:refused:budget"
    for words in ("a budget would be exceeded", "ldp:failed", "what its log says"):
        assert words in text


def test_a_malformed_report_names_its_party(tmp_path: Path) -> None:
    short = message(RecordDict(), node=2, reply=True)
    with pytest.raises(PartyError, match="party right: "):
        run(Spoiled(tmp_path, FORWARD, {2: short}))
    cut = RecordDict({"ldp.report": ConfigRecord({"payload": b"\x01"})})
    with pytest.raises(PartyError, match=r"party right: (?!.*whose report).*report"):
        run(Spoiled(tmp_path, FORWARD, {2: message(cut, node=2, reply=True)}))
