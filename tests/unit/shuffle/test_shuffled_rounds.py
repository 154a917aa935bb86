"""Shuffled rounds from end to end: gate, ledger, strategy and analyzer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from flower_ldp import refusals
from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import CodewordRelease, LdpMod, OwnerAuthorizer, SignDSRelease
from flower_ldp.errors import RefusalError, WireError
from flower_ldp.mechanisms import Codeword, Gaussian, SignDS
from flower_ldp.node.gates import PaidReports
from flower_ldp.node.startup import named_gate
from flower_ldp.shuffle import AnalyzerError, ReportAnalyzer, ReportSums
from flower_ldp.shuffle.batch import Batch
from flower_ldp.shuffle.sealing import KEY_FIELD, RoundKey, new_key, signer_of
from flower_ldp.strategies import (
    CodewordStrategy,
    FixedLength,
    GaussianStrategy,
    Health,
    RunStopped,
    shuffling,
)
from flower_ldp.wire.proposal import PROPOSAL_KEY
from tests.fixtures import make_site, message, payload, policy_text, record, signds_proposal
from tests.unit.strategies import rounds
from tests.unit.strategies.rounds import FakeGrid, aggregated, cosine, reply, unmoved

SIGNING = bytes(range(32))
ENTRIES, FEW = 60, 6
MODEL = {"w": np.zeros(ENTRIES, dtype=np.float32)}
UPDATE = np.linspace(-1.0, 1.0, ENTRIES).astype(np.float32)
MESSAGES = "{train: {codeword: {epsilon: 4.0}, health: {epsilon: 0.5}}}"
RULE = f"analyzer: {{key: '{signer_of(SIGNING)}', minimum: {FEW}}}\n"
STEP = FixedLength(0.5, rounds=10, momentum=0.0)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
outside_a_run = pytest.mark.usefixtures("outside_a_run")


class Grid(FakeGrid):
    """Nodes of the run that messages of the tests are of."""

    run = SimpleNamespace(run_id=3)


def strategy_of(analyzer: Any, **options: Any) -> CodewordStrategy:
    options = {"answers_per_client": None, **options}
    return CodewordStrategy(Codeword(4.0, rotations=4), STEP, analyzer=analyzer, **options)


def ask(strategy: CodewordStrategy, server_round: int = 1, nodes: int = 8) -> list[Message]:
    grid: Any = Grid(nodes)
    return list(strategy.configure_train(server_round, record(MODEL), ConfigRecord(), grid))


def site_of(folder: Path, rule: str = RULE, **policy: Any) -> Context:
    policy = {"life": 100.0, **policy}
    return make_site(folder, policy_text(MESSAGES, **policy) + rule)


def app(asked: Message, _: Context) -> Message:
    return Message(RecordDict({"arrays": record({"w": UPDATE})}), reply_to=asked)


def answer_at(site: Context, sent: Message) -> Message:
    own = Context(3, sent.metadata.dst_node_id, site.node_config, RecordDict(), {})
    return LdpMod(train=CodewordRelease())(sent, own, app)


def answers(sent: Sequence[Message], folder: Path) -> list[Message]:
    """Return what gates make of the messages to several clients, each with a ledger of its own."""
    found = []
    for one in sent:
        own = folder / str(one.metadata.dst_node_id)
        own.mkdir(exist_ok=True)
        found.append(answer_at(site_of(own), one))
    return found


@pytest.fixture
def analyzer() -> ReportAnalyzer:
    return ReportAnalyzer(FEW, signing=SIGNING)


@outside_a_run
def test_the_server_gets_sums_and_the_ledger_keeps_and_repeats_ciphertexts(
    tmp_path: Path, analyzer: ReportAnalyzer
) -> None:
    strategy = strategy_of(analyzer, health=Health(0.5))
    sent = ask(strategy)
    replies = answers(sent, tmp_path)
    assert {len(payload(one)) for one in replies} == {1_120 + 3 + 1 + 16}
    assert len({payload(one) for one in replies}) == 8
    again = answers(sent[:1], tmp_path)
    assert payload(again[0]) == payload(replies[0])
    own = tmp_path / str(sent[0].metadata.dst_node_id)
    with Ledger.open(own / "ledger.sqlite") as ledger:
        assert ledger.verify().sealed == 1
    assert payload(replies[0]) in (own / "ledger.sqlite").read_bytes()
    after, metrics = aggregated(strategy, replies)
    assert cosine(after["w"], UPDATE) > 0.3
    assert (metrics["accepted"], metrics["rejected"], metrics["bytes-up"]) == (8, 0, 1_140)
    assert "failing-share" in metrics
    # The ledger's price is the local one, and so is the server's total.
    assert metrics["epsilon-round"] == 4.5
    assert 0.0 < metrics["central-epsilon"] <= metrics["central-epsilon-minimum"] <= 4.5
    assert metrics["central-delta"] == 1e-6
    told = str(strategy.privacy_spent())
    assert "shuffled, in no total: a client's report in a round has the central epsilon" in told
    assert "among 8, for the analyzer and who sees the model" in told
    assert "among 6, for a server that drops reports" in told


@outside_a_run
def test_a_second_message_of_a_round_gets_the_same_ciphertext(
    tmp_path: Path, analyzer: ReportAnalyzer
) -> None:
    """A client is in a batch once, and in one charge, however often it is asked."""
    strategy, site = strategy_of(analyzer), site_of(tmp_path)
    first, *_ = ask(strategy)
    second = message(first.content, node=first.metadata.dst_node_id, message_id="another")
    found = answer_at(site, first)
    assert payload(answer_at(site, second)) == payload(found)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.verify().entries == 1
    later, *_ = ask(strategy, 2)
    assert payload(answer_at(site, later)) != payload(found)


@outside_a_run
def test_a_client_that_is_given_several_keys_pays_for_each_within_its_budget(
    tmp_path: Path,
) -> None:
    """Also if one of them is written in another way, or a message has a charge's name."""
    site, keys = site_of(tmp_path, life=9.0), [new_key(SIGNING, 3, FEW)[0] for _ in range(3)]
    first = answer_at(site, asked_by(keys[0]))
    same = asked_by(keys[0], **{KEY_FIELD: f" {keys[0].to_bytes().hex().upper()}"})
    assert payload(answer_at(site, same)) == payload(first)
    name = CodewordRelease().open(same.content).request(same.metadata).message_id
    second = answer_at(site, message(asked_by(keys[1]).content, message_id=name))
    assert payload(second) != payload(first)
    third = answer_at(site, asked_by(keys[2]))
    assert third.error.reason == refusals.REFUSED_BUDGET
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.verify().entries == 2


