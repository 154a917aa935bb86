"""The apps that are written or copied first rehearse: a bug in them costs no epsilon."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.mechanisms import Codeword, SignDS
from flower_ldp.simulation import load_folder
from flower_ldp.wire.proposal import PROPOSAL_KEY, REPORT_KEY, UpdateProposal
from tests.cli import flower_ldp
from tests.fixtures import make_site, message, policy_text, signds_proposal

EXISTING = Path(__file__).parents[3] / "examples" / "existing_app" / "private"
RELEASES = "{train: {codeword: {epsilon: 8.0}, signds: {epsilon: 8.0}}}"
FIELDS = {
    "codeword": UpdateProposal(Codeword(8.0, 7)).to_fields(),
    "signds": signds_proposal(SignDS(8.0, 0.2)).to_fields(),
    "existing": UpdateProposal(Codeword(8.0, 7)).to_fields(),
}
#: A mistake in the function that trains, of the kind that only the server's model shows.
WRONG = {
    "from a template": ('ArrayRecord({"weight":', 'ArrayRecord({"weights":'),
    "existing": ("ArrayRecord([model.coef_, m", "ArrayRecord([model.coef_.T, m"),
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOWER_LDP_POLICY", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in _modules():  # another test may have loaded the example
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in _modules():
        del sys.modules[name]


def _modules() -> list[str]:
    return [one for one in sys.modules if one.partition(".")[0] in ("my_app", "quickstart")]


def answer(kind: str, run: int, *, broken: bool) -> Message:
    """Return what a client of a deployment answers to the app's own server's model."""
    if kind == "existing":
        pytest.importorskip("sklearn")
        shutil.copytree(EXISTING, "my-app")
        task, (right, wrong) = Path("my-app/quickstart/task.py"), WRONG[kind]
    else:
        flower_ldp("new", "my-app", "--kind", kind)
        task, (right, wrong) = Path("my-app/my_app/task.py"), WRONG["from a template"]
    if broken:
        head, found, tail = task.read_text().rpartition(right)
        assert found
        task.write_text(head + wrong + tail)
    app: Any = load_folder(Path("my-app"))
    model = vars(sys.modules[f"{task.parent.name}.task"])
    arrays = (model.get("initial") or model["initial_weights"])()
    fields = ConfigRecord({**FIELDS[kind]})  # type: ignore[dict-item]
    one = message(RecordDict({"arrays": arrays, PROPOSAL_KEY: fields}))
    one.metadata.__dict__["_run_id"] = run
    node = {**make_site(Path.cwd(), policy_text(RELEASES)).node_config, "data": "site.npz"}
    np.savez("site.npz", x=np.ones((5, model.get("FEATURES", 8))), y=np.arange(5) % 3)
    node |= {"partition-id": 0, "num-partitions": 40} if kind == "existing" else {}
    given = Context(run, 7, node, RecordDict(), dict(app.run_config))
    found_answer: Message = app.client(one, given)
    return found_answer


def failures_and_charges() -> tuple[int, int]:
    with Ledger.open("ledger.sqlite") as ledger:
        return ledger.counts("ward-7").get("failed", 0), ledger.verify().entries


@pytest.mark.parametrize("kind", FIELDS)
def test_a_mistake_in_the_app_is_told_in_words_and_costs_nothing(kind: str) -> None:
    found = answer(kind, 20_001, broken=True).error.reason
    assert found is not None
    assert found.startswith("ldp:refused:rehearsal: the reply holds no model like the")
    assert failures_and_charges() == (0, 0)


@pytest.mark.parametrize("kind", FIELDS)
def test_without_one_the_app_answers_with_what_it_computed(kind: str) -> None:
    assert REPORT_KEY in answer(kind, 20_002, broken=False).content
    assert failures_and_charges() == (0, 1)
