"""The strategy: asks, validates each reply by itself, moves the model, states the cost."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp.strategy import FedAvg

from flower_ldp.clients import LdpMod, SignDSRelease
from flower_ldp.mechanisms import MagRR, SignDS
from flower_ldp.mechanisms.signds_round import encode_report
from flower_ldp.privacy import Unit
from flower_ldp.strategies import FixedLength, FixedStep, LearnedStep, Momentum, SignDSStrategy
from flower_ldp.strategies import training as strategy_module
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY
from tests.fixtures import context, error_reply, message, parsed, record

MODEL = {
    "a": np.ones((20, 30), dtype=np.float32),
    "steps": np.array(3, dtype=np.int64),
    "b": np.zeros(400, dtype=np.float64),
    "c": np.array(2.0, dtype=np.float16),
}
DIMENSION = 1_001
pytestmark = pytest.mark.usefixtures("simulation_policy")

SELECTION = SignDS(epsilon=20.0, k=0.2)
H = SELECTION.plan(DIMENSION).dim_out


class FakeGrid:
    """The grid's one method that sampling and participation use."""

    def __init__(self, nodes: int) -> None:
        self.nodes = list(range(100, 100 + nodes))

    def get_node_ids(self) -> list[int]:
        return self.nodes


@pytest.fixture(autouse=True)
def _messages_outside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(self: FedAvg, content: RecordDict, nodes: list[int], kind: str) -> list[Message]:
        return [message(content, node=node, kind=kind, message_id=f"ask-{node}") for node in nodes]

    monkeypatch.setattr(FedAvg, "_construct_messages", make)


def configured(
    step: LearnedStep | FixedStep | None = None, nodes: int = 5, **options: Any
) -> tuple[SignDSStrategy, list[Message]]:
    strategy = SignDSStrategy(SELECTION, step or FixedStep(0.5), **options)
    messages = strategy.configure_train(1, record(MODEL), ConfigRecord(), FakeGrid(nodes))  # type: ignore[arg-type]
    return strategy, list(messages)


def reply(payload: object, node: int) -> Message:
    content = RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: payload})})  # type: ignore[dict-item]
    return message(content, node=node, reply=True)


def payload(indices: Iterable[int], sign: int = 1, bit: int | None = None) -> bytes:
    return encode_report(np.array(list(indices)), sign, bit, dimension=DIMENSION)


FIRST = list(range(H))
LAST = list(range(DIMENSION - H, DIMENSION))


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
    sent = list(
        strategy.configure_train(1, record(MODEL), ConfigRecord(), FakeGrid(5))  # type: ignore[arg-type]
    )
    stated = parsed(sent[0].content.config_records[PROPOSAL_KEY]).mechanism.selection
    chosen = SignDS(epsilon=20.0).plan(DIMENSION)
    assert stated.k is not None
    assert (stated.plan(DIMENSION), stated.dim_out) == (chosen, chosen.dim_out)
    picked = payload(range(chosen.dim_out))
    arrays, metrics = strategy.aggregate_train(1, [reply(picked, 100)])
    assert arrays is not None
    assert metrics is not None
    assert (metrics["accepted"], metrics["epsilon-round"]) == (1, 20.0)


def test_fixed_step_moves_reported_dimensions_by_the_rate_over_the_reports() -> None:
    strategy, _ = configured(FixedStep(0.5))
    arrays, metrics = strategy.aggregate_train(
        1, [reply(payload(FIRST), 100), reply(payload(LAST, -1), 101)]
    )
    assert arrays is not None
    moved = {name: array.numpy() for name, array in arrays.items()}
    assert list(moved) == list(MODEL)
    assert {name: a.dtype for name, a in moved.items()} == {n: a.dtype for n, a in MODEL.items()}
    flat = np.concatenate([moved[n].ravel() - MODEL[n].ravel() for n in ("a", "b", "c")])
    expected = np.zeros(DIMENSION)
    expected[FIRST] += 0.25
    expected[LAST] -= 0.25
    np.testing.assert_allclose(flat, expected, atol=1e-6)
    assert moved["steps"] == 3
    assert metrics is not None
    assert dict(metrics) == {
        "accepted": 2,
        "rejected": 0,
        "bytes-up": float(len(payload(FIRST))),
        "epsilon-round": 20.0,
        "epsilon-total": 20.0,
    }


def test_learned_step_uses_the_estimate_after_the_bits_of_the_round() -> None:
    strategy, _ = configured(LearnedStep(MagRR(20.0, initial_estimate=0.25)))
    replies = [reply(payload(FIRST, bit=0), node) for node in range(100, 105)]
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert arrays is not None
    assert metrics is not None
    assert (metrics["r-est"], metrics["magnitude-majority"]) == (0.5, 0)
    assert metrics["epsilon-round"] == 40.0
    # growth doubled r_est to 0.5; the published step is 2 r_est times the sum of 5 signs
    assert arrays["a"].numpy().ravel()[0] == pytest.approx(1.0 + 2 * 0.5 * 5)