@outside_a_run
@pytest.mark.parametrize("mode", ["deployment", "simulation"])
def test_a_message_of_another_type_gets_no_second_ciphertext(tmp_path: Path, mode: str) -> None:
    """An app with two handlers for updates would be in a batch twice."""
    rules = "{codeword: {epsilon: 4.0}}"
    text = policy_text(f"{{train: {rules}, train.head: {rules}}}", mode=mode)
    site, own = make_site(tmp_path, text + RULE), asked_by(OWN)
    gate = LdpMod(train=CodewordRelease(), actions={"train.head": CodewordRelease()})
    answer = gate(message(own.content, kind="train.head"), site, app)
    assert answer.error.reason == refusals.REFUSED_POLICY
    assert len(payload(gate(own, site, app))) == 1_139
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.verify().entries == 1


@outside_a_run
def test_a_round_beyond_a_batch_asks_nobody(
    analyzer: ReportAnalyzer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients would pay for reports that the analyzer's service does not take."""
    monkeypatch.setattr(shuffling, "MOST_BYTES", 10_000)
    strategy = strategy_of(analyzer)
    with pytest.raises(ValueError, match="would ask 8 clients, and a batch has at most 6"):
        ask(strategy)
    assert not strategy.privacy_spent().clients


@outside_a_run
def test_the_total_is_that_of_reports_in_the_open(tmp_path: Path) -> None:
    """The analyzer's sum moves the model as a sum of the same reports here would."""
    seen: list[ReportSums] = []

    class Watching(ReportAnalyzer):
        def sums(self, batch: Batch) -> ReportSums:
            seen.append(super().sums(batch))
            return seen[-1]

    strategy = strategy_of(Watching(FEW, signing=SIGNING))
    after, _ = aggregated(strategy, answers(ask(strategy), tmp_path))
    (found,) = seen
    assert np.allclose(after["w"], 0.5 * found.total / np.linalg.norm(found.total), atol=1e-6)


def asked_by(key: RoundKey, **fields: Any) -> Message:
    """Return a message that states this key."""
    own = strategy_of(ReportAnalyzer(FEW, signing=SIGNING))
    (sent, *_) = ask(own)
    proposal = dict(sent.content.config_records[PROPOSAL_KEY])
    proposal |= {KEY_FIELD: key.to_bytes().hex(), **fields}
    kept = {name: one for name, one in proposal.items() if one is not None}
    sent.content[PROPOSAL_KEY] = ConfigRecord(kept)
    return sent


def refused(sent: Message, site: Context) -> str:
    """Return why the policy refuses a message, to which a constant is answered."""
    request = CodewordRelease().open(sent.content).request(sent.metadata)
    with pytest.raises(RefusalError) as raised:
        OwnerAuthorizer().authorize(request, site)
    answer = answer_at(site, sent)
    assert answer.error.reason == raised.value.code == refusals.REFUSED_POLICY
    return raised.value.detail


OWN = new_key(SIGNING, 3, FEW)[0]


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (new_key(bytes(32), 3, FEW)[0], "is not signed by ed25519:"),
        (replace(OWN, minimum=FEW + 1), "is not signed by ed25519:"),
        (replace(OWN, public=new_key(SIGNING, 3, FEW)[0].public), "is not signed by ed25519:"),
        (new_key(SIGNING, 4, FEW)[0], "is of run 4, not of 3"),
        (new_key(SIGNING, 3, FEW - 1)[0], "answers for 5 reports, and 6 reports at least"),
    ],
    ids=["signer", "minimum", "public", "run", "few"],
)
@outside_a_run
def test_another_key_is_refused_before_the_charge(tmp_path: Path, key: RoundKey, why: str) -> None:
    assert why in refused(asked_by(key), site_of(tmp_path))
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.verify().entries == 0


