"""Evaluation through the gate: what the app must reply, and what leaves."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
    RecordDict,
)

from flower_ldp import clients, strategies
from flower_ldp.audit_paths.cases import AsDeployed
from flower_ldp.clients import LaplaceEvalRelease, LdpMod, OpenRelease, SignDSRelease
from flower_ldp.clients import reports as client_side
from flower_ldp.mechanisms import BoundedMean, CodebookResponse, Laplace, RandomSource, SignDS
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.refusals import NO_PROPOSAL, REFUSED_PROPOSAL
from flower_ldp.strategies import evaluation as server_side
from flower_ldp.wire.evaluation import EvalProposal, decode_eval_report
from flower_ldp.wire.proposal import PAYLOAD_KEY, REPORT_KEY, UpdateProposal
from tests.fixtures import (
    Arrays,
    context,
    message,
    not_called,
    payload,
    policy_text,
    record,
    signds_proposal,
)
from tests.unit.clients.world import Watching, asking, replying

ROWS = np.random.default_rng(0).dirichlet(np.ones(4), 6).astype(np.float32)
METRICS = {"loss": BoundedMean(100.0, 0.0, 4.0)}
pytestmark = pytest.mark.usefixtures("simulation_policy")

#: 30 scales of the noise, which one of 24 entries exceeds once in 1e11, and the grid
NOISE = 30 * 2 / 100.0 + 1e-3

LAPLACE = Laplace(100.0, classes=4, rows=6)
PRECISE = EvalProposal(LAPLACE, METRICS)
LOSS_NOISE = 30 * 4 / 100.0


def asked(proposal: EvalProposal | dict[str, Any]) -> RecordDict:
    fields = proposal.to_fields() if isinstance(proposal, EvalProposal) else proposal
    return asking(fields, {"w": np.zeros(3, dtype=np.float32)})


def opened(proposal: EvalProposal) -> OpenRelease:
    return LaplaceEvalRelease().open(asked(proposal))


def rows_of(rows: Any) -> RecordDict:
    return RecordDict({"p": record({"p": rows})})


def answer(
    proposal: EvalProposal | dict[str, Any],
    arrays: Arrays = {"p": ROWS},  # noqa: B006
    metrics: dict[str, Any] = {"loss": 1.25, "secret": 42.0},  # noqa: B006
    authorizer: Any = None,
) -> Message:
    """Return what leaves a deployment if the app replies with these arrays and metrics."""
    secret = ConfigRecord({"secret": "canary"})
    content: dict[str, Any] = {
        "predictions": record(arrays),
        "metrics": MetricRecord(metrics),
        "more": secret,
    }
    mod = LdpMod(evaluate=LaplaceEvalRelease(), authorizer=authorizer or AsDeployed())
    return mod(message(asked(proposal), kind="evaluate"), context(), replying(RecordDict(content)))


def error_of(reply: Message, expected: Any) -> float:
    """Return the largest error of the rows that left, beyond a grid's."""
    rows, _ = decode_eval_report(payload(reply), PRECISE)
    return float(np.abs(LAPLACE.estimate(rows) - expected).max())


def loss_of(reply: Message) -> float:
    _, metrics = decode_eval_report(payload(reply), PRECISE)
    return float(METRICS["loss"].estimate(metrics)[0])


def test_rows_and_named_metrics_leave_with_noise() -> None:
    reply = answer(PRECISE)
    assert list(reply.content) == [REPORT_KEY]
    assert list(reply.content.config_records[REPORT_KEY]) == [PAYLOAD_KEY]
    assert 0 < error_of(reply, ROWS) < NOISE
    assert loss_of(reply) == pytest.approx(1.25, abs=LOSS_NOISE)


def test_codes_leave_where_the_proposal_brings_a_codebook() -> None:
    codes = np.eye(4)
    proposal = EvalProposal(CodebookResponse(codes, 100.0, rows=6), {})
    found, metrics = decode_eval_report(payload(answer(proposal)), proposal)
    assert found.tolist() == ROWS.argmax(axis=1).tolist()
    assert metrics.size == 0


def test_as_many_rows_leave_as_were_asked_for_each_at_random_and_none_twice() -> None:
    proposal = EvalProposal(CodebookResponse(np.eye(20), 100.0, rows=3), {})
    release = opened(proposal)
    reply, rng, counts = rows_of(np.eye(20)), RandomSource.seeded(1), np.zeros(20)
    for _ in range(1000):
        found, _ = decode_eval_report(release.privatize(reply, rng), proposal)
        assert len(set(found.tolist())) == len(found) == 3
        counts += np.bincount(found, minlength=20)
    # 150 expected of each row; a standard deviation is below 12
    assert np.abs(counts - 150).max() < 5 * 12