def test_unbiased_scaling_is_the_published_one_over_n_contrast_half() -> None:
    moves = {}
    for scaling in ("published", "unbiased"):
        strategy, _ = configured(LearnedStep(MagRR(20.0)), scaling=scaling)
        arrays, _ = strategy.aggregate_train(
            1, [reply(payload(FIRST, bit=1), node) for node in range(100, 105)]
        )
        assert arrays is not None
        moves[scaling] = float(arrays["b"].numpy()[0] + arrays["a"].numpy().ravel()[0] - 1.0)
    contrast = SELECTION.plan(DIMENSION).contrast
    assert moves["published"] == pytest.approx(moves["unbiased"] * 5 * contrast / 2, rel=1e-4)


def test_below_the_participation_limit_no_bit_is_asked_and_the_rate_is_fixed() -> None:
    step = LearnedStep(MagRR(0.5), FixedStep(0.5), min_participation=0.05)
    strategy, messages = configured(step, nodes=100, fraction_train=0.04)
    assert len(messages) == 4
    assert "magnitude-epsilon" not in messages[0].content.config_records[PROPOSAL_KEY]
    arrays, metrics = strategy.aggregate_train(
        1, [reply(payload(FIRST), messages[0].metadata.dst_node_id)]
    )
    assert arrays is not None
    assert metrics is not None
    assert arrays["a"].numpy().ravel()[0] == pytest.approx(1.5)
    assert metrics["epsilon-round"] == 20.0
    assert "r-est" not in metrics


def test_server_optimizer_takes_the_step() -> None:
    strategy, _ = configured(FixedStep(1.0), server_optimizer=Momentum(0.5, learning_rate=2.0))
    strategy.aggregate_train(1, [reply(payload(FIRST), 100)])
    strategy.configure_train(2, record(MODEL), ConfigRecord(), FakeGrid(5))  # type: ignore[arg-type]
    arrays, _ = strategy.aggregate_train(2, [reply(payload(FIRST), 100)])
    assert arrays is not None
    assert arrays["a"].numpy().ravel()[0] == pytest.approx(1.0 + 2.0 * (1.0 + 0.5))


