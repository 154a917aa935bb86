"""``flower-ldp ledger``: what it makes, shows and checks, and what it leaves as it is."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flower_ldp.accounting.composition import totals
from flower_ldp.accounting.ledger import Charge, Ledger, Limit
from flower_ldp.policy import load_policy
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.cli import facts, flower_ldp, process, refused
from tests.fixtures import new_ledger

DAY = 86_400 * 10**9
NOW = 20_000 * DAY
LIFE = [Limit(unit, "life", 1e6, 0.5) for unit in Unit]
SIGNDS, MAGRR = PrivacyEvent("signds", 0.8), PrivacyEvent("magrr", 0.1)
LABEL = PrivacyEvent("labels", 2.0, 1e-7, Unit.LABEL, 3)

POLICY = """\
data_id: ward-7
ledger: ledger.sqlite
mode: deployment
messages:
  train: {signds: {epsilon: 1.0}, magrr: {epsilon: 0.5}}
budgets:
  client:
    run: {epsilon: 5.0}
    window: {epsilon: 3.0, days: 30}
    life: {epsilon: 9.0, delta: 1.0e-5}
"""


def charge(ledger: Ledger, message: str, run: int, *events: PrivacyEvent, data: str) -> None:
    ledger.seal(ledger.charge(Charge(data, run, message, "train", b"x", events), LIFE), b"r")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a ledger: two runs of ward-7, long ago and now, and one of [b]other[/b]."""
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path, create=True, clock=lambda: NOW) as ledger:
        for message in "abc":
            charge(ledger, message, 7, SIGNDS, MAGRR, data="ward-7")
    with Ledger.open(path, clock=lambda: NOW + 365 * 100 * DAY) as ledger:  # the newest is now
        ledger.accept_clock()
        charge(ledger, "d", 2**64 - 1, SIGNDS, MAGRR, data="ward-7")
        ledger.charge(Charge("[b]other[/b]", 9, "e", "train", b"x", (LABEL,)), LIFE)
    return path


