"""DP_ENCRYPT from end to end: the release behind the real gate, and the strategy's mean."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from flower_ldp.audit_paths.cases import AsDeployed
from flower_ldp.clients import GaussianRelease, LdpMod
from flower_ldp.config import load_config
from flower_ldp.mechanisms import Gaussian, SignDS
from flower_ldp.refusals import REFUSED_PROPOSAL
from flower_ldp.strategies import FixedStep, GaussianStrategy, Momentum, SignDSStrategy
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY
from tests.fixtures import error_reply, message, record

pytestmark = pytest.mark.usefixtures("simulation_policy")

MODEL = {
    "conv": np.ones((20, 30), dtype=np.float32),
    "norm.running_var": np.zeros(400, dtype=np.float64),
    "norm.num_batches_tracked": np.array(3, dtype=np.int64),
    "scale": np.array(2.0, dtype=np.float32),
}
DIMENSION = 1_001
MECHANISM = Gaussian(50.0, 0.01, 1.0)
#: As little noise as there can be: a mean of few reports is near the truth.
PRECISE = Gaussian(100.0, 0.5, 1.0)
_numbers = itertools.count()


class FakeGrid:
    """The grid's one method that sampling uses."""

    def __init__(self, nodes: int) -> None:
        self.nodes = list(range(100, 100 + nodes))

    def get_node_ids(self) -> list[int]:
        return self.nodes


@pytest.fixture(autouse=True)
def _messages_outside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(self: FedAvg, content: RecordDict, nodes: list[int], kind: str) -> list[Message]:
        return [
            message(content, node=node, kind=kind, message_id=f"g-{next(_numbers)}")
            for node in nodes
        ]

    monkeypatch.setattr(FedAvg, "_construct_messages", make)


def configured(
    mechanism: Gaussian = MECHANISM, nodes: int = 5, **options: Any
) -> tuple[GaussianStrategy, list[Message]]:
    strategy = GaussianStrategy(mechanism, **options)
    messages = strategy.configure_train(1, record(MODEL), ConfigRecord(), FakeGrid(nodes))  # type: ignore[arg-type]
    return strategy, list(messages)


def client(node: int) -> Context:
    return Context(
        run_id=3,
        node_id=node,
        node_config={"partition-id": node},
        state=RecordDict(),
        run_config={},
    )


def moved(parts: dict[str, Any]) -> dict[str, np.ndarray]:
    return {
        name: np.asarray(array + parts.get(name, 0), dtype=array.dtype)
        for name, array in MODEL.items()
    }


def through_the_gate(sent: Message, trained: dict[str, np.ndarray]) -> Message:
    def app(asked: Message, _: Context) -> Message:
        metrics = MetricRecord({"num-examples": 987_654, "loss": 0.123})
        return Message(RecordDict({"arrays": record(trained), "m": metrics}), reply_to=asked)

    gate = LdpMod(train=GaussianRelease(), authorizer=AsDeployed())
    return gate(sent, client(sent.metadata.dst_node_id), app)


def reply(payload: object, node: int) -> Message:
    content = RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: payload})})  # type: ignore[dict-item]
    return message(content, node=node, reply=True)


def flat(arrays: Any) -> np.ndarray:
    names = ("conv", "norm.running_var", "scale")
    return np.concatenate([arrays[n].numpy().ravel() - MODEL[n].ravel() for n in names])


def test_gate_and_strategy_agree_end_to_end() -> None:
    """What clients send is private bytes; their mean is the mean update plus the stated noise."""
    strategy, messages = configured(nodes=60)
    parts = {"conv": 0.02, "norm.running_var": -0.01, "scale": 0.5, "norm.num_batches_tracked": 9}
    replies = [through_the_gate(sent, moved(parts)) for sent in messages]
    for answer in replies:
        assert list(answer.content) == [REPORT_KEY]
        fields = answer.content.config_records[REPORT_KEY]
        assert list(fields) == [PAYLOAD_KEY]
        assert len(fields[PAYLOAD_KEY]) == 1 + DIMENSION  # type: ignore[arg-type]
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert arrays is not None
    assert metrics is not None
    assert arrays["norm.num_batches_tracked"].numpy() == 3
    expected = np.concatenate([np.full(600, 0.02), np.full(400, -0.01), [0.5]])
    noise = flat(arrays) - expected
    deviation = MECHANISM.deviation / 60**0.5
    assert metrics["noise-deviation"] == pytest.approx(deviation)
    assert noise.std() == pytest.approx(deviation, rel=0.12)
    assert abs(noise.mean()) < 5 * deviation / 1_001**0.5
    assert (metrics["accepted"], metrics["bytes-up"]) == (60, 1_002)
    assert (metrics["epsilon-round"], metrics["delta-round"]) == (50.0, 0.01)


def test_every_float_entry_is_noised() -> None:
    """An update of zeros: no array stays at zero, the one without axes included."""
    strategy, messages = configured(nodes=2)
    arrays, _ = strategy.aggregate_train(1, [through_the_gate(m, MODEL) for m in messages])
    assert arrays is not None
    found = flat(arrays)
    # an entry of the sum of two is zero with probability 0.07
    assert (found == 0).mean() < 0.2
    assert len({float(x) for x in found}) > 10


def test_a_long_update_is_scaled_to_the_clip_norm() -> None:
    strategy, messages = configured(PRECISE, nodes=30)
    replies = [through_the_gate(sent, moved({"scale": 1e6})) for sent in messages]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    assert flat(arrays)[-1] == pytest.approx(1.0, abs=6 * PRECISE.deviation / 30**0.5)


