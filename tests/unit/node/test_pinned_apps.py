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
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore.fab import Fab
from flwr.supercore.run import Run, RunNotRunningException

from flower_ldp.app_digests import digest_of, this_environment
from flower_ldp.clients import RELEASES
from flower_ldp.mechanisms import KaryResponse, UnaryEncoding
from flower_ldp.node.flower_api import Channel
from flower_ldp.node.gates import AppListGate, listed_apps
from flower_ldp.node.guard import Guard
from flower_ldp.node.received_apps import ReceivedApps
from flower_ldp.node.startup import named_gate
from flower_ldp.privacy import Unit
from flower_ldp.wire import embedding as wire
from flower_ldp.wire.embedding import ALIGN, BACKWARD, EVALUATE, FORWARD, PREPARE, REWIND
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY
from tests.bundles import FILES, packed
from tests.fixtures import make_site, message, payload, policy_text, record
from tests.unit.node.test_guard import LENGTH, Link, ask, entries, given, reply, trained

APP = packed()
#: One byte of one file is another.
OTHER = packed({**FILES, "pinned_app/client.py": "app = nonE"})
DIGEST = digest_of(APP)
REFUSED = "ldp:refused:app"
LISTED = """
    releases: [embedding_dp, bottom_training]
    run_config: {rate: {numbers: [0.01, 1.0]}, steps: {integers: [1, 20]}}
"""
SIGNDS, DECLARED = "signds: {epsilon: 2.0}", "signds: {epsilon: 2.0, post_processing: [label]}"
POLICY = policy_text(
    f"{{train: {{{SIGNDS}}}}}",
    budgets="client: {life: {epsilon: 60.0}}, label: {life: {epsilon: 60.0}}",
)
EMBEDDING = UnaryEncoding(2.0, 4)
TERMS = wire.TableTerms("train", "0" * 64, 5, 3)
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
    tmp_path: Path, listed: str = LISTED, gate: str = "reports", extra: str = "", app: bytes = APP
) -> tuple[Far, Channel]:
    apps = f"apps:\n  {DIGEST}:{listed}" if listed else ""
    config: Any = make_site(tmp_path, f"{POLICY}{extra}\n{apps}").node_config
    far = Far(apps={3: app})
    received = ReceivedApps(lambda digest: digest in listed_apps(config))
    pinned = AppListGate(named_gate(gate), received.of, by_apps=gate == "reports")
    return far, Guard(received.around(far.channel()), pinned, config).channel()


def amend(tmp_path: Path, old: str, new: str) -> None:
    """Change a node's policy."""
    policy = tmp_path / "policy.yaml"
    assert old in policy.read_text()
    policy.write_text(policy.read_text().replace(old, new))


def embedding(
    kind: str = FORWARD,
    block: int = 0,
    mechanism: UnaryEncoding = EMBEDDING,
    terms: wire.TableTerms = TERMS,
) -> Message:
    fields = wire.EmbeddingProposal(mechanism, terms, block).to_fields()
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
    received = given(far, channel, one)
    assert far.sent == []
    reply(channel, Message(content, reply_to=received))
    return far.taken()


def reported(report: bytes) -> RecordDict:
    return RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: report})})


def test_a_listed_partys_embeddings_leave(tmp_path: Path) -> None:
    far, channel = site(tmp_path)
    whole = bytes([1]) + bytes(wire.embeddings_length(EMBEDDING, 3) - 1)
    for one, report in (
        (embedding(FORWARD), whole),
        (embedding(EVALUATE), whole),
        (message(RecordDict(), kind=ALIGN), INTRODUCTION),
        (message(RecordDict(), kind=PREPARE), b""),
    ):
        assert payload(answered(far, channel, one, reported(report))) == report
    assert payload(answered(far, channel, embedding(block=1), reported(whole))) != whole


@pytest.mark.parametrize("kind", [ALIGN, PREPARE, FORWARD, EVALUATE, BACKWARD, REWIND])
def test_one_byte_of_the_bundle_makes_it_another_app(tmp_path: Path, kind: str) -> None:
    assert refusal(*site(tmp_path, app=OTHER), embedding(kind)) == REFUSED
    assert entries(tmp_path) == 0