def cells(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    """Return these columns of a table."""
    return [tuple(row[name] for name in names) for row in rows]


def test_create_makes_one_and_never_another(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite"
    done = flower_ldp("ledger", "create", path, "--json")
    with Ledger.open(path) as ledger:
        assert done.json["mark"] == vars(ledger.mark())
    before = path.read_bytes()
    again = refused("ledger", "create", path)
    assert again == f"error: {path} exists: a ledger is made once, and never on top of a file\n"
    assert path.read_bytes() == before
    said = refused("ledger", "create", tmp_path / "no" / "new.sqlite")
    assert "No such file or directory" in said


def test_show_states_totals_and_entries(file: Path) -> None:
    found = facts("ledger", "show", file)
    names = ("data_id", "unit", "epsilon", "direct_epsilon", "releases_without_promise")
    assert cells(found["totals"], *names) == [
        ("[b]other[/b]", "client", None, "0", 3),
        ("[b]other[/b]", "example", None, "0", 3),
        ("[b]other[/b]", "label", "6", "6", 0),
        ("ward-7", "client", "3.6", "3.6", 0),
        ("ward-7", "example", "3.6", "0", 0),
        ("ward-7", "label", "3.6", "0", 0),
    ]
    assert found["totals"][2]["delta"] == "0.0000003"
    assert cells(found["entries"], "entry", "sealed")[-3:] == [(4, True), (4, True), (5, False)]
    words = flower_ldp("ledger", "show", file, "--last", 1).out
    assert "[b]other[/b]" in words
    assert re.search("label +2 +3 +no\n", words)
    assert "no promise" in words
    assert "[b]other[/b] per client: 3 releases promise nothing for it." in words
    assert "The largest, [b]other[/b] per label: Probabilities of what a label's data may" in words
    assert facts("ledger", "show", file, "--last", 0)["entries"] == []


def test_show_tells_parts_conditions_and_waivers_apart(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    code = PrivacyEvent("codes", 1.0, unit=Unit.EXAMPLE)
    claim = PrivacyEvent("codes:conditional", 4.0, unit=Unit.EXAMPLE)
    with Ledger.open(path, create=True) as ledger:
        for block in range(3):
            charge(ledger, "m", 0, code, data=f"ward-7#layout/train/{block}")
        charge(ledger, "n", 0, claim, data="ward-7#layout/train/2")
        freed = {"signds": (Unit.LABEL,)}
        ledger.charge(Charge("ward-7", 1, "w", "train", b"x", (SIGNDS,), waived=freed), LIFE)
    found = facts("ledger", "show", path, "--delta", 1e-6)
    assert cells(found["totals"], "unit", "epsilon", "counted_epsilon", "parts") == [
        ("client", "0.8", "0.8", 3),
        ("example", "1.8", "5.8", 3),
        ("label", "1", "5", 3),
    ]
    claimed = {"mechanism": "codes:conditional", "epsilon": "4", "delta": "0"}
    assert found["totals"][1]["conditional"] == [claimed]
    assert found["totals"][2]["releases_post_processing"] == 1
    pure = [("client", 0.8), ("example", 1.8), ("label", 1.0)]
    assert cells(found["bounds"], "unit", "pure") == pure
    assert found["entries"][-1]["waived"] == "label"
    words = flower_ldp("ledger", "show", path).out
    assert "Under a condition only, in all, and in no total above" in words
    assert "1 release promises something under a condition only" in words
    assert "1 released as post-processing of what was paid, which the owner declares" in words


def test_show_gives_the_share_of_rho(tmp_path: Path) -> None:
    path, rules = new_ledger(tmp_path / "ledger.sqlite"), tmp_path / "policy.yaml"
    rules.write_text(
        "data_id: ward-7\nledger: ledger.sqlite\nmode: deployment\nmessages: {}\n"
        "budgets: {client: {life: {epsilon: 4.0, delta: 1.0e-5, by: zcdp}}}\n"
    )
    limits = load_policy(rules).limits()
    with Ledger.open(path) as ledger:
        event = PrivacyEvent("signds", 0.1, count=50)
        ledger.charge(Charge("ward-7", 1, "m", "train", b"x", (event,)), limits)
    (total,) = facts("ledger", "show", path)["totals"][:1]
    (row,) = facts("ledger", "show", path, "--policy", rules)["budgets"]
    assert total["rho"] == row["rho_spent"]
    assert row["rho_share"] == pytest.approx(float(row["rho_spent"]) / float(row["rho"]), rel=1e-3)
    assert (row["epsilon_left"], row["delta_left"], row["delta"]) == (None, None, "0.00001")
    assert (
        f"{100 * row['rho_share']:.4g} %"
        in flower_ldp("ledger", "show", path, "--policy", rules).out
    )


def test_show_says_what_is_left_of_each_budget(file: Path, policy: Path) -> None:
    found = facts("ledger", "show", file, "--policy", policy)
    assert found["warnings"] == []
    assert cells(found["budgets"], "scope", "run_id", "epsilon_left", "delta_left") == [
        ("run", str(2**64 - 1), "4.1", "0"),
        ("window", None, "2.1", "0"),
        ("life", None, "5.4", "0.00001"),
    ]
    older = facts("ledger", "show", file, "--policy", policy, "--run", 7)["budgets"]
    assert cells(older, "scope", "epsilon_left")[0] == ("run", "2.3")
    # Nothing is left of a budget that was lowered.
    policy.write_text(POLICY.replace("9.0", "2.0"))
    lowered = facts("ledger", "show", file, "--policy", policy)["budgets"]
    assert cells(lowered, "scope", "epsilon_left")[2] == ("life", "0")


def test_data_that_was_never_charged_has_all_its_budget(file: Path, policy: Path) -> None:
    policy.write_text(POLICY.replace("ward-7", "ward-8"))
    found = facts("ledger", "show", file, "--policy", policy)["budgets"]
    assert cells(found, "epsilon_left", "run_id") == [("5", None), ("3", None), ("9", None)]
    words = flower_ldp("ledger", "show", file, "--policy", policy).out
    assert re.search("run +- +- +5 ", words)


def test_a_policy_of_another_ledger_is_said(tmp_path: Path, policy: Path) -> None:
    path = tmp_path / "other.sqlite"
    policy.write_text(POLICY.replace("deployment", "simulation"))
    with Ledger.open(path, create=True) as ledger:
        for client in (3, 11):
            charge(ledger, "m", 1, SIGNDS, data=f"ward-7/{client}")
        charge(ledger, "m", 1, SIGNDS, data="ward-77")
    found = facts("ledger", "show", path, "--policy", policy)
    assert [w.split(",")[0] for w in found["warnings"]] == [
        "the policy names another ledger",
        "the policy is for simulation: neither data nor budgets are real",
    ]
    left = [(f"ward-7/{client}", left) for client in (3, 11) for left in ("4.2", "2.2", "8.2")]
    assert sorted(cells(found["budgets"], "data_id", "epsilon_left")) == sorted(left)


def test_show_adds_the_bound_by_loss_distributions(file: Path) -> None:
    found = facts("ledger", "show", file, "--delta", 1e-4)["bounds"]
    events = [PrivacyEvent("signds", 0.8, count=4), PrivacyEvent("magrr", 0.1, count=4)]
    ward = totals(events, delta=1e-4)[Unit.CLIENT]
    other = totals([LABEL], delta=1e-4)[Unit.LABEL]
    assert cells(found, "data_id", "smaller", "smaller_delta") == [
        ("[b]other[/b]", other.smaller.epsilon, other.smaller.delta),
        *[("ward-7", ward.smaller.epsilon, ward.smaller.delta)] * 3,
    ]
    assert "at delta 0.0001" in flower_ldp("ledger", "show", file, "--delta", 1e-4).out


@pytest.mark.parametrize(
    "words", [("show",), ("show", "--delta", 1e-5), ("verify",), ("export",)], ids=str
)
def test_looking_changes_nothing(file: Path, words: tuple[object, ...]) -> None:
    journal = Path(f"{file}-journal")
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in (file, journal)]
    assert flower_ldp("ledger", words[0], file, *words[1:]).code == 0
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in (file, journal)] == before


def test_a_ledger_whose_writer_was_killed_can_be_read(file: Path) -> None:
    code = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "for word in ('journal_mode=PERSIST', 'cache_size=1'): db.execute('PRAGMA ' + word)\n"
        "db.execute('BEGIN IMMEDIATE')\n"
        "for i in range(500):\n"
        "    db.execute('INSERT INTO report VALUES (?, 1, ?, ?)', (99 + i, bytes(3000), b'x'))\n"
        "os.kill(os.getpid(), 9)"
    )
    for command in ("show", "verify"):
        assert process(sys.executable, "-c", code, file).returncode == -signal.SIGKILL
        assert flower_ldp("ledger", command, file).code == 0


