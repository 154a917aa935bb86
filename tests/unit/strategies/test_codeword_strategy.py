"""Codewords from end to end: the real gate, an owner's ledger, and the strategy's steps."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import CodewordRelease, LdpMod
from flower_ldp.mechanisms import Codeword, CodewordReport, Gaussian
from flower_ldp.simulation import run_in_process
from flower_ldp.strategies import CodewordStrategy, FixedLength, Health, Momentum
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY, UpdateProposal
from tests.fixtures import error_reply, message, parsed, record

MODEL = {
    "w": np.ones((10, 20), dtype=np.float32),
    "count": np.array(3, dtype=np.int64),
    "scale": np.array(2.0, dtype=np.float64),
}
DIMENSION = 201
STEP = FixedLength(0.5, rounds=10, momentum=0.0)
MECHANISM = Codeword(8.0, seed=7)
POLICY = """
data_id: ward-7
ledger: ledger.sqlite
mode: deployment
messages: {train: {codeword: {epsilon: 8.0}, health: {epsilon: 0.5}}}
budgets: {client: {life: {epsilon: 17.0}}}
"""
_numbers = itertools.count()
outside_a_run = pytest.mark.usefixtures("_outside_a_run")


class FakeGrid:
    """The grid's one method that sampling uses."""

    def __init__(self, nodes: int) -> None:
        self.nodes = list(range(100, 100 + nodes))

    def get_node_ids(self) -> list[int]:
        return self.nodes


@pytest.fixture
def _outside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(self: FedAvg, content: RecordDict, nodes: list[int], kind: str) -> list[Message]:
        return [
            message(content, node=node, kind=kind, message_id=f"c-{next(_numbers)}")
            for node in nodes
        ]

    monkeypatch.setattr(FedAvg, "_construct_messages", make)


def ask(strategy: CodewordStrategy, server_round: int = 1, nodes: int = 5) -> list[Message]:
    grid: Any = FakeGrid(nodes)
    return list(strategy.configure_train(server_round, record(MODEL), ConfigRecord(), grid))


def proposal(sent: Message) -> UpdateProposal[Codeword]:
    return parsed(sent.content.config_records[PROPOSAL_KEY])


def answer(sent: Message, policy: Path, update: np.ndarray) -> Message:
    """Return what the client's gate makes of an app whose model moves by the update."""
    trained = {
        **MODEL,
        "w": MODEL["w"] + update[:200].reshape(10, 20).astype(np.float32),
        "scale": np.asarray(MODEL["scale"] + update[200]),
    }

    def app(asked: Message, _: Context) -> Message:
        metrics = MetricRecord({"num-examples": 987_654})
        return Message(RecordDict({"arrays": record(trained), "m": metrics}), reply_to=asked)

    node = sent.metadata.dst_node_id
    context = Context(3, node, {"ldp-policy": str(policy)}, RecordDict(), {})
    return LdpMod(train=CodewordRelease())(sent, context, app)


def owner(folder: Path) -> Path:
    folder.mkdir()
    (folder / "policy.yaml").write_text(POLICY)
    Ledger.open(folder / "ledger.sqlite", create=True).close()
    return folder / "policy.yaml"


def named(report: CodewordReport, node: int, sent: Message) -> Message:
    payload = proposal(sent).mechanism.encode(report, DIMENSION)
    content = RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: payload})})
    return message(content, node=node, reply=True)


def moved(arrays: Any) -> np.ndarray:
    return np.concatenate([(arrays[n].numpy() - MODEL[n]).ravel() for n in ("w", "scale")])


@outside_a_run
def test_gate_ledger_and_strategy_agree(tmp_path: Path) -> None:
    """One owner is asked three times: two reports leave, and then the budget is spent."""
    policy = owner(tmp_path / "site")
    strategy = CodewordStrategy(MECHANISM, STEP, min_train_nodes=1, min_available_nodes=1)
    update = np.random.default_rng(0).normal(size=DIMENSION)
    for server_round in (1, 2, 3):
        (sent,) = ask(strategy, server_round, nodes=1)
        reply = answer(sent, policy, update)
        arrays, metrics = strategy.aggregate_train(server_round, [reply])
        assert metrics is not None
        if server_round == 3:
            assert reply.error.reason == "ldp:refused:budget"
            assert (arrays, metrics["epsilon-total"]) == (None, 16.0)
            assert "expected-cosine" not in metrics
            continue
        assert list(reply.content) == [REPORT_KEY]
        payload = reply.content.config_records[REPORT_KEY][PAYLOAD_KEY]
        assert isinstance(payload, bytes)
        assert len(payload) == metrics["bytes-up"] == 3
        assert arrays is not None
        assert np.linalg.norm(moved(arrays)) == pytest.approx(0.5 * (11 - server_round) / 10, 1e-3)
        assert arrays["count"].numpy() == 3
        assert metrics["epsilon-total"] == 8.0 * server_round
    with Ledger.open(tmp_path / "site" / "ledger.sqlite") as ledger:
        assert ledger.verify().entries == 2


