"""Listed apps on the guarded node: whose claims leave, and that nobody's word makes an app one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.fab import Fab
from flwr.supercore.run import Run, RunNotRunningException

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.app_digests import digest_of, this_environment
from flower_ldp.clients import RELEASES
from flower_ldp.mechanisms import KaryResponse, UnaryEncoding
from flower_ldp.node.flower_api import Channel
from flower_ldp.node.gates import AppListGate, listed_apps
from flower_ldp.node.guard import Guard
from flower_ldp.node.received_apps import ReceivedApps
from flower_ldp.node.startup import named_gate
from flower_ldp.privacy import Unit
from flower_ldp.wire.embedding import (
    ALIGN,
    BACKWARD,
    EVALUATE,
    FORWARD,
    PREPARE,
    REWIND,
    EmbeddingProposal,
    TableTerms,
    embeddings_length,
)
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY
from tests.bundles import FILES, packed
from tests.fixtures import message, record
from tests.unit.node.test_guard import LENGTH, TRAINED, Link, ask, entries, payload, reply

APP = packed()
#: One byte of one file is another.
OTHER = packed({**FILES, "pinned_app/client.py": "app = nonE"})
DIGEST = digest_of(APP)
REFUSED = "ldp:refused:app"
LISTED = """
    releases: [embedding_dp, bottom_training]
    run_config: {rate: {numbers: [0.01, 1.0]}, steps: {integers: [1, 20]}}