def test_verify_states_the_end_of_the_chain(file: Path) -> None:
    with Ledger.open(file) as ledger:
        mark = ledger.mark()
    found = facts("ledger", "verify", file)
    assert (found["entries"], found["sealed"], found["mark"]) == (5, 4, vars(mark))
    assert mark.chain in flower_ldp("ledger", "verify", file).out


def test_verify_ends_with_1_on_damage(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("UPDATE event SET epsilon = 1 WHERE entry = 2")
    for command in ("verify", "export"):
        (line,) = refused("ledger", command, file).splitlines()
        assert line.startswith(f"error: ledger {file} is damaged: entry 2 is not what was")
    assert "is damaged" in facts("ledger", "verify", file)["problems"][0]


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_what_is_no_ledger_is_one_line(tmp_path: Path, command: str) -> None:
    text, database = tmp_path / "text", tmp_path / "database"
    text.write_text("no ledger\n" * 200)
    with closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE t (x)")
    for path in (text, database, tmp_path, tmp_path / "missing"):
        (line,) = refused("ledger", command, path).splitlines()
        assert str(path) in line


def test_show_on_an_empty_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    flower_ldp("ledger", "create", path)
    assert "Nothing was spent." in flower_ldp("ledger", "show", path, "--delta", 1e-5).out
    assert os.stat(path).st_mode & 0o777 == 0o600
