"""Codewords from end to end: the real gate, an owner's ledger, and the strategy's steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import CodewordRelease, LdpMod
from flower_ldp.mechanisms import Codeword, CodewordReport
from flower_ldp.strategies import CodewordStrategy, FixedLength, Health
from flower_ldp.wire.proposal import REPORT_KEY
from tests.fixtures import make_site, payload, policy_text, record
from tests.unit.strategies import rounds
from tests.unit.strategies.rounds import aggregated, ask, change, cosine, proposed, reply, unmoved

MODEL = {
    "w": np.ones((10, 20), dtype=np.float32),
    "count": np.array(3, dtype=np.int64),
    "scale": np.array(2.0, dtype=np.float64),
}
DIMENSION = 201
STEP = FixedLength(0.5, rounds=10, momentum=0.0)
MECHANISM = Codeword(8.0, seed=7)
#: Not each client once: rounds that need no run.
ANEW: dict[str, Any] = {"answers_per_client": None}
MESSAGES = "{train: {codeword: {epsilon: 8.0}, health: {epsilon: 0.5}}}"
outside_a_run = pytest.mark.usefixtures("outside_a_run")


def answer(sent: Message, site: Context, update: np.ndarray) -> Message:
    """Return what the client's gate makes of an app whose model moves by the update."""
    trained = {
        **MODEL,
        "w": MODEL["w"] + update[:200].reshape(10, 20).astype(np.float32),
        "scale": np.asarray(MODEL["scale"] + update[200]),
    }

    def app(asked: Message, _: Context) -> Message:
        metrics = MetricRecord({"num-examples": 987_654})
        return Message(RecordDict({"arrays": record(trained), "m": metrics}), reply_to=asked)

    own = Context(3, sent.metadata.dst_node_id, site.node_config, RecordDict(), {})
    return LdpMod(train=CodewordRelease())(sent, own, app)


def moved(arrays: Any) -> np.ndarray:
    return change(arrays, MODEL, "w", "scale")


@outside_a_run
def test_gate_ledger_and_strategy_agree(tmp_path: Path) -> None:
    """One owner is asked three times: two reports leave, and then the budget is spent."""
    site = make_site(tmp_path, policy_text(MESSAGES, life=17.0))
    strategy = CodewordStrategy(MECHANISM, STEP, **ANEW, min_train_nodes=1, min_available_nodes=1)
    update = np.random.default_rng(0).normal(size=DIMENSION)
    for server_round in (1, 2):
        (sent,) = ask(strategy, MODEL, server_round, nodes=1)
        report = answer(sent, site, update)
        assert list(report.content) == [REPORT_KEY]
        after, metrics = aggregated(strategy, [report], server_round)
        assert len(payload(report)) == metrics["bytes-up"] == 3
        assert np.linalg.norm(moved(after)) == pytest.approx(0.5 * (11 - server_round) / 10, 1e-3)
        assert after["count"] == 3
        assert metrics["epsilon-total"] == 8.0 * server_round
    (sent,) = ask(strategy, MODEL, 3, nodes=1)
    refusal = answer(sent, site, update)
    assert refusal.error.reason == "ldp:refused:budget"
    metrics = unmoved(strategy, [refusal], 3)
    assert metrics["epsilon-total"] == 16.0
    assert "expected-cosine" not in metrics
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.verify().entries == 2


@pytest.mark.usefixtures("simulation_policy")
def test_a_run_in_one_process_learns_a_direction(caplog: pytest.LogCaptureFixture) -> None:
    """Apps of Flower, the shipped policy for simulations, and rounds with codes of their own."""
    target = np.random.default_rng(0).normal(size=50).astype(np.float32)
    strategy = CodewordStrategy(Codeword(8.0), FixedLength(1.0, 100), **ANEW, min_train_nodes=4)
    model = {"w": np.zeros(50, dtype=np.float32)}
    result = rounds.run(strategy, CodewordRelease(), model, {"w": target}, num_rounds=6)
    verdicts = [one for one in caplog.messages if one.startswith("outlook: ")]
    assert [one.partition(":")[2][:6] for one in verdicts] == [" good:"]
    assert not any(" noise" in one for one in caplog.messages)
    assert cosine(result.arrays["w"].numpy(), target) > 0.5
    metrics = result.train_metrics_clientapp[6]
    assert (metrics["accepted"], metrics["epsilon-total"]) == (4, 48.0)