def test_a_right_digest_that_is_only_named_is_none(tmp_path: Path) -> None:
    far, channel = site(tmp_path, app=OTHER)
    far.said = {"fab_hash": DIGEST.removeprefix("sha256:")}
    assert refusal(far, channel, embedding()) == REFUSED
    # Nor does Flower keep the bytes where the listed app's are looked for.
    own = sha256(OTHER).hexdigest()
    assert channel.get_run(3).fab_hash == own
    assert channel.get_fab(DIGEST.removeprefix("sha256:"), 3).hash_str == own


def test_flower_gets_what_was_hashed_under_its_own_name(tmp_path: Path) -> None:
    far, channel = site(tmp_path)
    far.said = {"fab_id": "../../else", "fab_version": "9", "fab_hash": "0" * 64}
    given(far, channel, embedding())
    far.apps[3] = OTHER  # a second answer would be another one
    run, fab = channel.get_run(3), channel.get_fab("0" * 64, 3)
    assert (run.fab_id, run.fab_version) == ("ward/pinned-app", "1.0.0")
    assert digest_of(fab.content) == DIGEST == f"sha256:{run.fab_hash}" == f"sha256:{fab.hash_str}"
    assert far.asked == 1


def test_a_listed_run_has_no_state_of_a_run_that_is_said_to_go_before(tmp_path: Path) -> None:
    far, channel = site(tmp_path, gate="privatize")
    far.apps |= {4: OTHER, 5: APP}
    series = {run_id: channel.get_run(run_id).series_id for run_id in (3, 4, 5)}
    assert series[4] == 5  # as the SuperLink says
    assert len(set(series.values())) == 3


def test_a_run_that_began_before_its_app_was_listed_is_refused(tmp_path: Path) -> None:
    far, channel = site(tmp_path, listed="")
    assert refusal(far, channel, embedding()) == REFUSED
    with (tmp_path / "policy.yaml").open("a") as policy:
        policy.write(f"apps:\n  {DIGEST}:{LISTED}")
    assert refusal(far, channel, embedding()) == REFUSED
    far.apps[4] = APP
    given(far, channel, of_run(embedding(), 4))


