"""DP_ENCRYPT from end to end: the release behind the real gate, and the strategy's mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict

from flower_ldp.audit_paths.cases import AsDeployed
from flower_ldp.clients import GaussianRelease, LdpMod
from flower_ldp.config import load_config
from flower_ldp.mechanisms import Gaussian, SignDS
from flower_ldp.refusals import REFUSED_PROPOSAL
from flower_ldp.strategies import FixedStep, GaussianStrategy, SignDSStrategy
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY
from tests.fixtures import error_reply, record
from tests.unit.strategies.rounds import aggregated, ask, change, reply, unmoved

pytestmark = pytest.mark.usefixtures("simulation_policy", "outside_a_run")

MODEL = {
    "conv": np.ones((20, 30), dtype=np.float32),
    "norm.running_var": np.zeros(400, dtype=np.float64),
    "norm.num_batches_tracked": np.array(3, dtype=np.int64),
    "scale": np.array(2.0, dtype=np.float32),
}
FLOATS = ("conv", "norm.running_var", "scale")
DIMENSION = 1_001
MECHANISM = Gaussian(50.0, 0.01, 1.0)
#: As little noise as there can be: a mean of few reports is near the truth.
PRECISE = Gaussian(100.0, 0.5, 1.0)


def moved(parts: dict[str, Any]) -> dict[str, np.ndarray]:
    return {n: np.asarray(a + parts.get(n, 0), dtype=a.dtype) for n, a in MODEL.items()}


def through_the_gate(sent: Message, trained: dict[str, np.ndarray]) -> Message:
    def app(asked: Message, _: Context) -> Message:
        metrics = MetricRecord({"num-examples": 987_654, "loss": 0.123})
        return Message(RecordDict({"arrays": record(trained), "m": metrics}), reply_to=asked)

    node = sent.metadata.dst_node_id
    context = Context(3, node, {"partition-id": node}, RecordDict(), {})
    return LdpMod(train=GaussianRelease(), authorizer=AsDeployed())(sent, context, app)


def change_by(
    trained: dict[str, np.ndarray], nodes: int, mechanism: Gaussian = PRECISE
) -> np.ndarray:
    """Return what comes of a round in which all clients' models end alike."""
    strategy = GaussianStrategy(mechanism)
    replies = [through_the_gate(sent, trained) for sent in ask(strategy, MODEL, nodes=nodes)]
    return change(aggregated(strategy, replies)[0], MODEL, *FLOATS)


def test_gate_and_strategy_agree_end_to_end() -> None:
    """What clients send is private bytes; their mean is the mean update plus the stated noise."""
    strategy = GaussianStrategy(MECHANISM)
    parts = {"conv": 0.02, "norm.running_var": -0.01, "scale": 0.5, "norm.num_batches_tracked": 9}
    replies = [through_the_gate(sent, moved(parts)) for sent in ask(strategy, MODEL, nodes=60)]
    for answer in replies:
        assert list(answer.content) == [REPORT_KEY]
        fields = answer.content.config_records[REPORT_KEY]
        assert list(fields) == [PAYLOAD_KEY]
        assert len(fields[PAYLOAD_KEY]) == 1 + DIMENSION  # type: ignore[arg-type]
    after, metrics = aggregated(strategy, replies)
    assert after["norm.num_batches_tracked"] == 3
    expected = np.concatenate([np.full(600, 0.02), np.full(400, -0.01), [0.5]])
    noise = change(after, MODEL, *FLOATS) - expected
    deviation = MECHANISM.deviation / 60**0.5
    assert metrics["noise-deviation"] == pytest.approx(deviation)
    assert noise.std() == pytest.approx(deviation, rel=0.12)
    assert abs(noise.mean()) < 5 * deviation / 1_001**0.5
    assert (metrics["accepted"], metrics["bytes-up"]) == (60, 1_002)
    assert (metrics["epsilon-round"], metrics["delta-round"]) == (50.0, 0.01)


