"""Evaluation through the gate: what the app must reply, and what leaves."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Sequence
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

from flower_ldp.audit_paths.cases import AsDeployed
from flower_ldp.clients import LaplaceEvalRelease, LdpMod, ReleaseRequest
from flower_ldp.clients.reports import OpenEvaluation
from flower_ldp.mechanisms import BoundedMean, CodebookResponse, Laplace, RandomSource
from flower_ldp.refusals import NO_PROPOSAL, REFUSED_PROPOSAL
from flower_ldp.wire.evaluation import EvalProposal, decode_eval_report
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY
from tests.fixtures import UnrecordedPermit, context, message, record

ROWS = np.random.default_rng(0).dirichlet(np.ones(4), 6).astype(np.float32)
METRICS = {"loss": BoundedMean(100.0, 0.0, 4.0)}
pytestmark = pytest.mark.usefixtures("simulation_policy")

#: 30 scales of the noise, which one of 24 entries exceeds once in 1e11, and the grid
NOISE = 30 * 2 / 100.0 + 1e-3

PRECISE = EvalProposal(Laplace(100.0, classes=4, rows=6), METRICS)


class Watching:
    """Admits everything and remembers what was asked."""

    def __init__(self) -> None:
        self.requests: list[ReleaseRequest] = []

    def authorize(self, request: ReleaseRequest, context: Context) -> UnrecordedPermit:
        self.requests.append(request)
        return UnrecordedPermit()

    def acknowledge(self, message_type: str, context: Context) -> UnrecordedPermit:
        raise AssertionError("nothing is acknowledged")


def asked(proposal: EvalProposal | dict[str, Any]) -> Message:
    fields = proposal.to_fields() if isinstance(proposal, EvalProposal) else proposal
    model = record({"w": np.zeros(3, dtype=np.float32)})
    return message(
        RecordDict({"arrays": model, PROPOSAL_KEY: ConfigRecord({**fields})}), kind="evaluate"
    )


def answer(
    proposal: EvalProposal | dict[str, Any],
    arrays: dict[str, np.ndarray] | None = None,
    metrics: dict[str, float] | None = None,
    authorizer: Watching | None = None,
) -> Message:
    """Return what leaves a deployment if the app replies with these arrays and metrics."""
    content = RecordDict(
        {
            "predictions": ArrayRecord(
                {name: Array(a) for name, a in ({"p": ROWS} if arrays is None else arrays).items()}
            ),
            "metrics": MetricRecord({"loss": 1.25, "secret": 42.0} if metrics is None else metrics),
            "more": ConfigRecord({"secret": "canary"}),
        }
    )

    def app(given: Message, _: Context) -> Message:
        return Message(content, reply_to=given)

    mod = LdpMod(evaluate=LaplaceEvalRelease(), authorizer=authorizer or AsDeployed())
    return mod(asked(proposal), context(), app)


def payload(reply: Message) -> bytes:
    assert list(reply.content) == [REPORT_KEY]
    assert list(reply.content.config_records[REPORT_KEY]) == [PAYLOAD_KEY]
    found = reply.content.config_records[REPORT_KEY][PAYLOAD_KEY]
    assert isinstance(found, bytes)
    return found


def test_rows_and_named_metrics_leave_with_noise() -> None:
    rows, metrics = decode_eval_report(payload(answer(PRECISE)), PRECISE)
    assert isinstance(PRECISE.mechanism, Laplace)
    error = PRECISE.mechanism.estimate(rows) - ROWS
    assert 0 < np.abs(error).max() < NOISE
    loss = METRICS["loss"].estimate(metrics)
    assert loss == pytest.approx([1.25], abs=30 * 4 / 100.0)


def test_codes_leave_where_the_proposal_brings_a_codebook() -> None:
    codes = np.eye(4)
    proposal = EvalProposal(CodebookResponse(codes, 100.0, rows=6), {})
    found, metrics = decode_eval_report(payload(answer(proposal)), proposal)
    assert found.tolist() == ROWS.argmax(axis=1).tolist()
    assert metrics.size == 0


def test_as_many_rows_leave_as_were_asked_for_each_at_random() -> None:
    rows = np.repeat(np.eye(4, dtype=np.float32), 5, axis=0)
    proposal = EvalProposal(CodebookResponse(np.eye(4), 100.0, rows=3), {})
    opened = LaplaceEvalRelease().open(asked(proposal).content)
    reply = RecordDict({"p": ArrayRecord({"p": Array(rows)})})
    rng, counts = RandomSource.seeded(1), np.zeros(4)
    for _ in range(1000):
        found, _ = decode_eval_report(opened.privatize(reply, rng), proposal)
        assert found.shape == (3,)
        counts += np.bincount(found, minlength=4)
    # 750 expected of each class; a standard deviation is below 24
    assert np.abs(counts - 750).max() < 5 * 24


def test_rows_are_not_taken_twice() -> None:
    proposal = EvalProposal(CodebookResponse(np.eye(4), 100.0, rows=3), {})
    opened = LaplaceEvalRelease().open(asked(proposal).content)
    reply = RecordDict({"p": ArrayRecord({"p": Array(np.eye(4))})})
    rng = RandomSource.seeded(1)
    for _ in range(200):
        found, _ = decode_eval_report(opened.privatize(reply, rng), proposal)
        assert len(set(found.tolist())) == 3


def test_the_admission_hears_the_whole_cost_and_all_terms() -> None:
    authorizer = Watching()
    answer(PRECISE, authorizer=authorizer)
    (request,) = authorizer.requests
    assert request.message_type == "evaluate"
    assert request.events == PRECISE.events()
    assert json.loads(request.parameters) == PRECISE.to_fields()


def test_terms_name_a_codebook_by_its_digest() -> None:
    codes = np.eye(4)
    proposal = EvalProposal(CodebookResponse(codes, 2.0), {})
    terms = json.loads(LaplaceEvalRelease().open(asked(proposal).content).parameters)
    assert terms["codebook"] == hashlib.sha256(codes.tobytes()).hexdigest()


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"p": ROWS, "q": ROWS},
        {"p": ROWS[0]},
        {"p": ROWS[:, :3]},
        {"p": ROWS * 2},
        {"p": np.zeros((6, 4), dtype=np.int64)},
        {"p": np.full((6, 4), "x")},
        {"p": ROWS.astype(complex)},
        {"p": np.full((6, 4), 1e300)},
    ],
)
def test_replies_without_the_rows_leave_as_neutral_rows(arrays: dict[str, np.ndarray]) -> None:
    rows, metrics = decode_eval_report(payload(answer(PRECISE, arrays)), PRECISE)
    assert isinstance(PRECISE.mechanism, Laplace)
    assert np.abs(PRECISE.mechanism.estimate(rows) - 0.25).max() < NOISE
    assert METRICS["loss"].estimate(metrics) == pytest.approx([1.25], abs=30 * 4 / 100.0)


@pytest.mark.parametrize(
    ("arrays", "wrong"),
    [
        ({"p": ROWS[:0]}, range(6)),
        ({"p": np.where(ROWS[2, 1] == ROWS, np.nan, ROWS)}, [2]),
        ({"p": np.where(np.arange(6)[:, None] == 3, 2 * ROWS, ROWS)}, [3]),
    ],
)
def test_rows_that_are_wrong_leave_the_others_alone(
    arrays: dict[str, np.ndarray], wrong: Sequence[int]
) -> None:
    rows, _ = decode_eval_report(payload(answer(PRECISE, arrays)), PRECISE)
    expected = ROWS.copy()
    expected[list(wrong)] = 0.25
    assert isinstance(PRECISE.mechanism, Laplace)
    assert np.abs(PRECISE.mechanism.estimate(rows) - expected).max() < NOISE


@pytest.mark.parametrize("held", [1, 2, 4, 5])
def test_too_few_rows_are_taken_again(held: int) -> None:
    """Every row as often as any other or once more, none neutral: their number does not show."""
    proposal = EvalProposal(CodebookResponse(np.eye(8), 100.0, rows=8), {})
    opened = LaplaceEvalRelease().open(asked(proposal).content)
    reply = RecordDict({"p": ArrayRecord({"p": Array(np.eye(8)[:held])})})
    rng, more = RandomSource.seeded(1), np.zeros(held)
    for _ in range(200):
        found, _ = decode_eval_report(opened.privatize(reply, rng), proposal)
        times = np.bincount(found, minlength=8)
        assert not times[held:].any()
        assert set(times[:held].tolist()) <= {8 // held, -(-8 // held)}
        more += times[:held] - 8 // held
    # what does not divide is drawn: each row equally often, a standard deviation is below 8
    assert np.abs(more - 200 * (8 % held) / held).max() < 5 * 8


def archive(**arrays: np.ndarray) -> Array:
    """Return an array whose bytes are an archive of arrays, which numpy opens as one."""
    data = io.BytesIO()
    np.savez(data, allow_pickle=False, **arrays)
    return Array("float64", (6, 4), "numpy.ndarray", data.getvalue())


@pytest.mark.parametrize("array", [archive(p=ROWS), archive()])
@pytest.mark.parametrize("mechanism", [Laplace(1.0, 4, 6), CodebookResponse(np.eye(4), 1.0, 6)])
def test_an_archive_in_place_of_the_rows_leaves_as_neutral_rows(
    array: Array, mechanism: Laplace | CodebookResponse
) -> None:
    opened = OpenEvaluation(EvalProposal(mechanism, {}))
    reply = RecordDict({"predictions": ArrayRecord({"p": array})})
    report = opened.privatize(reply, RandomSource.seeded(5))
    assert report == opened.neutral(RandomSource.seeded(5))


@pytest.mark.parametrize(
    "metrics", [{}, {"accuracy": 1.0}, {"loss": math.nan}, {"loss": [1.0, 2.0]}]
)
def test_a_named_metric_that_is_missing_leaves_as_the_middle(metrics: dict[str, Any]) -> None:
    rows, found = decode_eval_report(payload(answer(PRECISE, metrics=metrics)), PRECISE)
    assert METRICS["loss"].estimate(found) == pytest.approx([2.0], abs=30 * 4 / 100.0)
    assert isinstance(PRECISE.mechanism, Laplace)
    assert np.abs(PRECISE.mechanism.estimate(rows) - ROWS).max() < NOISE


def test_a_neutral_report_has_a_uniform_code_for_each_row() -> None:
    proposal = EvalProposal(CodebookResponse(np.eye(4), 100.0, rows=3), {})
    opened = LaplaceEvalRelease().open(asked(proposal).content)
    rng = RandomSource.seeded(1)
    found = [decode_eval_report(opened.neutral(rng), proposal)[0] for _ in range(1000)]
    # 250 expected of each class in each row; a standard deviation is below 14
    for column in np.transpose(found):
        assert np.abs(np.bincount(column, minlength=4) - 250).max() < 6 * 14


@pytest.mark.parametrize(
    "fields", [{}, {"version": 1}, {**PRECISE.to_fields(), "epsilon": -1.0}, {"version": 9}]
)
def test_malformed_proposals_are_refused_before_the_app_runs(fields: dict[str, Any]) -> None:
    def app(given: Message, _: Context) -> Message:
        raise AssertionError("the app must not run")

    reply = LdpMod(evaluate=LaplaceEvalRelease())(asked(fields), context(), app)
    assert reply.has_error()
    assert reply.error.reason == REFUSED_PROPOSAL


def test_a_message_without_a_proposal_is_refused() -> None:
    empty = message(RecordDict({"arrays": record({})}), kind="evaluate")
    reply = LdpMod(evaluate=LaplaceEvalRelease())(empty, context(), lambda m, c: m)
    assert reply.error.reason == NO_PROPOSAL
