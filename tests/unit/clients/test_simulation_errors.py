"""In a simulation a reply that cannot be read is as loud as an app that raises."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fixtures import make_site, payload
from tests.unit.clients.world import App, replying

pytest.importorskip("torch")

from flwr.app import MetricRecord, RecordDict

from flower_ldp.clients.split_embedding import OpenEmbedding
from flower_ldp.mechanisms import (
    BottomModelClaim,
    CodebookEmbedding,
    UnaryEncoding,
)
from flower_ldp.split import TorchParty
from flower_ldp.wire.embedding import FORWARD, EmbeddingMechanism, EmbeddingProposal, TableTerms
from tests.fixtures import record
from tests.long.test_one_form import counts, gate
from tests.unit.node.test_node_reports import KINDS, POLICY, Kind, asked, raw_app
from tests.unit.split.test_split_failures import World, forward

Change = Callable[[np.ndarray], np.ndarray]


def answering(kind: Kind, change: Change, loss: float = 1.0) -> App:
    arrays = {name: change(array.copy()) for name, array in kind.raw.items()}
    return replying(RecordDict({"a": record(arrays), "m": MetricRecord({"loss": loss})}))


def with_nan(array: np.ndarray) -> np.ndarray:
    array[1, :2] = np.nan
    array[2, 0] = np.inf
    return array


def turned(array: np.ndarray) -> np.ndarray:
    return np.asarray(array.T)


def whole(array: np.ndarray) -> np.ndarray:
    return array


#: Replies that the gate reads as a whole: of a query's rows each is read alone.
READ = {name: kind for name, kind in KINDS.items() if kind.type != "query"}
#: What is changed of the arrays, a metric, and the words that say so.
UPDATE = {
    "nan": (with_nan, 1.0, ["'w'", "(20, 30)", "2 NaN", "1 infinite"]),
    "shape": (turned, 1.0, ["'w'", "(20, 30)", "(30, 20)"]),
}
OFF = "2 of 3 rows are off the simplex"
ROWS = {
    "nan": (with_nan, 1.0, ["'p'", "(3, 4)", OFF, "2 NaN", "1 infinite"]),
    "shape": (turned, 1.0, ["'p'", "(n, 4)", "(4, 3)"]),
    "empty": (lambda array: array[:0], 1.0, ["'p'", "(n, 4)", "(0, 4)"]),
    "metric": (whole, float("nan"), ["metrics", "'loss'"]),
}
NOTHING = replying(RecordDict())
CASES = [
    pytest.param(kind, answering(kind, change, loss), words, id=f"{name}-{failure}")
    for name, kind in READ.items()
    for failure, (change, loss, words) in (UPDATE if kind.type == "train" else ROWS).items()
] + [
    pytest.param(KINDS["signds"], NOTHING, ["expected one ArrayRecord, found 0"], id="no model"),
    pytest.param(KINDS["laplace"], NOTHING, ["expected one array", "found none"], id="no rows"),
]


SIMULATION = POLICY.replace("deployment", "simulation")


@pytest.mark.parametrize(("kind", "app", "words"), CASES)
def test_a_reply_that_cannot_be_read_is_an_error_that_says_why_in_a_simulation_alone(
    kind: Kind, app: App, words: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = make_site(tmp_path, SIMULATION)
    with caplog.at_level(logging.ERROR, logger="flower_ldp"):
        assert gate()(asked(kind), site, app).error.reason == "ldp:failed"
    (line,) = caplog.messages
    assert line.startswith("simulation: no report leaves, the app failed")
    assert "Traceback" not in line  # the sentence says all
    assert [word for word in words if word not in line] == []
    deployed = tmp_path / "deployed"
    deployed.mkdir()
    assert len(payload(gate()(asked(kind), make_site(deployed, POLICY), app))) == kind.length
    assert counts(deployed) == {"failed": 1}


@pytest.mark.parametrize("name", READ)
def test_a_reply_that_can_be_read_leaves_a_report_and_no_word(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind, site = KINDS[name], make_site(tmp_path, SIMULATION)
    with caplog.at_level(logging.WARNING, logger="flower_ldp"):
        assert len(payload(gate()(asked(kind), site, raw_app(kind)))) == kind.length
    assert not caplog.messages
    if kind.type == "evaluate":  # fewer rows than asked for are no failure of the app
        fewer = asked(kind)
        fewer.metadata.__dict__["_message_id"] = "m-2"
        assert (
            len(payload(gate()(fewer, site, answering(kind, lambda rows: rows[:1])))) == kind.length
        )


def test_a_bottom_that_gives_nan_is_loud_in_a_simulation_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    world.owner.permit.is_simulation = True
    embed, asked = TorchParty.embed, list[str]()

    def nan_in_two(self: TorchParty, table: str, rows: Any) -> Any:
        asked.append(table)
        found = embed(self, table, rows)
        return np.full_like(found, np.nan) if len(asked) <= 2 else found

    monkeypatch.setattr(TorchParty, "embed", nan_in_two)
    with caplog.at_level(logging.ERROR, logger="flower_ldp"):
        reply = world.ask(FORWARD, forward(""))
    assert reply.error.reason == "ldp:failed"
    words = ("'embedding'", "(25, 32)", "2 of 25 records", "64 NaN")
    assert [word for word in words if word not in caplog.text] == []
    world.owner.permit.is_simulation = False
    assert len(world.forward().content)


TERMS = TableTerms("train", "0" * 64, 3, 3)
ONE_HOT = np.eye(3)
SCORES = np.where(ONE_HOT > 0, 1.0, -1.0)


@pytest.mark.parametrize(
    ("mechanism", "found", "words"),
    [
        (UnaryEncoding(1.0, 3), None, ["expected one array", "found none"]),
        (UnaryEncoding(1.0, 3), SCORES[:2], ["(3, 3)", "(2, 3)"]),
        (UnaryEncoding(1.0, 3), SCORES.astype(complex), ["(3, 3)", "complex128"]),
        (UnaryEncoding(1.0, 3, one_hot=True), np.ones((3, 3)), ["3 of 3 records", "one-hot"]),
        (CodebookEmbedding(1.0, 3), with_nan(ONE_HOT.copy()), ["1 of 3 records", "2 NaN"]),
        (UnaryEncoding(1.0, 3), SCORES, []),
        (UnaryEncoding(1.0, 3, one_hot=True), SCORES, []),
        (CodebookEmbedding(1.0, 3), SCORES, []),
    ],
)
def test_what_is_wrong_with_embeddings_is_said(
    mechanism: EmbeddingMechanism, found: np.ndarray | None, words: list[str]
) -> None:
    claim = BottomModelClaim("public")
    opened = OpenEmbedding(EmbeddingProposal(mechanism, TERMS, 0), (), "", "", claim)
    reply = RecordDict({} if found is None else {"embedding": record({"embedding": found})})
    said = opened.complaint(reply)
    assert (said is None) == (not words)
    assert [word for word in words if word not in (said or "")] == []