def test_every_float_entry_is_noised() -> None:
    """An update of zeros: no array stays at zero, the one without axes included."""
    found = change_by(MODEL, 2, MECHANISM)
    # an entry of the sum of two is zero with probability 0.07
    assert (found == 0).mean() < 0.2
    assert len({float(x) for x in found}) > 10


def test_a_long_update_is_scaled_to_the_clip_norm() -> None:
    found = change_by(moved({"scale": 1e6}), 30)
    assert found[-1] == pytest.approx(1.0, abs=6 * PRECISE.deviation / 30**0.5)


@pytest.mark.parametrize(
    ("bad", "name"), [(np.nan, "conv"), (np.inf, "norm.running_var"), (np.inf, "scale")]
)
def test_an_update_that_is_not_finite_counts_as_zeros(bad: float, name: str) -> None:
    found = change_by(moved({"conv": 1e6, "scale": 1e6, name: bad}), 30)
    deviation = PRECISE.deviation / 30**0.5
    assert np.abs(found).max() < 6 * deviation
    # Were the entries that are finite clipped and sent, each of these would be 0.04.
    assert abs(found[:600].mean()) < 5 * deviation / 600**0.5 < 0.01


def test_the_release_refuses_other_mechanisms_proposals() -> None:
    (sent, *_) = ask(SignDSStrategy(SignDS(8.0, 0.2), FixedStep(1.0)), MODEL)
    assert through_the_gate(sent, MODEL).error.reason == REFUSED_PROPOSAL


def codes(value: int) -> bytes:
    return MECHANISM.encode(np.full(DIMENSION, value, np.int8), DIMENSION)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (codes(5)[:-1], "length"),
        (codes(5) + b"\0", "length"),
        (b"\2" + codes(5)[1:], "version"),
        (codes(127), "range"),
        (codes(7), "range"),
    ],
)
def test_a_bad_report_is_counted_by_reason_and_left_out(bad: bytes, reason: str) -> None:
    strategy = GaussianStrategy(MECHANISM)
    ask(strategy, MODEL)
    after, metrics = aggregated(strategy, [reply(codes(5), 100), reply(bad, 101)])
    np.testing.assert_allclose(change(after, MODEL, *FLOATS), 5 * MECHANISM.step, rtol=1e-4)
    assert (metrics["accepted"], metrics["rejected"], metrics[f"rejected-{reason}"]) == (1, 1, 1)


def test_spending_adds_up_epsilon_and_delta_and_refusals_cost_nothing() -> None:
    strategy = GaussianStrategy(Gaussian(0.5, 1e-6))
    for server_round in range(1, 5):
        ask(strategy, MODEL, server_round)
        metrics = unmoved(strategy, [error_reply("ldp:refused:budget", 100)], server_round)
    assert metrics["epsilon-total"] == pytest.approx(2.0)
    assert metrics["delta-total"] == pytest.approx(4e-6)
    assert "noise-deviation" not in metrics
    report = strategy.privacy_spent()
    assert "epsilon 2, delta 4e-06 per client" in str(report)
    assert report.clients[100] == {}


def test_summary_states_cost_and_noise(caplog: pytest.LogCaptureFixture) -> None:
    GaussianStrategy(MECHANISM).summary()
    assert "epsilon 50, delta 0.01 per client" in caplog.text
    assert "standard deviation 0.2499" in caplog.text


def test_the_shipped_configuration_proposes_what_it_says() -> None:
    path = Path(__file__).resolve().parents[3] / "configs" / "dp_encrypt.yaml"
    encrypt = load_config(path).encrypt
    assert encrypt.encrypt_train_type == "DP_ENCRYPT"
    assert encrypt.dp_encrypt is not None
    (sent, *_) = ask(GaussianStrategy(encrypt.dp_encrypt.mechanism()), MODEL)
    assert dict(sent.content.config_records[PROPOSAL_KEY]) == {
        "version": 1,
        "mechanism": "gaussian",
        "epsilon": 50.0,
        "delta": 0.01,
        "clip-norm": 1.0,
    }
