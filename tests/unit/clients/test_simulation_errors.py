"""In a simulation a reply that cannot be read is as loud as an app that raises."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from flwr.app import Context, Message, MetricRecord, RecordDict

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients.split_embedding import OpenEmbedding
from flower_ldp.mechanisms import (
    BottomModelClaim,
    CodebookEmbedding,
    UnaryEncoding,
)
from flower_ldp.split import TorchParty
from flower_ldp.wire.embedding import FORWARD, EmbeddingMechanism, EmbeddingProposal, TableTerms
from tests.fixtures import record
from tests.long.test_one_form import App, counts, gate
from tests.unit.node.test_node_reports import KINDS, POLICY, Kind, asked, payload, raw_app
from tests.unit.split.test_split_failures import World, forward

Change = Callable[[np.ndarray], np.ndarray]


@pytest.fixture
def site(tmp_path: Path) -> Context:
    """Return the context of a client with a simulation's policy."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.replace("deployment", "simulation"))
    return Context(3, 7, {"ldp-policy": str(policy)}, RecordDict(), {})


@pytest.fixture
def world(tmp_path: Path) -> World:
    found = World(tmp_path)
    found.owner.permit.is_simulation = True
    return found


def replying(kind: Kind, change: Change, **metrics: float) -> App:
    arrays = {name: change(array.copy()) for name, array in kind.raw.items()}
    told = MetricRecord({"loss": 1.0, **metrics})

    def app(one: Message, _: Context) -> Message:
        return Message(RecordDict({"a": record(arrays), "m": told}), reply_to=one)

    return app


def nothing(one: Message, _: Context) -> Message:
    return Message(RecordDict(), reply_to=one)


def with_nan(array: np.ndarray) -> np.ndarray:
    array[1, :2] = np.nan
    array[2, 0] = np.inf
    return array


def turned(array: np.ndarray) -> np.ndarray:
    return np.asarray(array.T)


def without_rows(array: np.ndarray) -> np.ndarray:
    return array[:0]


UPDATE = {
    "nothing": (lambda kind: nothing, ["expected one ArrayRecord, found 0"]),
    "nan": (lambda kind: replying(kind, with_nan), ["'w'", "(20, 30)", "2 NaN", "1 infinite"]),
    "shape": (lambda kind: replying(kind, turned), ["'w'", "(20, 30)", "(30, 20)"]),
}
ROWS = {
    "nothing": (lambda kind: nothing, ["expected one array", "found none"]),
    "nan": (
        lambda kind: replying(kind, with_nan),
        ["'p'", "(3, 4)", "2 of 3 rows are off the simplex", "2 NaN", "1 infinite"],
    ),
    "shape": (lambda kind: replying(kind, turned), ["'p'", "(n, 4)", "(4, 3)"]),
    "empty": (lambda kind: replying(kind, without_rows), ["'p'", "(n, 4)", "(0, 4)"]),
    "metric": (
        lambda kind: replying(kind, lambda array: array, loss=float("nan")),
        ["metrics", "'loss'"],
    ),
}
CASES = [
    pytest.param(kind, app, words, id=f"{name}-{failure}")
    for name, kind in KINDS.items()
    for failure, (app, words) in (UPDATE if kind.type == "train" else ROWS).items()
]


@pytest.mark.parametrize(("kind", "app", "words"), CASES)
def test_a_reply_that_cannot_be_read_is_an_error_that_says_why(
    kind: Kind,
    app: Callable[[Kind], App],
    words: list[str],
    site: Context,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, logger="flower_ldp"):
        found = gate()(asked(kind), site, app(kind))
    assert found.has_error()
    assert found.error.reason == "ldp:failed"
    (line,) = caplog.messages
    assert line.startswith("simulation: no report leaves, the app failed")
    assert "Traceback" not in line  # the sentence says all
    assert [word for word in words if word not in line] == []


@pytest.mark.parametrize(("kind", "app", "words"), CASES)
def test_in_a_deployment_the_same_reply_leaves_a_report(
    kind: Kind, app: Callable[[Kind], App], words: list[str], site: Context, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    Ledger.open(tmp_path / "ledger.sqlite", create=True).close()
    assert len(payload(gate()(asked(kind), site, app(kind)))) == kind.length
    assert counts(tmp_path) == {"failed": 1}


@pytest.mark.parametrize("name", KINDS)
def test_a_reply_that_can_be_read_leaves_a_report_and_no_word(
    name: str, site: Context, caplog: pytest.LogCaptureFixture
) -> None:
    kind = KINDS[name]
    with caplog.at_level(logging.WARNING, logger="flower_ldp"):
        assert len(payload(gate()(asked(kind), site, raw_app(kind)))) == kind.length
    assert not caplog.messages


@pytest.mark.parametrize("name", ["laplace", "codebook"])
def test_fewer_rows_than_asked_for_are_no_failure_of_the_app(name: str, site: Context) -> None:
    kind = KINDS[name]
    found = gate()(asked(kind), site, replying(kind, lambda rows: rows[:1]))
    assert len(payload(found)) == kind.length


def test_a_bottom_that_gives_nan_is_loud_in_a_simulation_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    embed, asked = TorchParty.embed, list[str]()

    def nan_in_two(self: TorchParty, table: str, rows: Any) -> Any:
        asked.append(table)
        found = embed(self, table, rows)
        return np.full_like(found, np.nan) if len(asked) <= 2 else found

    monkeypatch.setattr(TorchParty, "embed", nan_in_two)
    with caplog.at_level(logging.ERROR, logger="flower_ldp"):
        reply = world.ask(FORWARD, forward(""))
    assert reply.error.reason == "ldp:failed"
    assert "'embedding'" in caplog.text
    assert "(250, 32)" in caplog.text
    assert "2 of 250 records" in caplog.text
    assert "64 NaN" in caplog.text
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
