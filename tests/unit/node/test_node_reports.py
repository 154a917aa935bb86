"""The two gates of the guarded node, for every kind of proposal that there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import RELEASES, LdpMod, OwnerAuthorizer, ReleaseRequest
from flower_ldp.clients.split_embedding import OpenEmbedding
from flower_ldp.errors import ReleaseError, WireError
from flower_ldp.mechanisms import (
    BottomModelClaim,
    BoundedMean,
    CodebookResponse,
    Codeword,
    Gaussian,
    Laplace,
    SignDS,
    UnaryEncoding,
)
from flower_ldp.node.startup import named_gate
from flower_ldp.wire.embedding import (
    ALIGN,
    BACKWARD,
    EVALUATE,
    FORWARD,
    PREPARE,
    EmbeddingProposal,
    TableTerms,
)
from flower_ldp.wire.evaluation import EvalProposal
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY, UpdateProposal
from tests.fixtures import message, record, signds_proposal

MODEL = {"w": np.zeros((20, 30), dtype=np.float32)}
TRAINED = {"w": np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30)}
ROWS = {"p": np.full((3, 4), 0.25, dtype=np.float32)}
LOSS = {"loss": BoundedMean(1.0, 0.0, 4.0)}
CODES = CodebookResponse(np.eye(4, dtype=np.float32), 2.0, rows=3)
POLICY = """
data_id: ward-7
ledger: ledger.sqlite
mode: deployment
messages:
  train:
    signds: {epsilon: 2.0}
    magrr: {epsilon: 1.0}
    gaussian: {epsilon: 2.0, delta: 1.0e-6}
    codeword: {epsilon: 2.0}
  evaluate:
    laplace: {epsilon: 6.0}
    codebook_response: {epsilon: 6.0}
    bounded_mean: {epsilon: 1.0}
budgets: {client: {life: {epsilon: 100.0, delta: 1.0e-4}}}
"""


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
        dict(signds_proposal(SignDS(2.0, k=0.2, dim_out=8), 1.0, 0.01).to_fields()),
        TRAINED,
        11,
        # without the magnitude bit, with an unknown flag, and with padding that is set
        (b"\x01\x01" + bytes(9), b"\x01\x0b" + bytes(9), b"\x01\x03" + b"\xff" * 9),
    ),
    "gaussian": Kind(
        "train",
        dict(UpdateProposal(Gaussian(2.0, 1e-6, 1.0)).to_fields()),
        TRAINED,
        601,
        (b"\x01" + b"\x80" + bytes(599), b"\x02" + bytes(600)),
    ),
    "codeword": Kind(
        "train",
        dict(UpdateProposal(Codeword(2.0, 100, 24)).to_fields()),
        TRAINED,
        3,
        # 24 codes of 2,048 codewords: the first number that names none, the last, and a version
        (b"\x01\xc0\x00", b"\x01\xff\xff", b"\x02\x00\x00"),
    ),
    "laplace": Kind(
        "evaluate",
        dict(EvalProposal(Laplace(2.0, classes=4, rows=3), LOSS).to_fields()),
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
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))


def asked(kind: Kind) -> Message:
    fields = ConfigRecord({**kind.fields})  # type: ignore[dict-item]
    content = RecordDict({"arrays": record(MODEL), PROPOSAL_KEY: fields})
    return message(content, kind=kind.type)


@pytest.fixture
def site(tmp_path: Path) -> Context:
    """Return the context of a node with a policy and an empty ledger."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    Ledger.open(tmp_path / "ledger.sqlite", create=True).close()
    return Context(3, 7, {"ldp-policy": str(tmp_path / "policy.yaml")}, RecordDict(), {})


def raw_app(kind: Kind) -> Callable[[Message, Context], Message]:
    def app(one: Message, _: Context) -> Message:
        metrics = MetricRecord({"loss": 1.0, "secret": 42.0})
        return Message(RecordDict({"a": record(kind.raw), "m": metrics}), reply_to=one)

    return app


def gated_app(kind: Kind) -> Callable[[Message, Context], Message]:
    """Return what an app does whose author put LdpMod first."""
    releases = RELEASES
    gate = LdpMod(train=releases["train"], evaluate=releases["evaluate"])
    return lambda one, context: gate(one, context, raw_app(kind))


