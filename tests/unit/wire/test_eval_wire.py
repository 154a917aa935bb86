"""Evaluation on the wire: proposals and reports, strict both ways."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flwr.app import ConfigRecord

from flower_ldp.errors import WireError
from flower_ldp.mechanisms import BoundedMean, CodebookResponse, Laplace, RandomSource
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire.evaluation import (
    EvalProposal,
    decode_eval_report,
    encode_eval_report,
    entry_bytes,
    eval_report_length,
)

METRICS = {"loss": BoundedMean(0.5, 0.0, 4.0), "accuracy": BoundedMean(0.25, 0.0, 1.0)}
CODES = np.random.default_rng(0).dirichlet(np.ones(3), 300)
LAPLACE = EvalProposal(Laplace(4.0, classes=3, rows=2), METRICS)
CODEBOOK = EvalProposal(CodebookResponse(CODES, 2.0, rows=5), METRICS)
PLAIN = EvalProposal(Laplace(0.7, classes=10), {})
every_proposal = pytest.mark.parametrize(
    "proposal", [LAPLACE, CODEBOOK, PLAIN], ids=["laplace", "codebook", "plain"]
)


@every_proposal
def test_a_proposal_survives_a_record_and_costs_the_same(proposal: EvalProposal) -> None:
    record = ConfigRecord({**proposal.to_fields()})
    found = EvalProposal.from_fields(record)
    assert found.events() == proposal.events()
    assert list(found.metrics) == list(proposal.metrics)
    assert found.to_fields() == proposal.to_fields()
    assert eval_report_length(found) == eval_report_length(proposal)
    if isinstance(proposal.mechanism, CodebookResponse):
        assert found.mechanism == proposal.mechanism
    else:
        assert isinstance(found.mechanism, Laplace)
        assert found.mechanism.noise == proposal.mechanism.noise


def test_all_rows_and_each_metric_are_paid_for() -> None:
    assert LAPLACE.events() == (
        PrivacyEvent("laplace", 4.0, count=2),
        PrivacyEvent("bounded_mean", 0.5),
        PrivacyEvent("bounded_mean", 0.25),
    )


def make_report(proposal: EvalProposal, seed: int) -> tuple[np.ndarray, list[int]]:
    rng = RandomSource.seeded(seed)
    mechanism = proposal.mechanism
    rows = np.random.default_rng(seed).dirichlet(np.ones(mechanism.classes), mechanism.rows)
    metrics = [metric.randomize(0.5, rng) for metric in proposal.metrics.values()]
    return mechanism.randomize(rows, rng), metrics


@every_proposal
def test_a_report_survives_and_has_the_one_length(proposal: EvalProposal) -> None:
    for seed in range(50):
        rows, metrics = make_report(proposal, seed)
        data = encode_eval_report(proposal, rows, metrics)
        assert len(data) == eval_report_length(proposal)
        found, numbers = decode_eval_report(data, proposal)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, rows)
        assert numbers.tolist() == metrics


def test_what_does_not_fit_becomes_the_nearest_that_does() -> None:
    assert isinstance(PLAIN.mechanism, Laplace)
    far = math.ceil(64 / PLAIN.mechanism.noise.rate)
    least, most = -far, PLAIN.mechanism.steps + far
    rows = np.array([[most, least - 1, 1 << 60, -(1 << 60), 0, most + 1, least, 1, 2, 3]])
    found, _ = decode_eval_report(encode_eval_report(PLAIN, rows, []), PLAIN)
    assert found.tolist() == [[most, least, most, least, 0, most, least, 1, 2, 3]]
    rows = np.zeros((2, 3), dtype=np.int64)
    _, metrics = decode_eval_report(encode_eval_report(LAPLACE, rows, [1 << 60, -1]), LAPLACE)
    (metric, _) = LAPLACE.metrics.values()
    assert metrics.tolist() == [metric.steps + math.ceil(64 / metric.noise.rate), -1]


@pytest.mark.parametrize("sign", [1, -1])
def test_one_client_cannot_send_a_number_that_no_honest_one_could(sign: int) -> None:
    """A metric of eight bytes made 1.4 of a hundred clients 4.4e11."""
    data = encode_eval_report(LAPLACE, np.zeros((2, 3), dtype=np.int64), [0, 0])
    metric = list(LAPLACE.metrics.values())[1]
    least, most = metric.limits
    for number, good in ((most if sign > 0 else least, True), (sign << 60, False)):
        changed = data[:-8] + number.to_bytes(8, "little", signed=True)
        if good:
            moved = abs(float(metric.estimate(np.array([number]))[0]))
            assert moved < 70 * (metric.upper - metric.lower) / metric.epsilon
            decode_eval_report(changed, LAPLACE)
        else:
            with pytest.raises(WireError, match="range"):
                decode_eval_report(changed, LAPLACE)
    width = entry_bytes(LAPLACE.mechanism)
    far = (sign * ((1 << 8 * width - 1) - 1)).to_bytes(width, "little", signed=True)
    with pytest.raises(WireError, match="range"):
        decode_eval_report(data[:2] + far + data[2 + width :], LAPLACE)


@every_proposal
def test_accepted_bytes_are_the_encoding_of_what_they_say(proposal: EvalProposal) -> None:
    rng, accepted = np.random.default_rng(2), 0
    for _ in range(300):
        body = rng.integers(0, 256, eval_report_length(proposal) - 2, dtype=np.uint8)
        width, end = entry_bytes(proposal.mechanism), len(body) - 8 * len(proposal.metrics)
        body[width - 1 : end : width] = rng.random() < 0.5  # the highest byte of each
        body[end:].reshape(-1, 8)[:, 3:] = rng.choice([0, 255], (len(body) - end) // 8)[:, None]
        data = encode_eval_report(proposal, *make_report(proposal, 1))[:2] + body.tobytes()
        try:
            rows, metrics = decode_eval_report(data, proposal)
        except WireError:
            continue  # outside their limits
        accepted += 1
        assert encode_eval_report(proposal, rows, metrics.tolist()) == data
    assert accepted > 30


def test_reports_of_another_shape_are_not_encoded() -> None:
    with pytest.raises(ValueError, match="shape"):
        encode_eval_report(LAPLACE, np.zeros((1, 3), dtype=np.int64), [0, 0])
    with pytest.raises(ValueError, match="2 metrics"):
        encode_eval_report(LAPLACE, np.zeros((2, 3), dtype=np.int64), [0])
