"""Randomized labels under real faults: killed at random moments, asked for by many at once.

In each: a name has one set of reports or none, and no more than its one charge.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flower_ldp.accounting.ledger import REFUSED_REPEAT, Ledger
from flower_ldp.privacy import Unit
from tests.faults.label_worker import LABELS, randomize
from tests.unit.clients.test_private_labels import write_policy

if sys.platform == "win32":
    pytest.skip("signals and locks of POSIX", allow_module_level=True)

WORKER = Path(__file__).with_name("label_worker.py")
ROOT = WORKER.parents[2]
KILLS, SEED = 40, 20_260_102


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def result(process: subprocess.Popen[str]) -> object:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    Ledger.open(tmp_path / "ledger.sqlite", create=True).close()
    return write_policy(tmp_path, life=1_000.0)


def charges(policy: Path) -> dict[str, bool]:
    """Return the name of each entry, and whether its reports are stored."""
    with Ledger.open(policy.with_name("ledger.sqlite")) as ledger:
        ledger.verify()
        entries = list(ledger.entries())
        spent = ledger.totals("ward-7")
    assert len({entry.message_id for entry in entries}) == len(entries)
    if entries:
        assert spent[Unit.LABEL].epsilon == len(entries) * 10**12
    return {entry.message_id: entry.sealed for entry in entries}


def test_killed_at_random_moments(policy: Path) -> None:
    told = result(start("kills", policy, SEED, KILLS))
    assert isinstance(told, list)
    given: dict[str, set[str]] = {}
    for name, answer in told:
        if answer:
            given.setdefault(name, set()).add(answer)
    known = charges(policy)
    for name, answers in given.items():
        assert len(answers) == 1, "two sets of reports for one name"
        (answer,) = answers
        if answer != REFUSED_REPEAT:
            assert len(answer) == len(LABELS)
            assert known[f"labels:{name}"], "reports were given that are not stored"
            assert randomize(policy, name) == answer, "other reports after the restart"
        else:
            assert not known[f"labels:{name}"], "refused although stored"
    # The kills did hit, and there was progress in between.
    assert "" in {answer for _, answer in told}
    assert any(len(answer) == len(LABELS) for _, answer in told)


def test_five_processes_ask_at_once(policy: Path) -> None:
    told = result(start("together", policy, "train", 5))
    assert isinstance(told, list)
    assert len(told) == 5
    (answer,) = set(told)
    assert len(answer) == len(LABELS)
    assert charges(policy) == {"labels:train": True}