def sealing_app(kind: Kind, report: bytes) -> Callable[[Message, Context], Message]:
    """Return an app that charges as it should, and seals and sends a report of its own making."""

    def app(one: Message, context: Context) -> Message:
        opened = RELEASES[kind.type].open(one.content)
        metadata = one.metadata
        request = ReleaseRequest(
            metadata.run_id, metadata.message_id, kind.type, opened.events, opened.parameters
        )
        OwnerAuthorizer().authorize(request, context).keep(report, False)
        return reply_of(report, one)

    return app


def reply_of(report: bytes, one: Message) -> Message:
    return Message(RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: report})}), reply_to=one)


def payload(answer: Message) -> bytes:
    assert list(answer.content) == [REPORT_KEY]
    found = answer.content.config_records[REPORT_KEY]
    assert list(found) == [PAYLOAD_KEY]
    report = found[PAYLOAD_KEY]
    assert isinstance(report, bytes)
    return report


def accounts(tmp_path: Path) -> tuple[int, int]:
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        found = ledger.verify()
    return found.entries, found.sealed


@EVERY_KIND
def test_a_raw_reply_is_privatized(kind: Kind, site: Context, tmp_path: Path) -> None:
    one = asked(kind)
    report = payload(named_gate("privatize")(one, site, raw_app(kind)))
    assert len(report) == kind.length
    RELEASES[kind.type].open(one.content).check_form(report)
    assert accounts(tmp_path) == (1, 1)


@EVERY_KIND
def test_a_report_that_was_paid_for_leaves_as_it_is(
    kind: Kind, site: Context, tmp_path: Path
) -> None:
    one, sent = asked(kind), []

    def app(given: Message, context: Context) -> Message:
        sent.append(gated_app(kind)(given, context))
        return sent[0]

    assert payload(named_gate("reports")(one, site, app)) == payload(sent[0])
    assert accounts(tmp_path) == (1, 1)


@EVERY_KIND
def test_a_report_of_a_wrong_form_stays_even_if_the_ledger_holds_it(
    kind: Kind, site: Context, tmp_path: Path
) -> None:
    lengths = (b"", b"\x01", bytes(kind.length + 1), b"\x01" + bytes(kind.length - 2))
    opened = RELEASES[kind.type].open(asked(kind).content)
    for made_up in (*kind.malformed, *lengths):
        assert made_up in lengths or len(made_up) == kind.length
        with pytest.raises(WireError):
            opened.check_form(made_up)
    answer = named_gate("reports")(asked(kind), site, sealing_app(kind, kind.malformed[0]))
    opened.check_form(payload(answer))
    assert payload(answer) != kind.malformed[0]
    assert accounts(tmp_path) == (1, 1)


@EVERY_KIND
def test_what_was_not_sealed_for_this_message_stays_and_is_charged(
    kind: Kind, site: Context, tmp_path: Path
) -> None:
    def not_charging(one: Message, _: Context) -> Message:
        return reply_of(b"\x01" + bytes(kind.length - 1), one)

    def exchanging(one: Message, context: Context) -> Message:
        gated_app(kind)(one, context)
        return not_charging(one, context)

    # The report that was paid for leaves, whatever the app replies instead.
    first = payload(named_gate("reports")(asked(kind), site, exchanging))
    assert first == payload(gated_app(kind)(asked(kind), site))
    assert accounts(tmp_path) == (1, 1)
    # Where there is none, the node draws a neutral one, and gives that again.
    second = named_gate("reports")(_named(asked(kind), "m-2"), site, not_charging)
    RELEASES[kind.type].open(asked(kind).content).check_form(payload(second))
    assert payload(second) != b"\x01" + bytes(kind.length - 1)
    again = named_gate("reports")(_named(asked(kind), "m-2"), site, not_charging)
    assert payload(again) == payload(second)
    assert accounts(tmp_path) == (2, 2)


@EVERY_KIND
def test_an_app_that_is_killed_after_its_charge_is_answered_for(
    kind: Kind, site: Context, tmp_path: Path
) -> None:
    def killed(one: Message, context: Context) -> Message:
        opened = RELEASES[kind.type].open(one.content)
        metadata = one.metadata
        request = ReleaseRequest(
            metadata.run_id, metadata.message_id, kind.type, opened.events, opened.parameters
        )
        OwnerAuthorizer().authorize(request, context).close()
        raise ReleaseError("the app gave no readable reply")

    first = payload(named_gate("reports")(asked(kind), site, killed))
    RELEASES[kind.type].open(asked(kind).content).check_form(first)
    assert accounts(tmp_path) == (1, 1)
    assert payload(named_gate("reports")(asked(kind), site, gated_app(kind))) == first


