"""A ledger of version 1, as it was written: migrated once, whole or not at all, never lowered."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flower_ldp.accounting.ledger import Charge, Ledger, Limit, Mark
from flower_ldp.accounting.ledger import ledger as ledger_module
from flower_ldp.accounting.ledger import migration as ledger_migration
from flower_ldp.accounting.ledger import schema as ledger_schema
from flower_ldp.accounting.ledger.anchor import FileAnchor
from flower_ldp.cli.ledger_answers import look_into
from flower_ldp.errors import BudgetExhausted, LedgerError
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.unit.accounting.test_ledger_file import edit

OLD = Path(__file__).parents[2] / "data" / "ledger-v1.sqlite"
#: Ten days after its last entry.
NOW = 1_729_728_000 * 10**9
PART = "ward-7#0123456789abcdef/train/1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(OLD.read_bytes())
    path.chmod(0o600)
    return path


def opened(path: Path) -> Ledger:
    return Ledger.open(path, clock=lambda: NOW)


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return db.execute(query).fetchall()


@pytest.fixture
def before(path: Path) -> dict[tuple[object, ...], tuple[object, ...]]:
    """Return the sums as version 1 had them, by run, data and unit."""
    query = "SELECT run_id, data_id, unit, epsilon, delta FROM total WHERE data_id != ''"
    return {row[:3]: row[3:] for row in rows(path, query)}


def test_sums_are_raised_and_entries_stay(
    path: Path, before: dict[tuple[str, str, str], tuple[int, int]]
) -> None:
    chain = rows(path, "SELECT id, chain FROM entry")
    for _ in range(2):
        with Ledger.open(path) as ledger:
            ledger.verify()
            found = {
                (run, data, unit): ledger.totals(data, int(run) if run else None)[Unit(unit)]
                for run, data, unit in before
            }
    assert all((found[key].epsilon, found[key].delta) >= before[key] for key in before)
    assert rows(path, "SELECT id, chain FROM entry") == chain
    assert rows(path, "PRAGMA user_version") == [(2,)]
    with Ledger.open(path) as ledger:
        in_all = {unit: amount.epsilon_text for unit, amount in ledger.totals("ward-7").items()}
        assert in_all == {Unit.CLIENT: "8", Unit.EXAMPLE: "15", Unit.LABEL: "17"}
        assert ledger.totals(PART)[Unit.EXAMPLE].epsilon_text == "15"
        (example,) = (s for s in ledger.spending("ward-7") if s.unit is Unit.EXAMPLE)
        assert (example.in_all.epsilon_text, example.in_all.delta_text) == ("13", "0.000001")
        assert ledger.totals("ward-8")[Unit.LABEL].epsilon_text == "2"


def test_reports_are_given_again(path: Path) -> None:
    event = PrivacyEvent("bounded_mean", 8.0)
    with Ledger.open(path) as ledger:
        again = ledger.charge(Charge("ward-7", 1, "mean", "train", b"request", (event,)), [])
    assert again.report == b"report"


def test_what_is_over_its_limits_refuses_and_says_so(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = [Limit(Unit.CLIENT, "life", 10.0), Limit(Unit.EXAMPLE, "life", 8.0, 1e-5)]
    with caplog.at_level(logging.WARNING, logger="flower_ldp"), opened(path) as ledger:
        asked = Charge("ward-7", 2, "m", "train", b"x", (PrivacyEvent("m", 0.5),))
        with pytest.raises(BudgetExhausted, match=r"epsilon 15, delta 0.000001 was .* per ex"):
            ledger.charge(asked, limits)
    lines = "\n".join(caplog.messages)
    assert "from version 1 to 2" in lines
    assert "ward-7 per example: epsilon 1 was counted, epsilon 15, delta 0.000001 is" in lines


def as_version_1(path: Path, charges: list[Charge], monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a ledger as version 1 did, which compared the sums of each unit by themselves."""
    with monkeypatch.context() as patch:
        patch.setattr(ledger_module, "check_limits", lambda *_: None)
        with Ledger.open(path, create=True, durable=False) as ledger:
            for charge in charges:
                ledger.charge(charge, [])
    old: dict[tuple[str, str, str], int] = {}
    for charge in charges:
        for run in ("", str(charge.run_id)):
            for event in charge.exact:
                key = (run, charge.data_id, event.unit)
                old[key] = old.get(key, 0) + event.cost.epsilon
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for table in ("total", "course", "waiver", "releases", "clock"):
            db.execute(f"DROP TABLE {table}")
        for table in ("total", "course"):
            db.execute(ledger_migration.SCHEMA_1[table])
        sums = [(*key, None, epsilon, 0, b"") for key, epsilon in old.items()]
        db.executemany("INSERT INTO total VALUES (?, ?, ?, ?, ?, ?, ?)", sums)
        db.execute("PRAGMA user_version = 1")