def test_the_admission_hears_the_whole_cost_and_all_terms() -> None:
    authorizer = Watching()
    answer(PRECISE, authorizer=authorizer)
    (request,) = authorizer.requests
    assert (request.message_type, request.events) == ("evaluate", PRECISE.events())
    assert json.loads(request.parameters) == PRECISE.to_fields()
    codes = np.eye(4)  # a codebook goes by its digest
    terms = json.loads(opened(EvalProposal(CodebookResponse(codes, 2.0), {})).parameters)
    assert terms["codebook"] == hashlib.sha256(codes.tobytes()).hexdigest()


def spoiled(place: Any, value: float) -> np.ndarray:
    rows = ROWS.copy()
    rows[place] *= value
    return rows


@pytest.mark.parametrize(
    ("arrays", "wrong"),
    [
        ({}, range(6)),
        ({"p": ROWS, "q": ROWS}, range(6)),
        ({"p": ROWS[0]}, range(6)),
        ({"p": ROWS[:, :3]}, range(6)),
        ({"p": np.zeros((6, 4), dtype=np.int64)}, range(6)),
        ({"p": np.full((6, 4), "x")}, range(6)),
        ({"p": ROWS.astype(complex)}, range(6)),
        ({"p": np.full((6, 4), 1e300)}, range(6)),
        ({"p": ROWS[:0]}, range(6)),
        ({"p": spoiled((2, 1), np.nan)}, [2]),
        ({"p": spoiled(3, 2.0)}, [3]),
    ],
)
def test_rows_that_are_wrong_leave_as_neutral_ones_and_the_others_alone(
    arrays: Arrays, wrong: Sequence[int]
) -> None:
    reply, expected = answer(PRECISE, arrays), ROWS.copy()
    expected[list(wrong)] = 0.25
    assert error_of(reply, expected) < NOISE
    assert loss_of(reply) == pytest.approx(1.25, abs=LOSS_NOISE)


@pytest.mark.parametrize("held", [1, 2, 4, 5])
def test_too_few_rows_are_taken_again(held: int) -> None:
    """Every row as often as any other or once more, none neutral: their number does not show."""
    proposal = EvalProposal(CodebookResponse(np.eye(8), 100.0, rows=8), {})
    release = opened(proposal)
    reply, rng, more = rows_of(np.eye(8)[:held]), RandomSource.seeded(1), np.zeros(held)
    for _ in range(200):
        found, _ = decode_eval_report(release.privatize(reply, rng), proposal)
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
    release = opened(EvalProposal(mechanism, {}))
    reply = RecordDict({"predictions": ArrayRecord({"p": array})})
    report = release.privatize(reply, RandomSource.seeded(5))
    assert report == release.neutral(RandomSource.seeded(5))


@pytest.mark.parametrize(
    "metrics", [{}, {"accuracy": 1.0}, {"loss": math.nan}, {"loss": [1.0, 2.0]}]
)
def test_a_named_metric_that_is_missing_leaves_as_the_middle(metrics: dict[str, Any]) -> None:
    reply = answer(PRECISE, metrics=metrics)
    assert loss_of(reply) == pytest.approx(2.0, abs=LOSS_NOISE)
    assert error_of(reply, ROWS) < NOISE


def test_a_neutral_report_has_a_uniform_code_for_each_row() -> None:
    proposal = EvalProposal(CodebookResponse(np.eye(4), 100.0, rows=3), {})
    release, rng = opened(proposal), RandomSource.seeded(1)
    found = [decode_eval_report(release.neutral(rng), proposal)[0] for _ in range(1000)]
    # 250 expected of each class in each row; a standard deviation is below 14
    for column in np.transpose(found):
        assert np.abs(np.bincount(column, minlength=4) - 250).max() < 6 * 14


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, REFUSED_PROPOSAL),
        ({"version": 1}, REFUSED_PROPOSAL),
        ({**PRECISE.to_fields(), "epsilon": -1.0}, REFUSED_PROPOSAL),
        ({"version": 9}, REFUSED_PROPOSAL),
        (None, NO_PROPOSAL),
    ],
)
def test_malformed_proposals_are_refused_before_the_app_runs(
    fields: dict[str, Any] | None, reason: str
) -> None:
    content = RecordDict({"arrays": record({})}) if fields is None else asked(fields)
    gate = LdpMod(evaluate=LaplaceEvalRelease())
    reply = gate(message(content, kind="evaluate"), context(), not_called)
    assert reply.error.reason == reason