@pytest.mark.parametrize(
    ("bad", "name"), [(np.nan, "conv"), (np.inf, "norm.running_var"), (np.inf, "scale")]
)
def test_an_update_that_is_not_finite_counts_as_zeros(bad: float, name: str) -> None:
    strategy, messages = configured(PRECISE, nodes=30)
    replies = [
        through_the_gate(sent, moved({"conv": 1e6, "scale": 1e6, name: bad})) for sent in messages
    ]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    found, deviation = flat(arrays), PRECISE.deviation / 30**0.5
    assert np.abs(found).max() < 6 * deviation
    # Were the entries that are finite clipped and sent, each of these would be 0.04.
    assert abs(found[:600].mean()) < 5 * deviation / 600**0.5 < 0.01


def test_the_release_refuses_other_mechanisms_proposals() -> None:
    strategy = SignDSStrategy(SignDS(8.0, 0.2), FixedStep(1.0))
    (sent, *_) = strategy.configure_train(1, record(MODEL), ConfigRecord(), FakeGrid(2))  # type: ignore[arg-type]
    answer = through_the_gate(sent, MODEL)
    assert answer.has_error()
    assert answer.error.reason == REFUSED_PROPOSAL


ZEROS = np.zeros(DIMENSION, np.int8)
FIVES = MECHANISM.encode(np.full(DIMENSION, 5, np.int8), DIMENSION)
RAW = RecordDict({"arrays": record(MODEL), "metrics": MetricRecord({"num-examples": 3})})


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (error_reply("ldp:refused:policy", 101), "ldp:refused:policy"),
        (error_reply("Traceback: secret-4711", 101), "error"),
        (message(RAW, node=101, reply=True), "record"),
        (reply("text", 101), "record"),
        (reply(b"", 101), "length"),
        (reply(FIVES[:-1], 101), "length"),
        (reply(FIVES + b"\0", 101), "length"),
        (reply(b"\2" + FIVES[1:], 101), "version"),
        (reply(MECHANISM.encode(np.full(DIMENSION, 127, np.int8), DIMENSION), 101), "range"),
        (reply(MECHANISM.encode(np.full(DIMENSION, 7, np.int8), DIMENSION), 101), "range"),
        (reply(FIVES, 100), "sender"),
        (reply(FIVES, 999), "sender"),
    ],
)
def test_a_bad_reply_is_counted_by_reason_and_left_out(bad: Message, reason: str) -> None:
    strategy, _ = configured()
    arrays, metrics = strategy.aggregate_train(1, [reply(FIVES, 100), bad])
    assert arrays is not None
    assert metrics is not None
    np.testing.assert_allclose(flat(arrays), 5 * MECHANISM.step, rtol=1e-4)
    assert (metrics["accepted"], metrics["rejected"], metrics[f"rejected-{reason}"]) == (1, 1, 1)


def test_server_optimizer_takes_the_step() -> None:
    strategy, _ = configured(server_optimizer=Momentum(0.5, learning_rate=2.0))
    strategy.aggregate_train(1, [reply(FIVES, 100)])
    strategy.configure_train(2, record(MODEL), ConfigRecord(), FakeGrid(5))  # type: ignore[arg-type]
    arrays, _ = strategy.aggregate_train(2, [reply(FIVES, 100)])
    assert arrays is not None
    assert flat(arrays)[0] == pytest.approx(2.0 * 1.5 * 5 * MECHANISM.step, rel=1e-4)


def test_with_no_usable_reply_the_model_stays(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    strategy, _ = configured()
    with caplog.at_level(logging.WARNING, logger="flwr"):
        arrays, metrics = strategy.aggregate_train(1, [error_reply("ldp:refused:policy", 100)])
    assert arrays is None
    assert metrics is not None
    assert metrics["accepted"] == 0
    assert "noise-deviation" not in metrics
    assert "FLOWER_LDP_POLICY" in caplog.text


def test_spending_adds_up_epsilon_and_delta_and_refusals_cost_nothing() -> None:
    strategy = GaussianStrategy(Gaussian(0.5, 1e-6))
    for server_round in range(1, 5):
        strategy.configure_train(server_round, record(MODEL), ConfigRecord(), FakeGrid(2))  # type: ignore[arg-type]
        _, metrics = strategy.aggregate_train(
            server_round, [error_reply("ldp:refused:budget", 100)]
        )
    assert metrics is not None
    assert metrics["epsilon-total"] == pytest.approx(2.0)
    assert metrics["delta-total"] == pytest.approx(4e-6)
    report = strategy.privacy_spent()
    assert "epsilon 2, delta 4e-06 per client" in str(report)
    assert report.clients[100] == {}


def test_aggregating_an_unconfigured_round_is_an_error() -> None:
    strategy, _ = configured()
    with pytest.raises(RuntimeError, match="round 2 was not configured"):
        strategy.aggregate_train(2, [])


def test_summary_states_cost_and_noise(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.INFO, logger="flwr"):
        GaussianStrategy(MECHANISM).summary()
    assert "epsilon 50, delta 0.01 per client" in caplog.text
    assert "standard deviation 0.2499" in caplog.text


def test_the_shipped_configuration_proposes_what_it_says() -> None:
    path = Path(__file__).resolve().parents[3] / "configs" / "dp_encrypt.yaml"
    encrypt = load_config(path).encrypt
    assert encrypt.encrypt_train_type == "DP_ENCRYPT"
    assert encrypt.dp_encrypt is not None
    _, messages = configured(encrypt.dp_encrypt.mechanism())
    assert dict(messages[0].content.config_records[PROPOSAL_KEY]) == {
        "version": 1,
        "mechanism": "gaussian",
        "epsilon": 50.0,
        "delta": 0.01,
        "clip-norm": 1.0,
    }