@outside_a_run
def test_clients_that_agree_move_the_model_their_way(tmp_path: Path) -> None:
    site = make_site(tmp_path, policy_text(MESSAGES, mode="simulation", life=1000.0))
    strategy = CodewordStrategy(MECHANISM, STEP, **ANEW)
    update = np.random.default_rng(0).normal(size=DIMENSION)
    replies = [answer(sent, site, update) for sent in ask(strategy, MODEL, nodes=60)]
    after, metrics = aggregated(strategy, replies)
    said = metrics["expected-cosine"]
    assert said == pytest.approx(MECHANISM.plan(DIMENSION).cosine_of_sum(60))
    assert 0.6 < said < 0.9
    # the noise of a cosine in 201 dimensions is 0.07
    assert abs(cosine(moved(after), update) - said) < 0.15
    assert metrics["accepted"] == 60


@outside_a_run
def test_each_round_has_codes_of_its_own_and_states_k() -> None:
    strategy = CodewordStrategy(Codeword(8.0, seed=2**63 - 2), STEP, **ANEW)
    seen = [proposed(ask(strategy, MODEL, n)[0]).mechanism for n in (1, 2, 3)]
    assert [mechanism.seed for mechanism in seen] == [2**63 - 2, 2**63 - 1, 0]
    assert {mechanism.favoured for mechanism in seen} == {MECHANISM.plan(DIMENSION).favoured}


@outside_a_run
def test_the_step_is_along_what_was_named() -> None:
    strategy = CodewordStrategy(MECHANISM, STEP, **ANEW)
    mechanism = proposed(ask(strategy, MODEL)[0]).mechanism
    report = CodewordReport(256, 3, 17, -1)
    after, _ = aggregated(strategy, [reply(mechanism.encode(report, DIMENSION), 101)])
    word = mechanism.total([report], DIMENSION)
    np.testing.assert_allclose(moved(after), 0.5 * word / np.linalg.norm(word), atol=1e-6)


@outside_a_run
@pytest.mark.parametrize(
    ("bad", "reason"),
    [(b"\x01\x00", "length"), (b"\x02\x00\x00", "version"), (b"\x01\xff\xff", "range")],
)
def test_a_bad_report_is_left_out(bad: bytes, reason: str) -> None:
    # 100 codes of 512 codewords: not all numbers of two bytes are one.
    strategy = CodewordStrategy(Codeword(8.0, rotations=100), STEP, **ANEW)
    mechanism = proposed(ask(strategy, MODEL)[0]).mechanism
    good = mechanism.encode(CodewordReport(256, 0, 0, 1), DIMENSION)
    _, metrics = aggregated(strategy, [reply(good, 100), reply(bad, 101)])
    assert (metrics["accepted"], metrics[f"rejected-{reason}"]) == (1, 1)


@outside_a_run
def test_a_health_bit_is_asked_for_and_charged(tmp_path: Path) -> None:
    strategy = CodewordStrategy(MECHANISM, STEP, **ANEW, health=Health(0.5))
    (sent, *_) = ask(strategy, MODEL)
    assert [event.epsilon for event in proposed(sent).events()] == [8.0, 0.5]
    site = make_site(tmp_path, policy_text(MESSAGES))
    _, metrics = aggregated(strategy, [answer(sent, site, np.ones(DIMENSION))])
    assert (metrics["epsilon-round"], metrics["bytes-up"]) == (8.5, 4.0)
