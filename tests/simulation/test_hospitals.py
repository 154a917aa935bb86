"""The example of five hospitals: models leave at each patient's epsilon, and ledgers hold it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.policy import load_policy
from flower_ldp.privacy import Unit
from tests.simulation.here import ROOT, Done, defined, script

EXAMPLE = ROOT / "examples" / "hospitals"


def run(folder: Path, *arguments: object) -> Done:
    given = ["--no-baselines", "--output", folder, "--workers", 1, *arguments]
    return script(EXAMPLE / "run.py", *given)


def test_five_hospitals_learn_at_a_patients_epsilon_of_one_and_their_plan_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = run(tmp_path, "--set", "num-server-rounds=5")
    assert done.code in (0, None), done.output
    accuracy = json.loads((tmp_path / "dpsgd-history.json").read_text())["accuracy"]
    assert accuracy[4] > 0.7  # a guess has 0.63, and a run without privacy 0.93
    assert accuracy[5] == accuracy[4]
    assert "all 4 rounds of the plan are used" in caplog.text
    ledger_file = tmp_path / "simulation-ledger.sqlite"
    with Ledger.open(ledger_file, read_only=True) as ledger:
        for site in range(5):
            spent = ledger.totals(f"ward/{site}")[Unit.EXAMPLE].spent(Unit.EXAMPLE)
            assert (spent.epsilon, spent.delta) == (1.0, 1e-5)
    assert done.text.count("epsilon 1, delta 1e-05") == 5
    assert "per patient, for all rounds together" in done.text
    assert (tmp_path / "history.png").read_bytes().startswith(b"\x89PNG")
    # Another run in this folder begins anew, without the models that were kept.
    kept = {*(tmp_path / "simulation-ledger.sqlite.models").iterdir()}
    again = run(tmp_path, "--set", "num-server-rounds=1")
    assert again.code in (0, None), again.output
    assert not kept & {*(tmp_path / "simulation-ledger.sqlite.models").iterdir()}


def test_a_hospital_of_the_nodes_has_a_real_policy_and_a_name_of_its_own(tmp_path: Path) -> None:
    hospital = defined(EXAMPLE / "run.py")["_hospital"]
    for site in range(2):
        policy, ledger = hospital(tmp_path / str(site), site)
        found = load_policy(policy)
        assert (found.mode, found.data_id, found.ledger) == ("deployment", f"ward-{site}", ledger)
        assert ledger.exists()
