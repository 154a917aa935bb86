"""Evaluation under the data owner's policy and ledger, beside training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import MetricRecord, RecordDict

from flower_ldp.clients import LaplaceEvalRelease, LdpMod, SignDSRelease
from flower_ldp.mechanisms import BoundedMean, CodebookResponse, Laplace, SignDS
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.wire.evaluation import EvalProposal
from flower_ldp.wire.proposal import UpdateProposal
from tests.fixtures import make_site, message, payload, policy_text, record, signds_proposal
from tests.unit.clients.world import asking, replying

MODEL = {"w": np.zeros((30, 20), dtype=np.float32)}
ROWS = np.random.default_rng(0).dirichlet(np.ones(4), 3)
LOSS = {"loss": BoundedMean(1.0, 0.0, 4.0)}
EVALUATION = EvalProposal(Laplace(4.0, classes=4, rows=3), LOSS)
TRAINING = signds_proposal(SignDS(epsilon=8.0, k=0.2))

RELEASES = """
  train: {signds: {epsilon: 8.0}}
  evaluate: {laplace: {epsilon: 12.0}, bounded_mean: {epsilon: 1.0}}
"""


class Client:
    """One node with a policy, whose app answers both kinds of message."""

    def __init__(self, folder: Path, releases: str = RELEASES) -> None:
        self.context = make_site(folder, policy_text(releases, mode="simulation", life=42.0))
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
        found = {"w": MODEL["w"] + 1} if is_training else {"p": ROWS}
        metrics = MetricRecord({"loss": 1.0, "accuracy": 0.5})
        app = replying(RecordDict({"p": record(found), "m": metrics}))
        reply = self.mod(given, self.context, app)
        return (reply.error.reason or "") if reply.has_error() else payload(reply)[:0].decode()


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
    client = Client(tmp_path, RELEASES.replace(", bounded_mean: {epsilon: 1.0}", ""))
    assert client.ask(EVALUATION) == "ldp:refused:policy"
    assert client.ask(EvalProposal(EVALUATION.mechanism, {})) == ""
