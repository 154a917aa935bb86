"""The two gates of the guarded node, for every kind of proposal that there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from flower_ldp import mechanisms
from flower_ldp.clients import RELEASES, LdpMod, OwnerAuthorizer
from flower_ldp.clients.split_embedding import OpenEmbedding
from flower_ldp.errors import ReleaseError, WireError
from flower_ldp.node.startup import named_gate
from flower_ldp.wire import embedding as split
from flower_ldp.wire.counts import CountsProposal
from flower_ldp.wire.evaluation import EvalProposal
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY, UpdateProposal
from tests.fixtures import (
    accounts,
    make_site,
    message,
    not_called,
    payload,
    policy_text,
    record,
    signds_proposal,
)
from tests.unit.clients.world import App, asking, replying
from tests.unit.node.test_guard import MODEL, NO_SITE, TRAINED

ROWS = {"p": np.full((3, 4), 0.25, dtype=np.float32)}
LOSS = {"loss": mechanisms.BoundedMean(1.0, 0.0, 4.0)}
CODES = mechanisms.CodebookResponse(np.eye(4, dtype=np.float32), 2.0, rows=3)
POLICY = policy_text(
    """
  train: {signds: {epsilon: 2.0}, magrr: {epsilon: 1.0}, codeword: {epsilon: 2.0},
    gaussian: {epsilon: 2.0, delta: 1.0e-6}}
  evaluate: {laplace: {epsilon: 6.0}, codebook_response: {epsilon: 6.0},
    bounded_mean: {epsilon: 1.0}}
  query: {counts: {epsilon: 1.0, unit: example}}""",
    budgets="client: &all {life: {epsilon: 100.0, delta: 1.0e-4}}, example: *all",
)
POLICY += "examples: 3\n"
QUESTION = CountsProposal({"age": [0.0, 50.0, 120.0]}, [("age",)], 1.0)
TERMS = split.TableTerms("train", "0" * 64, 10, 5)
EMBEDDING = split.EmbeddingProposal(mechanisms.UnaryEncoding(2.0, 8), TERMS, 0)


@dataclass(frozen=True)
class Kind:
    """A kind of proposal: its message, what the app computes, and reports that are none."""

    type: str
    fields: dict[str, object]
    raw: dict[str, np.ndarray]
    length: int
    malformed: tuple[bytes, ...]


KINDS = {
    "signds": Kind(
        "train",
        dict(signds_proposal(mechanisms.SignDS(2.0, k=0.2, dim_out=8), 1.0, 0.01).to_fields()),
        TRAINED,
        11,
        # without the magnitude bit, with an unknown flag, and with padding that is set
        (b"\x01\x01" + bytes(9), b"\x01\x0b" + bytes(9), b"\x01\x03" + b"\xff" * 9),
    ),
    "gaussian": Kind(
        "train",
        dict(UpdateProposal(mechanisms.Gaussian(2.0, 1e-6, 1.0)).to_fields()),
        TRAINED,
        601,
        (b"\x01" + b"\x80" + bytes(599), b"\x02" + bytes(600)),
    ),
    "codeword": Kind(
        "train",
        dict(UpdateProposal(mechanisms.Codeword(2.0, 100, 24)).to_fields()),
        TRAINED,
        3,
        # 24 codes of 2,048 codewords: the first number that names none, the last, and a version
        (b"\x01\xc0\x00", b"\x01\xff\xff", b"\x02\x00\x00"),
    ),
    "laplace": Kind(
        "evaluate",
        dict(EvalProposal(mechanisms.Laplace(2.0, classes=4, rows=3), LOSS).to_fields()),
        ROWS,
        2 + 12 * 3 + 8,
        (b"\x01\x02" + bytes(44), b"\x02\x01" + bytes(44)),
    ),
    "codebook": Kind(
        "evaluate",
        dict(EvalProposal(CODES, LOSS).to_fields()),
        ROWS,
        2 + 3 + 8,
        (b"\x01\x02\x00\x04\x00" + bytes(8), b"\x01\x02\xff\x00\x00" + bytes(8)),
    ),
    "counts": Kind(
        "query",
        dict(QUESTION.to_fields()),
        {"age": np.array([20.0, 70.0, 90.0])},
        8 * 4,
        # of no examples, and with a count beyond all examples and 64 noise scales
        (bytes(8 * 4), b"\x03" + bytes(8 * 3 - 1) + b"\xff" * 7 + b"\x7f"),
    ),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))


def asked(kind: Kind, name: str = "m-1") -> Message:
    return message(asking(kind.fields, MODEL), kind=kind.type, message_id=name)


@pytest.fixture
def site(tmp_path: Path) -> Context:
    return make_site(tmp_path, POLICY)


def raw_app(kind: Kind) -> App:
    metrics = MetricRecord({"loss": 1.0, "secret": 42.0})
    return replying(RecordDict({"a": record(kind.raw), "m": metrics}))


def gated_app(kind: Kind) -> App:
    """Return what an app does whose author put LdpMod first."""
    gate = LdpMod(actions=RELEASES)
    return lambda one, context: gate(one, context, raw_app(kind))


def charged(kind: Kind, one: Message, context: Context) -> Any:
    """Charge as an app should, and return its permit."""
    opened = RELEASES[kind.type].open(one.content)
    return OwnerAuthorizer().authorize(opened.request(one.metadata), context)


def check_form(kind: Kind, report: bytes) -> None:
    RELEASES[kind.type].open(asked(kind).content).check_form(report)


def sealing_app(kind: Kind, report: bytes) -> App:
    """Return an app that charges as it should, and seals and sends a report of its own making."""

    def app(one: Message, context: Context) -> Message:
        charged(kind, one, context).keep(report, False)
        return reply_of(report, one)

    return app


def reply_of(report: bytes, one: Message) -> Message:
    return Message(RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: report})}), reply_to=one)


@EVERY_KIND
def test_a_raw_reply_is_privatized(kind: Kind, site: Context, tmp_path: Path) -> None:
    report = payload(named_gate("privatize")(asked(kind), site, raw_app(kind)))
    assert len(report) == kind.length
    check_form(kind, report)
    assert accounts(tmp_path) == (1, 1)


@EVERY_KIND
def test_a_paid_report_leaves_as_it_is(kind: Kind, site: Context, tmp_path: Path) -> None:
    one, sent = asked(kind), []

    def app(given: Message, context: Context) -> Message:
        sent.append(gated_app(kind)(given, context))
        return sent[0]

    assert payload(named_gate("reports")(one, site, app)) == payload(sent[0])
    assert accounts(tmp_path) == (1, 1)


@EVERY_KIND
def test_a_report_of_a_wrong_form_stays(kind: Kind, site: Context, tmp_path: Path) -> None:
    """Even if the ledger holds it."""
    lengths = (b"", b"\x01", bytes(kind.length + 1), b"\x01" + bytes(kind.length - 2))
    assert {len(made_up) for made_up in kind.malformed} == {kind.length}
    for made_up in (*kind.malformed, *lengths):
        with pytest.raises(WireError):
            check_form(kind, made_up)
    answer = named_gate("reports")(asked(kind), site, sealing_app(kind, kind.malformed[0]))
    check_form(kind, payload(answer))
    assert payload(answer) != kind.malformed[0]
    assert accounts(tmp_path) == (1, 1)


@EVERY_KIND
def test_what_was_not_sealed_stays(kind: Kind, site: Context, tmp_path: Path) -> None:
    zeros, node = b"\x01" + bytes(kind.length - 1), named_gate("reports")

    def not_charging(one: Message, _: Context) -> Message:
        return reply_of(zeros, one)

    def exchanging(one: Message, context: Context) -> Message:
        gated_app(kind)(one, context)
        return reply_of(zeros, one)

    # The report that was paid for leaves, whatever the app replies instead.
    first = payload(node(asked(kind), site, exchanging))
    assert first == payload(gated_app(kind)(asked(kind), site))
    assert accounts(tmp_path) == (1, 1)
    # Where there is none, the node draws a neutral one, and gives that again.
    second = payload(node(asked(kind, "m-2"), site, not_charging))
    check_form(kind, second)
    assert second != zeros
    assert payload(node(asked(kind, "m-2"), site, not_charging)) == second
    assert accounts(tmp_path) == (2, 2)


@EVERY_KIND
def test_an_app_killed_after_its_charge(kind: Kind, site: Context, tmp_path: Path) -> None:
    def killed(one: Message, context: Context) -> Message:
        charged(kind, one, context).close()
        raise ReleaseError("the app gave no readable reply")

    first = payload(named_gate("reports")(asked(kind), site, killed))
    check_form(kind, first)
    assert accounts(tmp_path) == (1, 1)
    assert payload(named_gate("reports")(asked(kind), site, gated_app(kind))) == first


@EVERY_KIND
def test_an_apps_own_gate_makes_no_report(kind: Kind, site: Context, tmp_path: Path) -> None:
    """Its report is no raw reply, so it counts as none; and it is told of no policy."""
    node = named_gate("privatize")
    answer = node(asked(kind), site, lambda one, _: gated_app(kind)(one, NO_SITE))
    check_form(kind, payload(answer))
    made_up = reply_of(b"\x01" + bytes(kind.length - 1), asked(kind))
    if kind.type == "query":  # no epsilon per example covers a failure of the whole
        refused = node(asked(kind, "m-2"), site, lambda *_: made_up)
        assert refused.error.reason == "ldp:refused:budget"
        return
    sent = payload(node(asked(kind, "m-2"), site, lambda *_: made_up))
    assert len(sent) == kind.length
    assert sent != payload(made_up)
    assert accounts(tmp_path) == (2, 2)


PARTIES = (split.ALIGN, split.PREPARE, split.FORWARD, split.BACKWARD, split.EVALUATE)


@pytest.mark.parametrize("name", PARTIES)
@pytest.mark.parametrize("gate", [named_gate("privatize"), named_gate("reports")])
def test_messages_of_split_learning_never_reach_the_app(
    gate: Callable[..., Message], name: str, site: Context, tmp_path: Path
) -> None:
    content = RecordDict({PROPOSAL_KEY: ConfigRecord({**EMBEDDING.to_fields()})})
    # Nor under a type of message that the node does know.
    for kind, code in ((name, "message"), ("train", "proposal"), ("evaluate", "proposal")):
        answer = gate(message(content, kind=kind), site, not_called)
        assert answer.error.reason == f"ldp:refused:{code}"
    assert accounts(tmp_path) == (0, 0)


def test_a_site_without_its_files_refuses(site: Context, tmp_path: Path) -> None:
    kind, node = KINDS["signds"], named_gate("privatize")
    for name in ("ledger.sqlite", "policy.yaml"):
        (tmp_path / name).rename(tmp_path / "away")
        reason = node(asked(kind), site, raw_app(kind)).error.reason
        assert reason == f"ldp:refused:{name.partition('.')[0]}"
        (tmp_path / "away").rename(tmp_path / name)
    assert payload(node(asked(kind), site, raw_app(kind)))
    assert accounts(tmp_path) == (1, 1)


@pytest.mark.parametrize("fields", [{}, {"mechanism": 3}, {"mechanism": ["signds"]}])
def test_unknown_mechanisms_are_refused(fields: dict[str, int | list[str]], site: Context) -> None:
    one = message(RecordDict({PROPOSAL_KEY: ConfigRecord({**fields})}))  # type: ignore[dict-item]
    answer = named_gate("reports")(one, site, lambda *_: one)
    assert answer.error.reason == "ldp:refused:proposal"


def test_reports_of_split_learning_are_of_no_form_that_a_node_knows() -> None:
    opened = OpenEmbedding(EMBEDDING, "0" * 64, "1" * 64, mechanisms.BottomModelClaim("public"))
    with pytest.raises(TypeError, match="OpenEmbedding is not known"):
        opened.check_form(b"")


def test_the_policy_that_was_named_first_stays_the_only_one(site: Context, tmp_path: Path) -> None:
    kind = KINDS["signds"]
    gate = named_gate("reports")
    assert payload(gate(asked(kind), site, raw_app(kind)))
    (tmp_path / "other.yaml").write_text(POLICY)
    other = Context(3, 7, {"ldp-policy": f"{tmp_path}/other.yaml"}, RecordDict(), {})
    answer = gate(asked(kind, "m-2"), other, raw_app(kind))
    assert answer.error.reason == "ldp:refused:policy"
    assert accounts(tmp_path) == (1, 1)