GOOD = payload(FIRST)
RAW = RecordDict(
    {"arrays": record(MODEL), "metrics": MetricRecord({"num-examples": 3, "loss": 0.1})}
)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (error_reply("ldp:refused:policy", 101), "ldp:refused:policy"),
        (error_reply("ldp:failed", 101), "ldp:failed"),
        (error_reply("Traceback: secret-4711", 101), "error"),
        (error_reply("the SuperLink's word on a node that is gone", 1), "error"),
        (message(RAW, node=101, reply=True), "record"),
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
def test_a_bad_reply_is_counted_by_reason_and_the_round_goes_on(
    bad: Message, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    strategy, _ = configured(FixedStep(0.5))
    arrays, metrics = strategy.aggregate_train(1, [reply(GOOD, 100), bad])
    assert arrays is not None
    assert metrics is not None
    assert arrays["a"].numpy().ravel()[0] == pytest.approx(1.5)
    assert (metrics["accepted"], metrics["rejected"]) == (1, 1)
    assert metrics[f"rejected-{reason}"] == 1


def test_extra_records_beside_a_report_are_rejected() -> None:
    strategy, _ = configured()
    content = RecordDict(
        {
            REPORT_KEY: ConfigRecord({PAYLOAD_KEY: GOOD}),
            "more": ArrayRecord({"x": Array(np.zeros(2))}),
        }
    )
    _, metrics = strategy.aggregate_train(1, [message(content, node=100, reply=True)])
    assert metrics is not None
    assert metrics["rejected-record"] == 1


def test_with_no_usable_reply_the_model_stays(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    strategy, _ = configured(LearnedStep(MagRR(1.0)))
    before = strategy.step_size.estimate
    with caplog.at_level(logging.WARNING, logger="flwr"):
        arrays, metrics = strategy.aggregate_train(1, [error_reply("ldp:failed", 100)])
    assert arrays is None
    assert metrics is not None
    assert metrics["accepted"] == 0
    assert strategy.step_size.estimate == before
    assert "the model stays as it is" in caplog.text


def test_a_step_beyond_the_weights_range_leaves_the_model_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.getLogger("flwr").propagate = True
    strategy, _ = configured(FixedStep(1e6))  # float16 ends at 65,504
    with caplog.at_level(logging.ERROR, logger="flwr"):
        arrays, metrics = strategy.aggregate_train(1, [reply(payload(LAST), 100)])
    assert arrays is None
    assert metrics is not None
    assert metrics["accepted"] == 1
    assert "not finite" in caplog.text


def test_aggregating_an_unconfigured_round_is_an_error() -> None:
    strategy, _ = configured()
    with pytest.raises(RuntimeError, match="round 2 was not configured"):
        strategy.aggregate_train(2, [])


def test_privacy_spent_is_the_worst_client_by_what_was_asked() -> None:
    strategy = SignDSStrategy(SELECTION, LearnedStep(MagRR(0.5)), fraction_train=0.5)
    grid = FakeGrid(6)
    asked: dict[int, int] = {}
    for server_round in range(1, 8):
        for sent in strategy.configure_train(
            server_round,
            record(MODEL),
            ConfigRecord(),
            grid,  # type: ignore[arg-type]
        ):
            node = sent.metadata.dst_node_id
            asked[node] = asked.get(node, 0) + 1
    assert max(asked.values()) < 7 * 6
    report = strategy.privacy_spent()
    assert report.units[Unit.CLIENT].epsilon == pytest.approx(20.5 * max(asked.values()))
    assert {node: spent[Unit.CLIENT].epsilon for node, spent in report.clients.items()} == {
        node: pytest.approx(20.5 * count) for node, count in asked.items()
    }


def test_privacy_spent_says_so_if_nothing_was_asked_for() -> None:
    report = SignDSStrategy(SELECTION, FixedStep(1.0)).privacy_spent()
    assert not report.units
    assert str(report) == "nothing was asked for"


def test_a_refusal_before_the_charge_costs_nothing_and_a_failure_costs_all() -> None:
    strategy, _ = configured(nodes=4)
    refused = error_reply("ldp:refused:budget", 100)
    failed = error_reply("ldp:failed", 101)
    strategy.aggregate_train(1, [refused, failed, reply(payload(FIRST), 102)])
    clients = strategy.privacy_spent().clients
    spent = {node: units[Unit.CLIENT].epsilon if units else 0.0 for node, units in clients.items()}
    assert spent == {100: 0.0, 101: 20.0, 102: 20.0, 103: 20.0}


def test_clients_without_a_policy_are_a_warning_that_says_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.getLogger("flwr").propagate = True
    strategy, _ = configured(nodes=4)
    refusals = [error_reply("ldp:refused:policy", node) for node in (100, 101)]
    with caplog.at_level(logging.WARNING, logger="flwr"):
        arrays, _ = strategy.aggregate_train(1, refusals)
    assert arrays is None
    assert "FLOWER_LDP_POLICY" in caplog.text


def test_summary_says_how_to_turn_the_magnitude_bit_on(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.INFO, logger="flwr"):
        SignDSStrategy(SELECTION, FixedStep(1.0)).summary()
    assert "sign_mag_eps" in caplog.text
    assert "epsilon 20 per client" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="flwr"):
        SignDSStrategy(SELECTION, LearnedStep(MagRR(0.5))).summary()
    assert "sign_mag_eps" not in caplog.text
    assert "epsilon 20.5 per client" in caplog.text


def test_steps_of_fixed_length_are_refused_with_a_learned_size() -> None:
    with pytest.raises(ValueError, match=r"pay epsilon 0.5 a round for a bit that is never used"):
        SignDSStrategy(
            SELECTION, LearnedStep(MagRR(0.5)), server_optimizer=FixedLength(1.0, rounds=10)
        )
    SignDSStrategy(SELECTION, FixedStep(0.1), server_optimizer=FixedLength(1.0, rounds=10))
    SignDSStrategy(SELECTION, LearnedStep(MagRR(0.5)), server_optimizer=Momentum())


def test_gate_and_strategy_agree_end_to_end() -> None:
    """Real gate, real strategy: the model moves towards what all clients want."""
    strategy, messages = configured(
        LearnedStep(MagRR(20.0, initial_estimate=0.01)), nodes=40, scaling="unbiased"
    )
    wanted = np.random.default_rng(0).normal(size=DIMENSION)
    gate = LdpMod(train=SignDSRelease())

    def app(sent: Message, _: object) -> Message:
        flat = 0.02 * wanted
        parts = {"a": flat[:600].reshape(20, 30), "b": flat[600:1000], "c": flat[1000]}
        arrays = {
            name: np.asarray(array + parts[name], dtype=array.dtype) if name in parts else array
            for name, array in MODEL.items()
        }
        return Message(RecordDict({"arrays": record(arrays)}), reply_to=sent)

    def node_context(sent: Message) -> Context:
        own = context()
        own.node_config["partition-id"] = sent.metadata.dst_node_id
        return own

    replies = [gate(sent, node_context(sent), app) for sent in messages]
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert metrics is not None
    assert arrays is not None
    assert metrics["accepted"] == 40
    step = np.concatenate([arrays[n].numpy().ravel() - MODEL[n].ravel() for n in ("a", "b", "c")])
    assert np.corrcoef(step, wanted)[0, 1] > 0.3


def test_strategy_module_logs_where_flower_logs() -> None:
    assert strategy_module._log is logging.getLogger("flwr")


def test_a_model_of_which_no_unbiased_step_can_be_made_is_refused_before_anyone_is_asked() -> None:
    mechanism = SignDS(1.0, 0.2, dim_out=DIMENSION)  # all of it, whatever the update is
    strategy = SignDSStrategy(mechanism, FixedStep(0.1), scaling="unbiased")
    with pytest.raises(ValueError, match="smaller dim_out"):
        strategy.configure_train(1, record(MODEL), ConfigRecord(), FakeGrid(5))  # type: ignore[arg-type]
    assert str(strategy.privacy_spent()) == "nothing was asked for"