def test_sums_beyond_what_a_ledger_counts_are_migrated_and_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each unit by itself was below 9.2 million; in all they are above."""
    path = tmp_path / "full.sqlite"
    events = [PrivacyEvent("m", 9e6, unit=unit) for unit in Unit]
    charges = [Charge("d", 1, str(n), "train", b"x", (e,)) for n, e in enumerate(events)]
    as_version_1(path, charges, monkeypatch)
    with Ledger.open(path, durable=False) as ledger:
        ledger.verify()
        found = {unit: amount.epsilon_text for unit, amount in ledger.totals("d").items()}
        assert found == {Unit.CLIENT: "9000000", Unit.EXAMPLE: "18000000", Unit.LABEL: "27000000"}
        spent = ledger.spent("d", 1, Limit(Unit.LABEL, "window", 1.0, 0.0, 60.0))
        assert spent.epsilon_text == "27000000"
        for unit in Unit:
            asked = Charge("d", 2, "n", "train", b"x", (PrivacyEvent("m", 1e-9, unit=unit),))
            limits = [Limit(one, "life", 9.2e6) for one in Unit]
            with pytest.raises(BudgetExhausted, match="000000 was spent"):
                ledger.charge(asked, limits)
            with pytest.raises(BudgetExhausted, match=r"cannot count beyond epsilon (18|27)000000"):
                ledger.charge(asked, [Limit(unit, "run", 1.0)])


def test_looking_does_not_migrate(path: Path) -> None:
    with pytest.raises(LedgerError, match=r"has version 1.*ledger migrate"):
        Ledger.open(path, read_only=True)
    assert path.read_bytes() == OLD.read_bytes()


def test_an_older_package_refuses_the_new_version(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger.open(path).close()
    content = path.read_bytes()
    monkeypatch.setattr(ledger_schema, "VERSION", 1)
    with pytest.raises(LedgerError, match=r"version 2, written by a newer flower-ldp"):
        Ledger.open(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE event SET epsilon = 1 WHERE entry = 1",
        "UPDATE total SET epsilon = epsilon + 1 WHERE data_id = 'ward-8'",
        "DELETE FROM total WHERE data_id = 'ward-8' AND run_id = ''",
        "DELETE FROM entry WHERE id = 3",
        "CREATE TRIGGER t AFTER INSERT ON report BEGIN DELETE FROM entry; END",
    ],
)
def test_a_damaged_one_is_refused_and_stays(path: Path, damage: str) -> None:
    edit(path, damage)
    tables = rows(path, "SELECT sql FROM sqlite_master")
    with pytest.raises(LedgerError, match="is damaged"):
        Ledger.open(path)
    assert rows(path, "SELECT sql FROM sqlite_master") == tables
    assert rows(path, "PRAGMA user_version") == [(1,)]


KILLED = """
import os, sys
from flower_ldp.accounting.ledger import rows as ledger_rows
from flower_ldp.accounting.ledger import Ledger
done, at = [0], int(sys.argv[2])
def dying(write):
    def wrapped(*given):
        if done[0] == 0:  # pages go to the file long before the end
            given[0].execute("PRAGMA cache_size = 1")
        done[0] += 1
        if done[0] == at:
            os.kill(os.getpid(), 9)
        return write(*given)
    return wrapped
for name in ("write_course", "write_total"):
    setattr(ledger_rows, name, dying(getattr(ledger_rows, name)))
Ledger.open(sys.argv[1])
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("at", [1, 9, 30])
def test_killed_in_the_middle_it_is_as_it_was(path: Path, at: int) -> None:
    died = subprocess.run([sys.executable, "-c", KILLED, str(path), str(at)], check=False)
    assert died.returncode == -signal.SIGKILL
    with closing(sqlite3.connect(path)) as db:  # undoes what was not committed
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        assert ledger_schema.complaint(db, ledger_migration.SCHEMA_1, 1) is None
    with Ledger.open(path) as ledger:
        assert ledger.verify().entries == 10


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_looking_does_not_migrate_what_a_killed_process_left(path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(path), "30"], check=False)
    assert Path(f"{path}-journal").read_bytes()[:8] != bytes(8)  # what is to be undone
    with pytest.raises(LedgerError, match=r"has version 1.*ledger migrate"):
        look_into(path)
    assert rows(path, "PRAGMA user_version") == [(1,)]
    assert rows(path, "SELECT count(*) FROM entry") == [(10,)]


@pytest.fixture
def two(path: Path) -> Iterator[tuple[Ledger, Ledger]]:
    with opened(path) as one, opened(path) as other:
        yield one, other


def test_the_second_process_finds_it_done(two: tuple[Ledger, Ledger]) -> None:
    asked = Charge("ward-9", 1, "m", "train", b"x", (PrivacyEvent("m", 0.5),))
    two[0].charge(asked, [Limit(Unit.CLIENT, "life", 10.0)])
    assert two[1].totals("ward-9")[Unit.LABEL].epsilon_text == "0.5"


def marks(path: Path) -> tuple[Mark, Mark]:
    """Return the mark of a ledger of version 1, and the one that it will have an entry later."""
    ((name, entries, chain),) = rows(path, "SELECT ledger, entries, chain FROM head")
    assert isinstance(chain, bytes)
    return Mark(str(name), int(str(entries)), chain.hex()), Mark(str(name), 11, "0" * 64)


@pytest.mark.parametrize("kept", ["anchor", "mark"])
def test_one_that_was_set_back_is_refused_as_it_is(path: Path, tmp_path: Path, kept: str) -> None:
    own, newer = marks(path)
    anchor = FileAnchor(tmp_path / "elsewhere" / "mark")
    anchor.path.parent.mkdir(mode=0o700)
    content = path.read_bytes()
    for wrong in (newer, Mark(own.ledger, 10, "0" * 64), Mark("0" * 32, 10, own.chain)):
        anchor.write(wrong)
        told: dict[str, Any] = {"anchor": anchor} if kept == "anchor" else {"at_least": wrong}
        with pytest.raises(LedgerError, match=r"set back|is that of ledger"):
            Ledger.open(path, **told)
        assert path.read_bytes() == content
        assert rows(path, "PRAGMA user_version") == [(1,)]
    anchor.write(own)
    with Ledger.open(path, anchor=anchor, at_least=own) as ledger:
        assert ledger.verify().mark == own
    assert rows(path, "PRAGMA user_version") == [(2,)]


def test_one_whose_anchor_is_missing_is_not_migrated(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    with pytest.raises(LedgerError, match="holds no mark"):
        Ledger.open(path, anchor=FileAnchor(tmp_path / "none"))
    assert path.read_bytes() == content
