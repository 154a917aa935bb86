"""``flower-ldp ledger``: numbers beside epsilon, the rollback anchor and the clock."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from flower_ldp.accounting.ledger import Ledger, Limit
from flower_ldp.accounting.ledger.anchor import FileAnchor
from flower_ldp.errors import LedgerError
from flower_ldp.privacy import Unit
from tests.cli import facts, flower_ldp, refused
from tests.fixtures import charge

LIFE = [Limit(Unit.CLIENT, "life", 100.0)]
YEAR_2024 = 1_710_000_000 * 10**9


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path, create=True, durable=False) as ledger:
        ledger.charge(charge(releases=5), LIFE)
    return path


def test_show_states_what_was_answered_and_failed(file: Path) -> None:
    with Ledger.open(file, durable=False) as ledger:
        for _ in range(3):
            ledger.count("ward-7", "failed")
        ledger.count("ward-8", "acknowledged")
    names = ("data_id", "releases", "again", "acknowledged", "failed", "unprotected")
    rows = [("ward-7", 5, 0, 0, 3, 0), ("ward-8", 0, 0, 1, 0, 0)]
    found = facts("ledger", "show", file)["numbers"]
    assert found == [dict(zip(names, row, strict=True)) for row in rows]
    words = flower_ldp("ledger", "show", file).out
    assert re.search("ward-7 +5 +0 +0 +3 +0\nward-8 +0 +0 +1 +0 +0\n", words)


SIMULATED = """\
data_id: ward-7
ledger: ledger.sqlite
mode: simulation
messages: {}
unlisted_messages: answer
budgets: {client: {life: {epsilon: 9.0}}}
"""


def test_a_simulation_is_forgotten_with_all_that_is_beside_its_ledger(tmp_path: Path) -> None:
    file, policy = tmp_path / "ledger.sqlite", tmp_path / "policy.yaml"
    policy.write_text(SIMULATED)
    with Ledger.open(file, create=True, durable=False) as ledger:
        ledger.charge(charge(data_id="ward-7/0#cut/1"), LIFE)
    for end in ("-models-key", "-mark-key", "-ended-0a", ".labels-key"):
        (tmp_path / f"ledger.sqlite{end}").touch()
    (tmp_path / "ledger.sqlite.models").mkdir()
    (tmp_path / "ledger.sqlite.models" / "one").touch()
    others = [tmp_path / name for name in ("ledger.sqlite.bak", "ledger.sqlite-copy")]
    for one in others:
        one.touch()
    assert len(facts("ledger", "forget", policy)["removed"]) == 7
    assert sorted(tmp_path.iterdir()) == sorted([policy, *others])
    assert flower_ldp("ledger", "forget", policy).code == 1


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("simulation", "deployment", "its mode is deployment"),
        ("", "", "'ward-7' is no simulated client's"),
        ("ward-7", "ward", "'ward-7' is no simulated client's"),
        ("mode", "anchor: {file: policy.yaml}\nmode", "names an anchor"),
        ("ward-7", "ward-7/0", "must have no '#' and no '/'"),
    ],
)
def test_another_ledger_is_never_forgotten(file: Path, old: str, new: str, complaint: str) -> None:
    policy = file.with_name("policy.yaml")
    policy.write_text(SIMULATED.replace(old, new))
    assert complaint in refused("ledger", "forget", policy)
    with Ledger.open(file) as ledger:
        assert ledger.verify().entries == 1


def test_an_anchor_is_made_compared_and_replaced(file: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    verify, anchor = ("verify", file, "--anchor", mark), ("anchor", file, "--file", mark)
    assert "holds no mark" in refused("ledger", *verify)
    made = flower_ldp("ledger", *anchor)
    assert made.code == 0
    assert "holds entry 1 of ledger" in made.out
    assert "warning: anchor and ledger are on one file system" in made.err
    assert facts("ledger", *verify)["anchor"] == f"anchor {mark}"
    shutil.copy(file, tmp_path / "copy")
    with Ledger.open(file, anchor=FileAnchor(mark), durable=False) as ledger:
        ledger.charge(charge(1), LIFE)
    shutil.copy(tmp_path / "copy", file)
    for words in (verify, anchor):
        assert "the ledger was set back" in refused("ledger", *words)
    assert flower_ldp("ledger", *anchor, "--replace").code == 0
    assert flower_ldp("ledger", *verify).code == 0


def test_an_anchor_behind_a_command(file: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    script = tmp_path / "a program"
    script.write_text(f'#!/bin/sh\n[ "$2" = write ] && cat > "{store}"\ncat "{store}"\n')
    script.chmod(0o700)
    command = f"'{script}' key-1"
    assert flower_ldp("ledger", "anchor", file, "--command", command, "--replace").code == 0
    assert flower_ldp("ledger", "verify", file, "--anchor-command", command).code == 0
    store.write_text("something else\n")
    said = refused("ledger", "verify", file, "--anchor-command", command)
    assert "holds no mark: it says 'something" in said


def test_the_clock_after_a_long_pause(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path, create=True, clock=lambda: YEAR_2024, durable=False) as ledger:
        ledger.charge(charge(), LIFE)
    with Ledger.open(path) as ledger, pytest.raises(LedgerError, match="400 days"):
        ledger.charge(charge(1), LIFE)
    looked = flower_ldp("ledger", "clock", path)
    assert (looked.code, "charges are refused" in looked.err) == (1, True)
    accepted = facts("ledger", "clock", path, "--accept")
    assert (accepted["jumped"], accepted["ahead_seconds"]) == (False, 0.0)
    assert accepted["latest_entry"] == "2024-03-09T16:00:00Z"
    with Ledger.open(path) as ledger:
        ledger.charge(charge(1), LIFE)


def test_a_ledger_that_is_ahead_of_the_clock(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ahead = 7_000_000_000 * 10**9  # the year 2191
    with Ledger.open(path, create=True, clock=lambda: ahead, durable=False) as ledger:
        ledger.charge(charge(), LIFE)
    looked = flower_ldp("ledger", "clock", path)
    assert (looked.code, "ahead of the clock: nothing leaves a window" in looked.err) == (1, True)
    accepted = flower_ldp("ledger", "clock", path, "--accept")
    assert accepted.code == 0
    assert re.search("ahead +[1-9].*, as its owner.*windows have their full", accepted.out)
