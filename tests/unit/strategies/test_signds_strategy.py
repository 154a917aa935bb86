"""The strategy: asks, validates each reply by itself, moves the model, states the cost."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from flower_ldp.accounting.zcdp import life_by_zcdp
from flower_ldp.clients import LdpMod, SignDSRelease
from flower_ldp.mechanisms import MagRR, SignDS
from flower_ldp.mechanisms.signds_round import encode_report
from flower_ldp.privacy import PrivacyEvent, Unit
from flower_ldp.strategies import FixedLength, FixedStep, LearnedStep, Momentum, SignDSStrategy
from flower_ldp.strategies import training as strategy_module
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY
from tests.fixtures import context, error_reply, message, record
from tests.unit.strategies import rounds
from tests.unit.strategies.rounds import aggregated, change, proposed, reply, unmoved

MODEL = {
    "a": np.ones((20, 30), dtype=np.float32),
    "steps": np.array(3, dtype=np.int64),
    "b": np.zeros(400, dtype=np.float64),
    "c": np.array(2.0, dtype=np.float16),
}
DIMENSION = 1_001
pytestmark = pytest.mark.usefixtures("simulation_policy", "outside_a_run")

SELECTION = SignDS(epsilon=20.0, k=0.2)
H = SELECTION.plan(DIMENSION).dim_out
FIRST = list(range(H))
LAST = list(range(DIMENSION - H, DIMENSION))


def configured(
    step: LearnedStep | FixedStep | None = None, nodes: int = 5, **options: Any
) -> tuple[SignDSStrategy, list[Message]]:
    strategy = SignDSStrategy(SELECTION, step or FixedStep(0.5), **options)
    return strategy, rounds.ask(strategy, MODEL, nodes=nodes)


def payload(indices: Iterable[int], sign: int = 1, bit: int | None = None) -> bytes:
    return encode_report(np.array(list(indices)), sign, bit, dimension=DIMENSION)


def from_all(bit: int) -> list[Message]:
    return [reply(payload(FIRST, bit=bit), node) for node in range(100, 105)]


def test_every_message_carries_the_proposal() -> None:
    _, messages = configured(LearnedStep(MagRR(0.5, initial_estimate=0.25)))
    assert len(messages) == 5
    for sent in messages:
        assert dict(sent.content.config_records[PROPOSAL_KEY]) == {
            "version": 1,
            "mechanism": "signds",
            "epsilon": 20.0,
            "k": 0.2,
            "threshold-ratio": 0.6,
            "dim-out": 0,
            "magnitude-epsilon": 0.5,
            "magnitude-threshold": 0.5,
        }
        assert sent.content.config_records["config"]["server-round"] == 1


def test_without_k_the_proposal_states_what_was_chosen_for_the_model() -> None:
    strategy = SignDSStrategy(SignDS(epsilon=20.0), FixedStep(1.0))
    stated = proposed(rounds.ask(strategy, MODEL)[0]).mechanism.selection
    chosen = SignDS(epsilon=20.0).plan(DIMENSION)
    assert stated.k is not None
    assert (stated.plan(DIMENSION), stated.dim_out) == (chosen, chosen.dim_out)
    _, metrics = aggregated(strategy, [reply(payload(range(chosen.dim_out)), 100)])
    assert (metrics["accepted"], metrics["epsilon-round"]) == (1, 20.0)


def test_fixed_step_moves_reported_dimensions_by_the_rate_over_the_reports() -> None:
    strategy, _ = configured(FixedStep(0.5))
    replies = [reply(payload(FIRST), 100), reply(payload(LAST, -1), 101)]
    after, metrics = aggregated(strategy, replies)
    assert [(n, a.dtype) for n, a in after.items()] == [(n, a.dtype) for n, a in MODEL.items()]
    expected = np.zeros(DIMENSION)
    expected[FIRST] += 0.25
    expected[LAST] -= 0.25
    np.testing.assert_allclose(change(after, MODEL, "a", "b", "c"), expected, atol=1e-6)
    assert after["steps"] == 3
    assert dict(metrics) == {
        "accepted": 2,
        "rejected": 0,
        "bytes-up": float(len(payload(FIRST))),
        "epsilon-round": 20.0,
        "epsilon-total": 20.0,
    }


def test_learned_step_uses_the_estimate_after_the_bits_of_the_round() -> None:
    strategy, _ = configured(LearnedStep(MagRR(20.0, initial_estimate=0.25)))
    after, metrics = aggregated(strategy, from_all(bit=0))
    assert (metrics["r-est"], metrics["magnitude-majority"]) == (0.5, 0)
    assert metrics["epsilon-round"] == 40.0
    # growth doubled r_est to 0.5; the published step is 2 r_est times the sum of 5 signs
    assert after["a"].ravel()[0] == pytest.approx(1.0 + 2 * 0.5 * 5)


def test_unbiased_scaling_is_the_published_one_over_n_contrast_half() -> None:
    moves = {}
    for scaling in ("published", "unbiased"):
        strategy, _ = configured(LearnedStep(MagRR(20.0)), scaling=scaling)
        after, _ = aggregated(strategy, from_all(bit=1))
        moves[scaling] = change(after, MODEL, "a")[0]
    contrast = SELECTION.plan(DIMENSION).contrast
    assert moves["published"] == pytest.approx(moves["unbiased"] * 5 * contrast / 2, rel=1e-4)


def test_below_the_participation_limit_no_bit_is_asked_and_the_rate_is_fixed() -> None:
    step = LearnedStep(MagRR(0.5), FixedStep(0.5), min_participation=0.05)
    strategy, messages = configured(step, nodes=100, fraction_train=0.04)
    assert len(messages) == 4
    assert "magnitude-epsilon" not in messages[0].content.config_records[PROPOSAL_KEY]
    answer = reply(payload(FIRST), messages[0].metadata.dst_node_id)
    after, metrics = aggregated(strategy, [answer])
    assert after["a"].ravel()[0] == pytest.approx(1.5)
    assert metrics["epsilon-round"] == 20.0
    assert "r-est" not in metrics


def test_server_optimizer_takes_the_step() -> None:
    strategy, _ = configured(FixedStep(1.0), server_optimizer=Momentum(0.5, learning_rate=2.0))
    aggregated(strategy, [reply(payload(FIRST), 100)])
    rounds.ask(strategy, MODEL, 2)
    after, _ = aggregated(strategy, [reply(payload(FIRST), 100)], 2)
    assert after["a"].ravel()[0] == pytest.approx(1.0 + 2.0 * (1.0 + 0.5))


GOOD = payload(FIRST)
METRICS = MetricRecord({"num-examples": 3, "loss": 0.1})
RAW = RecordDict({"arrays": record(MODEL), "metrics": METRICS})
BESIDE = RecordDict(
    {REPORT_KEY: ConfigRecord({PAYLOAD_KEY: GOOD}), "more": record({"x": np.zeros(2)})}
)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (error_reply("ldp:refused:policy", 101), "ldp:refused:policy"),
        (error_reply("ldp:failed", 101), "ldp:failed"),
        (error_reply("Traceback: secret-4711", 101), "error"),
        (error_reply("the SuperLink's word on a node that is gone", 1), "error"),
        (message(RAW, node=101, reply=True), "record"),
        (message(BESIDE, node=101, reply=True), "record"),
        (message(RecordDict(), node=101, reply=True), "record"),
        (reply("text", 101), "record"),
        (reply([1, 2], 101), "record"),
        (reply(b"", 101), "length"),
        (reply(GOOD[:-1], 101), "length"),
        (reply(GOOD + b"\0", 101), "length"),
        (reply(b"\2" + GOOD[1:], 101), "version"),
        (reply(GOOD[:1] + b"\xff" + GOOD[2:], 101), "flags"),
        (reply(payload(FIRST, bit=1), 101), "flags"),
        (reply(payload(range(H - 1)), 101), "range"),
        (reply(GOOD, 100), "sender"),
        (reply(GOOD, 999), "sender"),
    ],
)
def test_a_bad_reply_is_counted_by_reason_and_the_round_goes_on(bad: Message, reason: str) -> None:
    strategy, _ = configured(FixedStep(0.5))
    after, metrics = aggregated(strategy, [reply(GOOD, 100), bad])
    assert after["a"].ravel()[0] == pytest.approx(1.5)
    assert (metrics["accepted"], metrics["rejected"]) == (1, 1)
    assert metrics[f"rejected-{reason}"] == 1


def test_with_no_usable_reply_the_model_stays_and_what_to_do_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy, _ = configured(LearnedStep(MagRR(1.0)))
    before = strategy.step_size.estimate
    metrics = unmoved(strategy, [error_reply("ldp:refused:policy", node) for node in (100, 101)])
    assert metrics["accepted"] == 0
    assert strategy.step_size.estimate == before
    assert "the model stays as it is" in caplog.text
    assert "FLOWER_LDP_POLICY" in caplog.text


def test_a_step_beyond_the_weights_range_leaves_the_model_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy, _ = configured(FixedStep(1e6))  # float16 ends at 65,504
    assert unmoved(strategy, [reply(payload(LAST), 100)])["accepted"] == 1
    assert "not finite" in caplog.text


def test_privacy_spent_is_the_worst_client_by_what_was_asked() -> None:
    strategy = SignDSStrategy(SELECTION, LearnedStep(MagRR(0.5)), fraction_train=0.5)
    assert str(strategy.privacy_spent()) == "nothing was asked for"
    assert not strategy.privacy_spent().units
    asked = Counter(
        sent.metadata.dst_node_id
        for server_round in range(1, 8)
        for sent in rounds.ask(strategy, MODEL, server_round)
    )
    report = strategy.privacy_spent()
    assert report.units[Unit.CLIENT].epsilon == pytest.approx(20.5 * max(asked.values()))
    assert {node: spent[Unit.CLIENT].epsilon for node, spent in report.clients.items()} == {
        node: pytest.approx(20.5 * count) for node, count in asked.items()
    }


def test_privacy_spent_has_the_life_by_zcdp_that_fits() -> None:
    strategy = SignDSStrategy(SignDS(0.1, 0.2), FixedStep(1.0))
    for server_round in range(1, 101):
        list(rounds.ask(strategy, MODEL, server_round))
    report = strategy.privacy_spent(delta=1e-5)
    events = [PrivacyEvent("signds", 0.1, count=100)]
    assert report.lives[Unit.CLIENT].epsilon == life_by_zcdp(events, Unit.CLIENT, 1e-5)
    assert f"; it fits a life by zCDP of {report.lives[Unit.CLIENT]}" in str(report)
    assert 4.72 < report.lives[Unit.CLIENT].epsilon < 4.73


def test_a_refusal_before_the_charge_costs_nothing_and_a_failure_costs_all() -> None:
    strategy, _ = configured(nodes=4)
    failures = [error_reply("ldp:refused:budget", 100), error_reply("ldp:failed", 101)]
    aggregated(strategy, [*failures, reply(payload(FIRST), 102)])
    clients = strategy.privacy_spent().clients
    spent = {node: units[Unit.CLIENT].epsilon if units else 0.0 for node, units in clients.items()}
    assert spent == {100: 0.0, 101: 20.0, 102: 20.0, 103: 20.0}


def test_summary_says_how_to_turn_the_magnitude_bit_on(caplog: pytest.LogCaptureFixture) -> None:
    SignDSStrategy(SELECTION, FixedStep(1.0)).summary()
    assert "sign_mag_eps" in caplog.text
    assert "epsilon 20 per client" in caplog.text
    caplog.clear()
    SignDSStrategy(SELECTION, LearnedStep(MagRR(0.5))).summary()
    assert "sign_mag_eps" not in caplog.text
    assert "epsilon 20.5 per client" in caplog.text


def test_steps_of_fixed_length_are_refused_with_a_learned_size() -> None:
    length = FixedLength(1.0, rounds=10)
    with pytest.raises(ValueError, match=r"pay epsilon 0.5 a round for a bit that is never used"):
        SignDSStrategy(SELECTION, LearnedStep(MagRR(0.5)), server_optimizer=length)
    SignDSStrategy(SELECTION, FixedStep(0.1), server_optimizer=length)
    SignDSStrategy(SELECTION, LearnedStep(MagRR(0.5)), server_optimizer=Momentum())


def test_gate_and_strategy_agree_end_to_end() -> None:
    """Real gate, real strategy: the model moves towards what all clients want."""
    step = LearnedStep(MagRR(20.0, initial_estimate=0.01))
    strategy, messages = configured(step, nodes=40, scaling="unbiased")
    wanted = np.random.default_rng(0).normal(size=DIMENSION)
    gate = LdpMod(train=SignDSRelease())

    def app(sent: Message, _: object) -> Message:
        flat = 0.02 * wanted
        parts = {"a": flat[:600].reshape(20, 30), "b": flat[600:1000], "c": flat[1000]}
        trained = {n: np.asarray(a + parts.get(n, 0), dtype=a.dtype) for n, a in MODEL.items()}
        return Message(RecordDict({"arrays": record(trained)}), reply_to=sent)

    replies = []
    for sent in messages:
        own = context()
        own.node_config["partition-id"] = sent.metadata.dst_node_id
        replies.append(gate(sent, own, app))
    after, metrics = aggregated(strategy, replies)
    assert metrics["accepted"] == 40
    assert np.corrcoef(change(after, MODEL, "a", "b", "c"), wanted)[0, 1] > 0.3


def test_strategy_module_logs_where_flower_logs() -> None:
    assert strategy_module._log is logging.getLogger("flwr")


def test_a_model_of_which_no_unbiased_step_can_be_made_is_refused_before_anyone_is_asked() -> None:
    mechanism = SignDS(1.0, 0.2, dim_out=DIMENSION)  # all of it, whatever the update is
    strategy = SignDSStrategy(mechanism, FixedStep(0.1), scaling="unbiased")
    with pytest.raises(ValueError, match="smaller dim_out"):
        rounds.ask(strategy, MODEL)
    assert str(strategy.privacy_spent()) == "nothing was asked for"
