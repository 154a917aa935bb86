"""The example that asks each client once: nobody twice, whatever the number of clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("scipy")

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.privacy import Unit
from tests.simulation.here import ROOT, script

EXAMPLE = ROOT / "examples" / "asked-once"


def test_each_client_is_asked_once_and_its_ledger_allows_no_more(tmp_path: Path) -> None:
    command = ["--clients", 61, "--rounds", 5, "--output", tmp_path, "--workers", 1]
    done = script(EXAMPLE / "run.py", *command)
    assert done.code in (0, None), done.output
    assert "Each client has spent epsilon 8 per client." in done.text
    rounds = json.loads((tmp_path / "codeword-history.json").read_text())["rounds"]
    # Twelve of 61 in each round, and one is left over.
    assert [row["accepted"] for row in rounds[1:]] == [12] * 5
    assert {(row["epsilon-total"], row["bytes-up"]) for row in rounds[1:]} == {(8.0, 3.0)}
    assert rounds[-1]["accuracy"] > 0.2
    with Ledger.open(tmp_path / "simulation-ledger.sqlite", read_only=True) as ledger:
        totals = [ledger.totals(account)[Unit.CLIENT] for account in ledger.data_ids()]
    assert [amount.spent(Unit.CLIENT).epsilon for amount in totals] == [8.0] * 60
    assert (tmp_path / "history.png").read_bytes().startswith(b"\x89PNG")
    plain = json.loads((tmp_path / "fedavg-history.json").read_text())["rounds"]
    assert "epsilon-total" not in plain[-1]


def test_more_answers_than_the_policy_allows_are_refused_by_the_clients(tmp_path: Path) -> None:
    command = ["--clients", 8, "--rounds", 3, "--output", tmp_path, "--workers", 1]
    done = script(EXAMPLE / "run.py", *command, "--no-baseline", "--set", "answers-per-client=2")
    rounds = json.loads((tmp_path / "codeword-history.json").read_text())["rounds"]
    # Five a round: eight answers in all, and whoever is asked again refuses.
    assert sum(row["accepted"] for row in rounds[1:]) == 8, done.output
    with Ledger.open(tmp_path / "simulation-ledger.sqlite", read_only=True) as ledger:
        totals = [ledger.totals(account)[Unit.CLIENT] for account in ledger.data_ids()]
    assert [amount.spent(Unit.CLIENT).epsilon for amount in totals] == [8.0] * 8