def test_the_first_names_stay_in_every_place_that_they_had() -> None:
    for server in (strategies, server_side):
        assert server.LaplaceEvalStrategy is server.ProtectedEvalStrategy
        assert server.ProtectedEvalStrategy is strategies.ProtectedEvalStrategy
    for client in (clients, client_side):
        assert client.LaplaceEvalRelease is client.ProtectedEvalRelease
        assert client.ProtectedEvalRelease is clients.ProtectedEvalRelease
    with pytest.raises(TypeError, match=r"evaluate=ProtectedEvalRelease\(\)"):
        LdpMod(evaluate=LaplaceEvalRelease)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"or ProtectedEvalRelease\(\)"):
        LdpMod(train=8.0)  # type: ignore[arg-type]


# Under the data owner's policy and ledger, beside training.

MODEL = {"w": np.zeros((30, 20), dtype=np.float32)}
LOSS = {"loss": BoundedMean(1.0, 0.0, 4.0)}
EVALUATION = EvalProposal(Laplace(4.0, classes=4, rows=3), LOSS)
TRAINING = signds_proposal(SignDS(epsilon=8.0, k=0.2))

RELEASES = """
  train: {signds: {epsilon: 8.0}}
  evaluate: {laplace: {epsilon: 12.0}, bounded_mean: {epsilon: 1.0}}
"""


class Client:
    """One node with a policy, whose app answers both kinds of message."""

    def __init__(self, policy: Path, releases: str = RELEASES) -> None:
        policy.write_text(policy_text(releases, mode="simulation", life=42.0))
        self.mod = LdpMod(train=SignDSRelease(), evaluate=LaplaceEvalRelease())
        self.messages = 0

    def ask(self, proposal: UpdateProposal[SignDSRound] | EvalProposal) -> str:
        """Return "" if a report leaves, else the reason why not."""
        self.messages += 1
        is_training = isinstance(proposal, UpdateProposal)
        given = message(
            asking(proposal.to_fields(), MODEL),
            kind="train" if is_training else "evaluate",
            message_id=f"m-{self.messages}",
        )
        found = {"w": MODEL["w"] + 1} if is_training else {"p": ROWS[:3]}
        metrics = MetricRecord({"loss": 1.0, "accuracy": 0.5})
        app = replying(RecordDict({"p": record(found), "m": metrics}))
        reply = self.mod(given, context(), app)
        return (reply.error.reason or "") if reply.has_error() else payload(reply)[:0].decode()


def test_training_and_evaluation_draw_on_one_budget(simulation_policy: Path) -> None:
    client = Client(simulation_policy)
    # 8 + 13 + 8 + 13 = 42
    assert [client.ask(p) for p in (TRAINING, EVALUATION) * 2] == [""] * 4
    assert client.ask(TRAINING) == "ldp:refused:budget"
    assert client.ask(EVALUATION) == "ldp:refused:budget"


@pytest.mark.parametrize(
    "proposal",
    [
        EvalProposal(Laplace(4.0, classes=4, rows=4), {}),
        EvalProposal(Laplace(12.5, classes=4), {}),
        EvalProposal(CodebookResponse(np.eye(4), 1.0), {}),
        EvalProposal(Laplace(4.0, classes=4), {**LOSS, "accuracy": BoundedMean(0.5, 0.0, 1.0)}),
    ],
    ids=["more rows", "more epsilon", "another mechanism", "another metric"],
)
def test_what_the_policy_does_not_allow_is_refused(
    simulation_policy: Path, proposal: EvalProposal
) -> None:
    assert Client(simulation_policy).ask(proposal) == "ldp:refused:policy"


def test_metrics_stay_where_the_policy_has_no_mechanism_for_them(simulation_policy: Path) -> None:
    client = Client(simulation_policy, RELEASES.replace(", bounded_mean: {epsilon: 1.0}", ""))
    assert client.ask(EVALUATION) == "ldp:refused:policy"
    assert client.ask(EvalProposal(EVALUATION.mechanism, {})) == ""
