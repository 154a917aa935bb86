"""Evaluation under the data owner's policy and ledger, beside training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from flower_ldp.clients import LaplaceEvalRelease, LdpMod, SignDSRelease
from flower_ldp.mechanisms import BoundedMean, CodebookResponse, Laplace, SignDS
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.wire.evaluation import EvalProposal
from flower_ldp.wire.proposal import PROPOSAL_KEY, REPORT_KEY, UpdateProposal
from tests.fixtures import message, record, signds_proposal

MODEL = {"w": np.zeros((30, 20), dtype=np.float32)}
ROWS = np.random.default_rng(0).dirichlet(np.ones(4), 3)
LOSS = {"loss": BoundedMean(1.0, 0.0, 4.0)}
EVALUATION = EvalProposal(Laplace(4.0, classes=4, rows=3), LOSS)
TRAINING = signds_proposal(SignDS(epsilon=8.0, k=0.2))

POLICY = """\
data_id: ward-7
ledger: ledger.sqlite
mode: simulation
messages:
  train:
    signds: {epsilon: 8.0}
  evaluate:
    laplace: {epsilon: 12.0}
    bounded_mean: {epsilon: 1.0}
budgets:
  client:
    life: {epsilon: 42.0}
"""


class Client:
    """One node with a policy, whose app answers both kinds of message."""

    def __init__(self, folder: Path, policy: str = POLICY) -> None:
        path = folder / "policy.yaml"
        path.write_text(policy)
        self.context = Context(
            run_id=3,
            node_id=7,
            node_config={"ldp-policy": str(path), "partition-id": 0},
            state=RecordDict(),
            run_config={},
        )
        self.mod = LdpMod(train=SignDSRelease(), evaluate=LaplaceEvalRelease())
        self.messages = 0

    def ask(self, proposal: UpdateProposal[SignDSRound] | EvalProposal) -> str:
        """Return "" if a report leaves, else the reason why not."""
        self.messages += 1
        kind = "train" if isinstance(proposal, UpdateProposal) else "evaluate"
        fields = ConfigRecord({**proposal.to_fields()})
        content = RecordDict({"arrays": record(MODEL), PROPOSAL_KEY: fields})
        given = message(content, kind=kind, message_id=f"m-{self.messages}")
        reply = self.mod(given, self.context, self.app)
        if reply.has_error():
            return reply.error.reason or ""
        assert list(reply.content) == [REPORT_KEY]
        return ""

    def app(self, given: Message, _: Context) -> Message:
        if given.metadata.message_type == "train":
            moved = {"w": np.random.default_rng(1).normal(size=(30, 20)).astype(np.float32)}
            return Message(RecordDict({"arrays": record(moved)}), reply_to=given)
        rows = ArrayRecord({"p": Array(ROWS)})
        content = RecordDict({"p": rows, "m": MetricRecord({"loss": 1.0, "accuracy": 0.5})})
        return Message(content, reply_to=given)


def test_training_and_evaluation_draw_on_one_budget(tmp_path: Path) -> None:
    client = Client(tmp_path)
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
def test_what_the_policy_does_not_allow_is_refused(tmp_path: Path, proposal: EvalProposal) -> None:
    assert Client(tmp_path).ask(proposal) == "ldp:refused:policy"


def test_metrics_stay_where_the_policy_has_no_mechanism_for_them(tmp_path: Path) -> None:
    policy = POLICY.replace("    bounded_mean: {epsilon: 1.0}\n", "")
    client = Client(tmp_path, policy)
    assert client.ask(EVALUATION) == "ldp:refused:policy"
    assert client.ask(EvalProposal(EVALUATION.mechanism, {})) == ""