@pytest.mark.usefixtures("simulation_policy")
def test_a_run_in_one_process_learns_a_direction(caplog: pytest.LogCaptureFixture) -> None:
    """Apps of Flower, the shipped policy for simulations, and rounds with codes of their own."""
    target = np.random.default_rng(0).normal(size=50).astype(np.float32)
    server, client, found = ServerApp(), ClientApp(mods=[LdpMod(train=CodewordRelease())]), []

    @client.train()
    def train(sent: Message, _: Context) -> Message:
        model = sent.content.array_records["arrays"]["w"].numpy()
        return Message(RecordDict({"a": record({"w": model + target})}), reply_to=sent)

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        strategy = CodewordStrategy(Codeword(8.0), FixedLength(1.0, 100), min_train_nodes=4)
        model = record({"w": np.zeros(50, dtype=np.float32)})
        found.append(strategy.start(grid, model, num_rounds=6))

    caplog.set_level(logging.INFO, logger="flwr")
    run_in_process(server, client, 4)
    verdicts = [one for one in caplog.messages if one.startswith("outlook: ")]
    assert [one.partition(":")[2][:6] for one in verdicts] == [" good:"]
    assert not any(" noise" in one for one in caplog.messages)
    (result,) = found
    moved = result.arrays["w"].numpy()
    assert moved @ target / np.linalg.norm(moved) / np.linalg.norm(target) > 0.5
    metrics = result.train_metrics_clientapp[6]
    assert (metrics["accepted"], metrics["epsilon-total"]) == (4, 48.0)


@outside_a_run
def test_clients_that_agree_move_the_model_their_way(tmp_path: Path) -> None:
    policy = owner(tmp_path / "site")
    policy.write_text(POLICY.replace("17.0", "1000.0").replace("deployment", "simulation"))
    strategy = CodewordStrategy(MECHANISM, STEP)
    update = np.random.default_rng(0).normal(size=DIMENSION)
    replies = [answer(sent, policy, update) for sent in ask(strategy, nodes=60)]
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert arrays is not None
    assert metrics is not None
    step = moved(arrays)
    cosine = step @ update / np.linalg.norm(step) / np.linalg.norm(update)
    said = metrics["expected-cosine"]
    assert said == pytest.approx(MECHANISM.plan(DIMENSION).cosine_of_sum(60))
    assert 0.6 < said < 0.9
    assert abs(cosine - said) < 0.15  # the noise of a cosine in 201 dimensions is 0.07
    assert metrics["accepted"] == 60


@outside_a_run
def test_each_round_has_codes_of_its_own_and_states_k() -> None:
    strategy = CodewordStrategy(Codeword(8.0, seed=2**63 - 2), STEP)
    seen = [proposal(ask(strategy, n)[0]).mechanism for n in (1, 2, 3)]
    assert [mechanism.seed for mechanism in seen] == [2**63 - 2, 2**63 - 1, 0]
    assert {mechanism.favoured for mechanism in seen} == {MECHANISM.plan(DIMENSION).favoured}


@outside_a_run
def test_the_step_is_along_what_was_named() -> None:
    strategy = CodewordStrategy(MECHANISM, STEP)
    sent = ask(strategy)[0]
    report = CodewordReport(256, 3, 17, -1)
    arrays, _ = strategy.aggregate_train(1, [named(report, 101, sent)])
    assert arrays is not None
    word = proposal(sent).mechanism.total([report], DIMENSION)
    np.testing.assert_allclose(moved(arrays), 0.5 * word / np.linalg.norm(word), atol=1e-6)


@outside_a_run
@pytest.mark.parametrize(
    ("payload", "reason"),
    [(b"\x01\x00", "length"), (b"\x02\x00\x00", "version"), (b"\x01\xff\xff", "range")],
)
def test_a_bad_reply_is_left_out(payload: bytes, reason: str) -> None:
    # 100 codes of 512 codewords: not all numbers of two bytes are one.
    strategy = CodewordStrategy(Codeword(8.0, rotations=100), STEP)
    sent = ask(strategy)[0]
    content = RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: payload})})
    good = named(CodewordReport(256, 0, 0, 1), 100, sent)
    arrays, metrics = strategy.aggregate_train(1, [good, message(content, node=101, reply=True)])
    assert arrays is not None
    assert metrics is not None
    assert (metrics["accepted"], metrics[f"rejected-{reason}"]) == (1, 1)


@outside_a_run
def test_with_no_usable_reply_the_model_stays() -> None:
    strategy = CodewordStrategy(MECHANISM, STEP)
    ask(strategy)
    arrays, metrics = strategy.aggregate_train(1, [error_reply("ldp:refused:policy", 100)])
    assert arrays is None
    assert metrics is not None
    assert (metrics["accepted"], metrics["epsilon-total"]) == (0, 8.0)


@outside_a_run
def test_a_health_bit_is_asked_for_and_charged(tmp_path: Path) -> None:
    strategy = CodewordStrategy(MECHANISM, STEP, health=Health(0.5))
    sent = ask(strategy)[0]
    assert [event.epsilon for event in proposal(sent).events()] == [8.0, 0.5]
    reply = answer(sent, owner(tmp_path / "site"), np.ones(DIMENSION))
    _, metrics = strategy.aggregate_train(1, [reply])
    assert metrics is not None
    assert (metrics["epsilon-round"], metrics["bytes-up"]) == (8.5, 4.0)


def test_summary_states_cost_and_step(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.INFO, logger="flwr"):
        CodewordStrategy(MECHANISM, Momentum(0.9)).summary()
    assert "epsilon 8 per client" in caplog.text
    assert "momentum=0.9" in caplog.text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((Gaussian(1.0, 1e-6), STEP), "mechanism must be a Codeword"),
        ((Codeword, STEP), "mechanism must be a Codeword"),
        ((MECHANISM, "fixed"), "server_optimizer must be"),
        ((MECHANISM, 0.5), "server_optimizer must be"),
    ],
)
def test_arguments_of_other_types_are_refused(given: tuple[Any, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        CodewordStrategy(*given)