@EVERY_KIND
def test_an_app_with_a_gate_of_its_own_makes_no_report_where_the_site_privatizes(
    kind: Kind, site: Context, tmp_path: Path
) -> None:
    """Its report is no raw reply, so it counts as none; and it is told of no policy."""
    node = named_gate("privatize")
    answer = node(asked(kind), site, lambda one, _: gated_app(kind)(one, _without_policy()))
    RELEASES[kind.type].open(asked(kind).content).check_form(payload(answer))
    made_up = reply_of(b"\x01" + bytes(kind.length - 1), asked(kind))
    answer = node(_named(asked(kind), "m-2"), site, lambda *_: made_up)
    sent = payload(answer)
    assert len(sent) == kind.length
    assert sent != payload(made_up)
    assert accounts(tmp_path) == (2, 2)


def _without_policy() -> Context:
    return Context(3, 7, {}, RecordDict(), {})


def _named(one: Message, name: str) -> Message:
    one.metadata.__dict__["_message_id"] = name
    return one


@pytest.mark.parametrize("name", [ALIGN, PREPARE, FORWARD, BACKWARD, EVALUATE])
@pytest.mark.parametrize("gate", [named_gate("privatize"), named_gate("reports")])
def test_messages_of_split_learning_are_refused_before_the_app_sees_them(
    gate: Callable[..., Message], name: str, site: Context, tmp_path: Path
) -> None:
    terms = TableTerms("train", "0" * 64, 10, 5)
    fields = EmbeddingProposal(UnaryEncoding(2.0, 8), terms, 0).to_fields()
    content = RecordDict({PROPOSAL_KEY: ConfigRecord({**fields})})

    def app(_: Message, __: Context) -> Message:
        raise AssertionError("the app was called")

    assert gate(message(content, kind=name), site, app).error.reason == "ldp:refused:message"
    # and under a type of message that the node does know
    for kind in ("train", "evaluate"):
        answer = gate(message(content, kind=kind), site, app)
        assert answer.error.reason == "ldp:refused:proposal"
    assert accounts(tmp_path) == (0, 0)


def test_a_site_whose_files_are_gone_refuses_until_they_are_back(
    site: Context, tmp_path: Path
) -> None:
    kind, node = KINDS["signds"], named_gate("privatize")
    for name, reason in (
        ("ledger.sqlite", "ldp:refused:ledger"),
        ("policy.yaml", "ldp:refused:policy"),
    ):
        (tmp_path / name).rename(tmp_path / "away")
        assert node(asked(kind), site, raw_app(kind)).error.reason == reason
        (tmp_path / "away").rename(tmp_path / name)
    assert payload(node(asked(kind), site, raw_app(kind)))
    assert accounts(tmp_path) == (1, 1)


@pytest.mark.parametrize("fields", [{}, {"mechanism": 3}, {"mechanism": ["signds"]}])
def test_a_proposal_that_names_no_known_mechanism_is_refused(
    fields: dict[str, int | list[str]], site: Context
) -> None:
    one = message(RecordDict({PROPOSAL_KEY: ConfigRecord({**fields})}))  # type: ignore[dict-item]
    answer = named_gate("reports")(one, site, lambda *_: one)
    assert answer.error.reason == "ldp:refused:proposal"


def test_reports_of_split_learning_are_of_no_form_that_a_node_knows() -> None:
    terms = TableTerms("train", "0" * 64, 10, 5)
    proposal = EmbeddingProposal(UnaryEncoding(2.0, 8), terms, 0)
    opened = OpenEmbedding(proposal, "0" * 64, "1" * 64, BottomModelClaim("public"))
    with pytest.raises(TypeError, match="OpenEmbedding is not known"):
        opened.check_form(b"")


def test_the_policy_that_was_named_first_stays_the_only_one(site: Context, tmp_path: Path) -> None:
    kind = KINDS["signds"]
    gate = named_gate("reports")
    assert payload(gate(asked(kind), site, raw_app(kind)))
    (tmp_path / "other.yaml").write_text(POLICY)
    other = Context(3, 7, {"ldp-policy": str(tmp_path / "other.yaml")}, RecordDict(), {})
    answer = gate(_named(asked(kind), "m-2"), other, raw_app(kind))
    assert answer.error.reason == "ldp:refused:policy"
    assert accounts(tmp_path) == (1, 1)