@pytest.mark.parametrize(
    "fields",
    [{KEY_FIELD: "text"}, {KEY_FIELD: "00"}, {KEY_FIELD: 7}],
)
@outside_a_run
def test_malformed_fields_are_refused_before_the_charge(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    answer = answer_at(site_of(tmp_path), asked_by(OWN, **fields))
    assert answer.error.reason == refusals.REFUSED_PROPOSAL


@outside_a_run
def test_nothing_leaves_in_the_open_where_an_analyzer_is_named(tmp_path: Path) -> None:
    told = refused(asked_by(OWN, **{KEY_FIELD: None}), site_of(tmp_path))
    assert told == "the policy names an analyzer, and the report would leave in the open"


@outside_a_run
def test_a_deployment_that_names_no_analyzer_seals_nothing_and_a_simulation_does(
    tmp_path: Path,
) -> None:
    told = refused(asked_by(OWN), site_of(tmp_path, ""))
    assert told.endswith("To allow it: analyzer: {key: 'ed25519:...', minimum: ...}")
    own = tmp_path / "simulation"
    own.mkdir()
    answer = answer_at(site_of(own, "", mode="simulation"), asked_by(OWN))
    assert len(payload(answer)) == 1_139


@outside_a_run
def test_only_codewords_are_sealed() -> None:
    with pytest.raises(TypeError, match="has no argument analyzer"):
        GaussianStrategy(Gaussian(4.0, 1e-6), analyzer=None)  # type: ignore[call-arg]
    fields = signds_proposal(SignDS(4.0).sized(ENTRIES)).to_fields()
    stated = {KEY_FIELD: OWN.to_bytes().hex()}
    sent = asked_by(OWN)
    sent.content[PROPOSAL_KEY] = ConfigRecord({**fields, **stated})
    with pytest.raises(WireError, match="an analyzer adds up codewords, not signds"):
        SignDSRelease().open(sent.content)


@outside_a_run
def test_a_node_that_lets_apps_seal_refuses_ciphertexts(tmp_path: Path) -> None:
    """Nobody there would see what an app put into one."""
    called = []

    def hostile(sent: Message, _: Context) -> Message:
        called.append(sent)
        return reply(b"x" * 1_139, 7)

    answer = PaidReports()(asked_by(OWN), site_of(tmp_path), hostile)
    assert answer.error.reason == refusals.REFUSED_PROPOSAL
    assert not called


@outside_a_run
def test_a_guarded_node_seals_and_repeats(tmp_path: Path) -> None:
    """The node's own gate, with its code on what the ledger stores."""
    site, gate, own = site_of(tmp_path), named_gate("privatize"), asked_by(OWN)
    second = message(own.content, message_id="another")
    first = gate(own, site, app)
    assert len(payload(first)) == 1_139
    assert payload(gate(own, site, app)) == payload(gate(second, site, app)) == payload(first)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.verify().entries == 1


@outside_a_run
def test_a_round_below_the_minimum_asks_nobody(analyzer: ReportAnalyzer) -> None:
    strategy = strategy_of(analyzer)
    with pytest.raises(ValueError, match="would ask 5 clients, and the analyzer answers for 6"):
        ask(strategy, nodes=5)
    assert not strategy.privacy_spent().clients


@outside_a_run
def test_too_few_reports_leave_the_model_and_more_of_the_round_are_not_tried(
    tmp_path: Path, analyzer: ReportAnalyzer, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = strategy_of(analyzer)
    replies = answers(ask(strategy), tmp_path)
    metrics = unmoved(strategy, replies[: FEW - 1])
    assert (metrics["accepted"], metrics["rejected-analyzer"]) == (0, FEW - 1)
    assert "central-epsilon" not in metrics
    assert "the analyzer gives no sums: 5 reports of this proposal are left of 5" in caplog.text


@outside_a_run
def test_lies_of_clients_are_counted(tmp_path: Path, analyzer: ReportAnalyzer) -> None:
    strategy = strategy_of(analyzer)
    sent = ask(strategy, nodes=10)
    replies = answers(sent, tmp_path)
    junk = reply(b"\0" * 1_139, sent[8].metadata.dst_node_id)
    copy = reply(payload(replies[0]), sent[9].metadata.dst_node_id)
    short = reply(b"short", sent[7].metadata.dst_node_id)
    _, metrics = aggregated(strategy, [*replies[:7], junk, copy, short])
    assert metrics["accepted"] == 7
    left_out = {name: one for name, one in metrics.items() if name.startswith("rejected-")}
    assert left_out == {"rejected-duplicate": 1, "rejected-sealed": 1, "rejected-length": 1}


@outside_a_run
def test_a_lying_analyzer_ends_the_run(tmp_path: Path) -> None:
    class Lying(ReportAnalyzer):
        def sums(self, batch: Batch) -> ReportSums:
            return replace(super().sums(batch), accepted=1_000)

    strategy = strategy_of(Lying(FEW, signing=SIGNING))
    replies = answers(ask(strategy), tmp_path)
    with pytest.raises(RunStopped, match="answers for 1,000 reports and 0 left out, of 8 sent"):
        strategy.aggregate_train(1, replies)


@outside_a_run
def test_an_analyzer_that_cannot_be_reached_ends_the_run(tmp_path: Path) -> None:
    class Gone(ReportAnalyzer):
        def sums(self, batch: Batch) -> ReportSums:
            raise AnalyzerError("the analyzer does not answer")

    strategy = strategy_of(Gone(FEW, signing=SIGNING))
    replies = answers(ask(strategy), tmp_path)
    with pytest.raises(RunStopped, match="round 1 has no sums: the analyzer does not answer"):
        strategy.aggregate_train(1, replies)


@outside_a_run
def test_an_analyzer_that_lost_its_keys_costs_a_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = strategy_of(ReportAnalyzer(FEW, signing=SIGNING))
    replies = answers(ask(strategy), tmp_path)
    strategy._shuffler._analyzer = ReportAnalyzer(FEW, signing=SIGNING)  # type: ignore[union-attr]
    assert unmoved(strategy, replies)["rejected-analyzer"] == 8
    assert (
        "the analyzer gives no sums: this key of run 3 is not here: it was erased, or never made"
        in caplog.text
    )
    _, metrics = aggregated(strategy, answers(ask(strategy), tmp_path))
    assert metrics["accepted"] == 8


@outside_a_run
def test_a_second_round_in_a_row_without_sums_ends_the_run(
    tmp_path: Path, analyzer: ReportAnalyzer
) -> None:
    """Clients would pay in each round of an analyzer that is killed by each batch."""
    strategy = strategy_of(analyzer)
    for few in (True, False, True):
        replies = answers(ask(strategy), tmp_path)
        if few:
            assert unmoved(strategy, replies[: FEW - 1])["accepted"] == 0
        else:
            assert aggregated(strategy, replies)[1]["accepted"] == 8
    replies = answers(ask(strategy), tmp_path)
    with pytest.raises(RunStopped, match=r"6 are the fewest .* The round before had none either"):
        strategy.aggregate_train(1, replies[: FEW - 1])


@outside_a_run
def test_the_batch_tells_no_order_and_no_node(tmp_path: Path) -> None:
    """Twice the same replies: two orders, and nothing in them but ciphertexts."""
    batches: list[Batch] = []

    class Watching(ReportAnalyzer):
        def sums(self, batch: Batch) -> ReportSums:
            batches.append(batch)
            return super().sums(batch)

    strategy = strategy_of(Watching(FEW, signing=SIGNING))
    sent = ask(strategy, nodes=12)
    replies = answers(sent, tmp_path)
    current = strategy._round
    aggregated(strategy, replies)
    strategy._round = current
    current.nodes = [one.metadata.dst_node_id for one in sent]  # type: ignore[union-attr]
    aggregated(strategy, replies)
    first, second = batches
    assert set(first.sealed) == set(second.sealed) == {payload(one) for one in replies}
    assert first.sealed != second.sealed  # by chance the same once in 12!
    for node in (one.metadata.dst_node_id for one in sent):
        assert not re.search(rf"\b{node}\b", first.proposal)
    assert "m-" not in first.proposal


@pytest.mark.usefixtures("simulation_policy")
def test_a_run_in_one_process_learns_and_its_keys_are_erased(
    caplog: pytest.LogCaptureFixture,
) -> None:
    analyzer = ReportAnalyzer(4)
    strategy = strategy_of(analyzer, min_train_nodes=8)
    result = rounds.run(strategy, CodewordRelease(), MODEL, {"w": UPDATE}, num_rounds=4, nodes=8)
    assert cosine(result.arrays["w"].numpy(), UPDATE) > 0.3
    assert result.train_metrics_clientapp[4]["accepted"] == 8
    assert [one.secret for one in analyzer._rounds.values()] == [None]
    told = [one for one in caplog.messages if "if all answer: a client's report" in one]
    assert len(told) == 1
    assert "among 8, for the analyzer" in told[0]
    assert "among 4, for a server" in told[0]