"""
POLICY = """
data_id: ward-7
ledger: ledger.sqlite
mode: deployment
messages: {train: {signds: {epsilon: 2.0}}}
budgets: {client: {life: {epsilon: 60.0}}, label: {life: {epsilon: 60.0}}}
"""
EMBEDDING = UnaryEncoding(2.0, 4)
TERMS = TableTerms("train", "0" * 64, 5, 3)
INTRODUCTION = (
    b'{"name": "left", "claim": "public", "epsilon": 0.0, "delta": 0.0, "step": "", "earlier": []}'
)


@dataclass
class Far(Link):
    """The far end, which names what it likes of the runs and bundles that it hands out."""

    apps: dict[int, bytes] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)
    announced: dict[str, Any] = field(default_factory=dict)
    asked: int = 0
    stopped: bool = False

    def __post_init__(self) -> None:
        Link.__init__(self)

    def channel(self) -> Channel:
        return super().channel()._replace(get_run=self._run, get_fab=self._fab)

    def _receive(self) -> tuple[Message, Any] | None:
        received = super()._receive()
        if received is None or not self.announced:
            return received
        one, tree = received
        other = copy(one)
        other.__dict__["_metadata"] = copy(one.metadata)
        vars(other.metadata).update({f"_{name}": it for name, it in self.announced.items()})
        return other, tree

    def taken(self) -> Message:
        """Return what was sent, and forget it."""
        sent = self.sent[-1]
        self.sent.clear()
        self._got.clear()
        return sent

    def _run(self, run_id: int) -> Run:
        if self.stopped:
            raise RunNotRunningException
        self.asked += 1
        plain = sha256(self.apps[run_id]).hexdigest()
        said = {"fab_id": "ward/pinned-app", "fab_version": "1.0.0", **self.said}
        return replace(Run.create_empty(run_id), **{"fab_hash": plain, "series_id": 5, **said})

    def _fab(self, fab_hash: str, run_id: int) -> Fab:
        return Fab(fab_hash, self.apps[run_id], {})


def site(
    tmp_path: Path, listed: str = LISTED, gate: str = "privatize", extra: str = "", app: bytes = APP
) -> tuple[Far, Channel]:
    apps = f"apps:\n  {DIGEST}:{listed}" if listed else ""
    (tmp_path / "policy.yaml").write_text(f"{POLICY}{extra}\n{apps}")
    if not (tmp_path / "ledger.sqlite").exists():
        Ledger.open(tmp_path / "ledger.sqlite", create=True).close()
    config: Any = {"ldp-policy": str(tmp_path / "policy.yaml")}
    far = Far(apps={3: app})
    received = ReceivedApps(lambda digest: digest in listed_apps(config))
    pinned = AppListGate(named_gate(gate), received.of, by_apps=gate == "reports")
    return far, Guard(received.around(far.channel()), pinned, config).channel()


def embedding(kind: str = FORWARD, block: int = 0) -> Message:
    fields = EmbeddingProposal(EMBEDDING, TERMS, block).to_fields()
    return message(RecordDict({PROPOSAL_KEY: ConfigRecord({**fields})}), kind=kind)


def refusal(far: Far, channel: Channel, one: Message) -> str:
    """Return with which constant a message is refused, before the app has it."""
    far.waiting.append(one)
    assert channel.receive() is None
    sent = far.taken()
    assert sent.has_error()
    return str(sent.error.reason)


def answered(far: Far, channel: Channel, one: Message, content: RecordDict | Error) -> Message:
    """Return what leaves when the app answers so."""
    far.waiting.append(one)
    received = channel.receive()
    assert received is not None
    assert far.sent == []
    reply(channel, Message(content, reply_to=received[0]))
    return far.taken()


def reported(report: bytes) -> RecordDict:
    return RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: report})})


def test_a_listed_partys_embeddings_leave(tmp_path: Path) -> None:
    far, channel = site(tmp_path, gate="reports")
    whole = bytes([1]) + bytes(embeddings_length(EMBEDDING, 3) - 1)
    for kind in (FORWARD, EVALUATE):
        assert payload(answered(far, channel, embedding(kind), reported(whole))) == whole
    assert payload(answered(far, channel, embedding(block=1), reported(whole))) != whole
    introduced = answered(far, channel, message(RecordDict(), kind=ALIGN), reported(INTRODUCTION))
    assert payload(introduced) == INTRODUCTION
    prepared = answered(far, channel, message(RecordDict(), kind=PREPARE), reported(b""))
    assert payload(prepared) == b""


@pytest.mark.parametrize("kind", [ALIGN, PREPARE, FORWARD, EVALUATE, BACKWARD, REWIND])
def test_one_byte_of_the_bundle_makes_it_another_app(tmp_path: Path, kind: str) -> None:
    far, channel = site(tmp_path, gate="reports", app=OTHER)
    assert refusal(far, channel, embedding(kind)) == REFUSED
    assert entries(tmp_path) == 0


def test_a_right_digest_that_is_only_named_is_none(tmp_path: Path) -> None:
    far, channel = site(tmp_path, gate="reports", app=OTHER)
    far.said = {"fab_hash": DIGEST.removeprefix("sha256:")}
    assert refusal(far, channel, embedding()) == REFUSED
    # Nor does Flower keep the bytes where the listed app's are looked for.
    own = sha256(OTHER).hexdigest()
    assert channel.get_run(3).fab_hash == own
    assert channel.get_fab(DIGEST.removeprefix("sha256:"), 3).hash_str == own


def test_flower_gets_what_was_hashed_under_its_own_name(tmp_path: Path) -> None:
    far, channel = site(tmp_path, gate="reports")
    far.said = {"fab_id": "../../else", "fab_version": "9", "fab_hash": "0" * 64}
    far.waiting.append(embedding())
    assert channel.receive() is not None
    far.apps[3] = OTHER  # a second answer would be another one
    run, fab = channel.get_run(3), channel.get_fab("0" * 64, 3)
    assert (run.fab_id, run.fab_version) == ("ward/pinned-app", "1.0.0")
    assert digest_of(fab.content) == DIGEST == f"sha256:{run.fab_hash}" == f"sha256:{fab.hash_str}"
    assert far.asked == 1


def test_a_listed_run_has_no_state_of_a_run_that_is_said_to_go_before(tmp_path: Path) -> None:
    far, channel = site(tmp_path)
    far.apps |= {4: OTHER, 5: APP}
    series = {run_id: channel.get_run(run_id).series_id for run_id in (3, 4, 5)}
    assert series[4] == 5  # as the SuperLink says
    assert len(set(series.values())) == 3


def test_a_run_that_began_before_its_app_was_listed_is_refused(tmp_path: Path) -> None:
    far, channel = site(tmp_path, listed="", gate="reports")
    assert refusal(far, channel, embedding()) == REFUSED
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"{policy.read_text()}apps:\n  {DIGEST}:{LISTED}")
    assert refusal(far, channel, embedding()) == REFUSED
    far.apps[4] = APP
    one = embedding()
    one.metadata.__dict__["_run_id"] = 4
    far.waiting.append(one)
    assert channel.receive() is not None


@pytest.mark.parametrize("first", [OTHER, APP], ids=["other first", "listed first"])
def test_a_run_that_changes_its_app_once_it_is_out_of_mind_is_none_of_a_listed_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    """Flower keeps the bundle of a run that it was given first, and never asks again."""
    monkeypatch.setattr("flower_ldp.node.received_apps._KEPT", 1)
    far, channel = site(tmp_path, gate="reports", app=first)
    channel.get_run(3)
    far.apps |= {3: APP if first == OTHER else OTHER, 4: APP}
    channel.get_run(4)
    assert refusal(far, channel, embedding()) == REFUSED


def test_a_run_that_is_fetched_again_as_it_was_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flower_ldp.node.received_apps._KEPT", 1)
    far, channel = site(tmp_path, gate="reports")
    far.apps[4] = OTHER
    for run_id in (3, 4):
        channel.get_run(run_id)
    far.waiting.append(embedding())
    assert channel.receive() is not None
    assert far.asked == 3


@pytest.mark.parametrize(
    ("overrides", "is_allowed"),
    [
        ({}, True),
        ({"rate": 0.5, "steps": 3}, True),
        ({"rate": 2.0}, False),
        ({"rate": 1}, False),
        ({"steps": True}, False),
        ({"steps": "3"}, False),
        ({"steps": 3, "model": "large"}, False),
        ({"ldp-policy": "/tmp/other"}, False),
    ],
)
def test_a_runs_configuration_is_judged(
    tmp_path: Path, overrides: Mapping[str, object], is_allowed: bool
) -> None:
    far, channel = site(tmp_path, gate="reports")
    far.said = {"override_config": dict(overrides)}
    far.waiting.append(embedding())
    assert (channel.receive() is not None) == is_allowed
    assert [one.error.reason for one in far.sent] == ([] if is_allowed else [REFUSED])


@pytest.mark.parametrize("name", ["../evil.py", "/tmp/evil.py", "sitecustomize.py/../../evil.py"])
def test_a_bundle_that_leads_elsewhere_is_refused_also_when_it_is_listed(
    tmp_path: Path, name: str
) -> None:
    bad = packed({**FILES, name: "1"})
    far, channel = site(tmp_path, gate="reports", app=bad)
    policy = tmp_path / "policy.yaml"
    policy.write_text(policy.read_text().replace(DIGEST, digest_of(bad)))
    assert refusal(far, channel, embedding()) == REFUSED


def test_nothing_of_a_bundle_is_imported_or_written_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')"
    names = ("sitecustomize.py", "conftest.py", "pinned_app/__init__.py", "a.pth")
    trapped = packed({**FILES, **dict.fromkeys(names, trap)})
    far, channel = site(tmp_path, listed="", app=trapped)
    before, path = set(tmp_path.rglob("*")), list(sys.path)
    far.waiting.append(ask())
    assert channel.receive() is not None
    assert channel.get_fab("", 3).content == trapped
    assert set(tmp_path.rglob("*")) - before <= set(tmp_path.glob("ledger.sqlite*"))
    assert sys.path == path
    assert not [one for one in sys.modules if one.partition(".")[0] == "pinned_app"]


def test_an_environment_that_is_pinned_has_to_be_this_one(tmp_path: Path) -> None:
    right = f"{LISTED}    environment: {this_environment().digest}\n"
    far, channel = site(tmp_path, right, gate="reports")
    far.waiting.append(embedding())
    assert channel.receive() is not None
    far, channel = site(tmp_path, right.replace(right[-8:], "0000000\n"), gate="reports")
    assert refusal(far, channel, embedding()) == REFUSED


def test_other_apps_run_as_before_unless_the_owner_refuses_them(tmp_path: Path) -> None:
    far, channel = site(tmp_path, app=OTHER)
    answer = answered(far, channel, ask(), RecordDict({"a": record(TRAINED)}))
    assert len(payload(answer)) == LENGTH
    far, channel = site(tmp_path, extra="unlisted_apps: refuse", app=OTHER)
    assert refusal(far, channel, ask()) == REFUSED
    far, channel = site(tmp_path, extra="unlisted_apps: refuse")
    far.waiting.append(ask())
    assert channel.receive() is not None


def test_a_declared_post_processing_rests_on_the_app(tmp_path: Path) -> None:
    declared = "messages: {train: {signds: {epsilon: 2.0, post_processing: [label]}}}"
    before = "messages: {train: {signds: {epsilon: 2.0}}}"

    def declaring(listed: str) -> tuple[Far, Channel]:
        far, channel = site(tmp_path, listed)
        policy = tmp_path / "policy.yaml"
        policy.write_text(policy.read_text().replace(before, declared))
        return far, channel

    for listed in ("", LISTED):
        assert refusal(*declaring(listed), ask()) == REFUSED
    assert entries(tmp_path) == 0
    far, channel = declaring("\n    releases: [signds]\n")
    far.waiting.append(ask())
    assert channel.receive() is not None


@pytest.mark.parametrize(
    ("releases", "kind"),
    [
        ("[]", FORWARD),
        ("[dpsgd]", FORWARD),
        ("[codebook_embedding]", EVALUATE),
        ("[dpsgd]", ALIGN),
        ("[embedding_dp]", PREPARE),
        ("[embedding_dp, bottom_training]", BACKWARD),
        ("[embedding_dp, bottom_training]", REWIND),
    ],
)
def test_a_claim_is_listed_by_name(tmp_path: Path, releases: str, kind: str) -> None:
    far, channel = site(tmp_path, f"\n    releases: {releases}\n", gate="reports")
    assert refusal(far, channel, embedding(kind)) == REFUSED


def test_conditional_claims_take_gradients_where_they_are_listed(tmp_path: Path) -> None:
    far, channel = site(tmp_path, '\n    releases: ["embedding_dp:conditional"]\n', gate="reports")
    for kind in (BACKWARD, REWIND, PREPARE):
        assert payload(answered(far, channel, embedding(kind), reported(b""))) == b""


def test_under_privatize_no_party_is_asked(tmp_path: Path) -> None:
    far, channel = site(tmp_path)
    assert refusal(far, channel, embedding()) == "ldp:refused:message"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (RecordDict({"raw": record({"x": np.ones(3, np.float32)})}), ""),
        (reported(b"\x01data"), ""),
        (Error(code=3, reason="what a record says"), ""),
        (Error(code=3, reason="ldp:refused:budget"), "ldp:refused:budget"),
        (Error(code=3, reason="ldp:refused:rehearsal: data"), ""),
    ],
)
def test_what_is_no_answer_of_a_party_leaves_as_noise(
    tmp_path: Path, content: RecordDict | Error, code: str
) -> None:
    far, channel = site(tmp_path, gate="reports")
    sent = answered(far, channel, embedding(), content)
    if code:
        assert (sent.error.code, sent.error.reason) == (1000, code)
    else:
        assert len(payload(sent)) == embeddings_length(EMBEDDING, 3)


@pytest.mark.parametrize(
    ("kind", "said", "expected"),
    [
        (ALIGN, INTRODUCTION.replace(b"{", b'{"more": 1, ', 1), None),
        (ALIGN, b"data", None),
        (ALIGN, INTRODUCTION + b" " * (1 << 20), None),
        (PREPARE, b"data", b""),
    ],
)
def test_no_more_is_said_than_the_form_of_an_answer_has(
    tmp_path: Path, kind: str, said: bytes, expected: bytes | None
) -> None:
    far, channel = site(tmp_path, gate="reports")
    sent = answered(far, channel, message(RecordDict(), kind=kind), reported(said))
    if expected is None:
        assert sent.error.reason == "ldp:failed"
    else:
        assert payload(sent) == expected


def test_a_block_that_is_none_is_refused(tmp_path: Path) -> None:
    far, channel = site(tmp_path, gate="reports")
    assert refusal(far, channel, message(RecordDict(), kind=FORWARD)) == "ldp:refused:proposal"
    assert refusal(far, channel, embedding(block=2)) == "ldp:refused:proposal"


@pytest.mark.parametrize(
    ("mechanism", "records", "block"),
    [
        (UnaryEncoding(2.0, 128), 1 << 20, 1 << 20),
        (UnaryEncoding(2.0, 1 << 20), 100, 100),
        (UnaryEncoding(0.0, 4), 5, 3),
        (EMBEDDING, 0, 3),
        (EMBEDDING, -5, 3),
        (EMBEDDING, 1 << 62, 1 << 62),
        (EMBEDDING, 5, 0),
        (EMBEDDING, 5, -1),
    ],
)
def test_a_server_that_picks_the_sizes_cannot_have_the_node_draw_without_end(
    tmp_path: Path, mechanism: UnaryEncoding, records: int, block: int
) -> None:
    far, channel = site(tmp_path, gate="reports")
    terms = TableTerms("train", "0" * 64, records, block)
    fields = EmbeddingProposal(mechanism, terms, 0).to_fields()
    asked = message(RecordDict({PROPOSAL_KEY: ConfigRecord({**fields})}), kind=FORWARD)
    assert refusal(far, channel, asked) == "ldp:refused:proposal"


def test_a_run_that_is_over_is_flowers_affair_and_one_that_cannot_be_fetched_is_refused(
    tmp_path: Path,
) -> None:
    far, channel = site(tmp_path, gate="reports")
    far.stopped = True
    far.waiting.append(embedding())
    with pytest.raises(RunNotRunningException):
        channel.receive()
    far.stopped = False
    del far.apps[3]
    assert refusal(far, channel, embedding()) == REFUSED


def test_a_claim_about_a_label_needs_a_listed_app(tmp_path: Path) -> None:
    """What the node will release of single records later is refused by what it is about."""
    opened = RELEASES["train"].open(ask().content)

    class Labels:
        def open(self, _: RecordDict) -> Any:
            return self

        events = KaryResponse(1.0, 3, unit=Unit.LABEL).events()
        parameters = opened.parameters

    (tmp_path / "policy.yaml").write_text(POLICY)
    context = Context(3, 7, {"ldp-policy": str(tmp_path / "policy.yaml")}, RecordDict(), {})
    gate = AppListGate(
        lambda *_: pytest.fail("asked"), lambda _: None, releases={"train": Labels()}
    )
    sent = gate(ask(), context, lambda *_: pytest.fail("called"))
    assert sent.error.reason == REFUSED