def of_run(one: Message, run_id: int) -> Message:
    one.metadata.__dict__["_run_id"] = run_id
    return one


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a node that keeps one run in mind."""
    monkeypatch.setattr("flower_ldp.node.received_apps._KEPT", 1)


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("first", [OTHER, APP], ids=["other first", "listed first"])
def test_a_forgotten_run_that_changes_its_app_is_refused(tmp_path: Path, first: bytes) -> None:
    """Flower keeps the bundle of a run that it was given first, and never asks again."""
    far, channel = site(tmp_path, app=first)
    channel.get_run(3)
    far.apps |= {3: APP if first == OTHER else OTHER, 4: APP}
    channel.get_run(4)
    assert refusal(far, channel, embedding()) == REFUSED


@pytest.mark.usefixtures("forgetful")
def test_a_run_that_is_fetched_again_as_it_was_goes_on(tmp_path: Path) -> None:
    far, channel = site(tmp_path)
    far.apps[4] = OTHER
    for run_id in (3, 4):
        channel.get_run(run_id)
    given(far, channel, embedding())
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
    far, channel = site(tmp_path)
    far.said = {"override_config": dict(overrides)}
    far.waiting.append(embedding())
    assert (channel.receive() is not None) == is_allowed
    assert [one.error.reason for one in far.sent] == ([] if is_allowed else [REFUSED])


@pytest.mark.parametrize("name", ["../evil.py", "/tmp/evil.py", "sitecustomize.py/../../evil.py"])
def test_a_bundle_that_leads_elsewhere_is_refused_also_listed(tmp_path: Path, name: str) -> None:
    bad = packed({**FILES, name: "1"})
    far, channel = site(tmp_path, app=bad)
    amend(tmp_path, DIGEST, digest_of(bad))
    assert refusal(far, channel, embedding()) == REFUSED


def test_nothing_of_a_bundle_is_imported_or_written_here(tmp_path: Path) -> None:
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')"
    names = ("sitecustomize.py", "conftest.py", "pinned_app/__init__.py", "a.pth")
    trapped = packed({**FILES, **dict.fromkeys(names, trap)})
    far, channel = site(tmp_path, listed="", gate="privatize", app=trapped)
    before, path = set(tmp_path.rglob("*")), list(sys.path)
    given(far, channel)
    assert channel.get_fab("", 3).content == trapped
    assert set(tmp_path.rglob("*")) - before <= set(tmp_path.glob("ledger.sqlite*"))
    assert sys.path == path
    assert not [one for one in sys.modules if one.partition(".")[0] == "pinned_app"]


def test_an_environment_that_is_pinned_has_to_be_this_one(tmp_path: Path) -> None:
    right = f"{LISTED}    environment: {this_environment().digest}\n"
    far, channel = site(tmp_path, right)
    given(far, channel, embedding())
    assert refusal(*site(tmp_path, right.replace(right[-8:], "0000000\n")), embedding()) == REFUSED


def test_other_apps_run_as_before_unless_the_owner_refuses_them(tmp_path: Path) -> None:
    answer = answered(*site(tmp_path, gate="privatize", app=OTHER), ask(), trained(ask()).content)
    assert len(payload(answer)) == LENGTH
    alone: Any = {"gate": "privatize", "extra": "unlisted_apps: refuse"}
    assert refusal(*site(tmp_path, **alone, app=OTHER), ask()) == REFUSED
    given(*site(tmp_path, **alone))


def test_a_declared_post_processing_rests_on_the_app(tmp_path: Path) -> None:
    for listed in ("", LISTED):
        node = site(tmp_path, listed, gate="privatize")
        amend(tmp_path, SIGNDS, DECLARED)
        assert refusal(*node, ask()) == REFUSED
    assert entries(tmp_path) == 0
    node = site(tmp_path, "\n    releases: [signds]\n", gate="privatize")
    amend(tmp_path, SIGNDS, DECLARED)
    given(*node)


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
    assert refusal(*site(tmp_path, f"\n    releases: {releases}\n"), embedding(kind)) == REFUSED


def test_conditional_claims_take_gradients_where_they_are_listed(tmp_path: Path) -> None:
    far, channel = site(tmp_path, '\n    releases: ["embedding_dp:conditional"]\n')
    for kind in (BACKWARD, REWIND, PREPARE):
        assert payload(answered(far, channel, embedding(kind), reported(b""))) == b""


def test_under_privatize_no_party_is_asked(tmp_path: Path) -> None:
    node = site(tmp_path, gate="privatize")
    assert refusal(*node, embedding()) == "ldp:refused:message"


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
def test_other_answers_leave_as_noise(
    tmp_path: Path, content: RecordDict | Error, code: str
) -> None:
    sent = answered(*site(tmp_path), embedding(), content)
    if code:
        assert (sent.error.code, sent.error.reason) == (1000, code)
    else:
        assert len(payload(sent)) == wire.embeddings_length(EMBEDDING, 3)


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
    sent = answered(*site(tmp_path), message(RecordDict(), kind=kind), reported(said))
    if expected is None:
        assert sent.error.reason == "ldp:failed"
    else:
        assert payload(sent) == expected


def test_a_block_that_is_none_is_refused(tmp_path: Path) -> None:
    far, channel = site(tmp_path)
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
def test_sizes_of_the_servers_cannot_have_the_node_draw_without_end(
    tmp_path: Path, mechanism: UnaryEncoding, records: int, block: int
) -> None:
    terms = wire.TableTerms("train", "0" * 64, records, block)
    asked = embedding(mechanism=mechanism, terms=terms)
    assert refusal(*site(tmp_path), asked) == "ldp:refused:proposal"


def test_a_run_that_is_over_is_flowers_affair(tmp_path: Path) -> None:
    far, channel = site(tmp_path)
    far.stopped = True
    far.waiting.append(embedding())
    with pytest.raises(RunNotRunningException):
        channel.receive()
    far.stopped = False
    del far.apps[3]  # and one that cannot be fetched is refused
    assert refusal(far, channel, embedding()) == REFUSED


def test_a_claim_about_a_label_needs_a_listed_app(tmp_path: Path) -> None:
    """What the node will release of single records later is refused by what it is about."""
    opened = RELEASES["train"].open(ask().content)

    class Labels:
        def open(self, _: RecordDict) -> Any:
            return self

        events = KaryResponse(1.0, 3, unit=Unit.LABEL).events()
        parameters = opened.parameters

    context = make_site(tmp_path, POLICY)
    releases: Any = {"train": Labels()}
    gate = AppListGate(lambda *_: pytest.fail("asked"), lambda _: None, releases=releases)
    sent = gate(ask(), context, lambda *_: pytest.fail("called"))
    assert sent.error.reason == REFUSED
