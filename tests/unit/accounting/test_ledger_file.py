"""The ledger's file: its mode, its version, and everything that it may not be."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from flower_ldp.accounting.ledger import Ledger, Limit
from flower_ldp.accounting.ledger import file as ledger_file
from flower_ldp.errors import LedgerError
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.fixtures import LIFE, cannot_open, charge, edit

POSIX = pytest.mark.skipif(os.name != "posix", reason="modes and owners of POSIX")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a ledger with three entries."""
    path = tmp_path / "a ledger?#%.sqlite"
    with Ledger.open(path, create=True) as ledger:
        for message in "012":
            ledger.seal(ledger.charge(charge(message, run_id=1), [LIFE]), b"report")
    return path


@POSIX
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_mode_is_0600_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "ledger.sqlite"
    before = os.umask(umask)
    try:
        with Ledger.open(path, create=True) as ledger:
            ledger.charge(charge("0"), [LIFE])
            modes = [stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()]
    finally:
        os.umask(before)
    assert modes == [0o600] * 2
    assert {p.name for p in tmp_path.iterdir()} == {path.name, path.name + "-journal"}


@POSIX
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_file_that_others_can_write_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    cannot_open(path, rf"mode 0{mode:o}.*chmod go-w")
    with Ledger.open(path, read_only=True) as ledger:
        ledger.verify()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
def test_file_of_another_user_is_refused(path: Path) -> None:
    os.chown(path, 65_534, 65_534)
    cannot_open(path, r"belongs to user 65534.*give it to this user")


def test_missing_file_is_made_only_on_request(tmp_path: Path, path: Path) -> None:
    cannot_open(tmp_path / "other", "does not exist")
    cannot_open(tmp_path / "none" / "other", "No such file or directory", create=True)
    path.unlink()
    cannot_open(path, "its journal is there", create=True)


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"", "it is empty"), (b"x" * 5_000, "not a ledger"), (b"SQLite format 3\0", "not a ledger")],
)
def test_what_is_no_database_is_refused_and_kept(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    path.chmod(0o600)
    for create in (False, True):
        cannot_open(path, text, create=create)
    assert path.read_bytes() == content


def test_folder_and_other_database_are_refused(tmp_path: Path) -> None:
    cannot_open(tmp_path, "not a regular file")
    edit(tmp_path / "db", "CREATE TABLE t (x)")
    (tmp_path / "db").chmod(0o600)
    cannot_open(tmp_path / "db", "but not a ledger")


def test_newer_version_is_refused_and_not_changed(path: Path) -> None:
    edit(path, f"PRAGMA user_version = {ledger_file.VERSION + 1}")
    content = path.read_bytes()
    cannot_open(path, "has version 4, and this flower-ldp reads versions 2 and 3")
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON entry BEGIN UPDATE total SET book = '{}'; END",
        "CREATE VIEW v AS SELECT 1",
        "ALTER TABLE entry ADD COLUMN more",
        "DROP TABLE report",
    ],
)
def test_changed_tables_are_refused(path: Path, statement: str) -> None:
    edit(path, statement)
    cannot_open(path, "its tables are not those of version")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE total SET book = '{}' WHERE run_id = ''",
        "DELETE FROM total WHERE run_id = ''",
        "DELETE FROM total WHERE run_id = '1'",
        "DELETE FROM total",
        "UPDATE total SET successor = NULL",
        "UPDATE course SET book = '{}' WHERE entry = 3",
        "DELETE FROM course",
        "DELETE FROM entry WHERE id = 3",
        "DELETE FROM entry",
        "UPDATE entry SET chain = x'00' WHERE id = 3",
        "UPDATE entry SET chain = 'text' WHERE id = 3",
        "UPDATE head SET entries = 2",
        "UPDATE head SET latest = 0",
        "UPDATE head SET digest = 0",
        "DELETE FROM head",
        "INSERT INTO report VALUES (4, 0, x'00', x'00')",
        "INSERT INTO releases VALUES (4, 2)",
        "INSERT INTO waiver VALUES (9, 0, 'example')",
        "INSERT INTO waiver VALUES ('x', 0, 'example')",
        "UPDATE event SET entry = 'x' WHERE entry = 3",
    ],
)
def test_changed_rows_stop_the_next_charge(path: Path, statement: str) -> None:
    edit(path, statement)
    limits = [LIFE, Limit(Unit.CLIENT, "run", 10.0)]
    with pytest.raises(LedgerError, match=r"is damaged: .*restore the newest backup"):
        Ledger.open(path).charge(charge("3", run_id=1), limits)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET at = 0 WHERE id = 1",
        "UPDATE entry SET data_id = 'x' WHERE id = 1",
        "UPDATE event SET epsilon = 1 WHERE entry = 1",
        "DELETE FROM event WHERE entry = 1",
        "INSERT INTO waiver VALUES (1, 0, 'example')",
        "INSERT INTO waiver VALUES (1, 9, 'example')",
        "INSERT INTO waiver VALUES (1, 0, 'x'), (1, 0, x'00')",
        "DELETE FROM entry WHERE id = 1",
        "UPDATE report SET report = 'text' WHERE entry = 1",
        "UPDATE report SET at = 0 WHERE entry = 1",
        "DELETE FROM course WHERE entry = 1",
        "INSERT INTO course VALUES ('x', 0, 9, '{}', 0)",
        "INSERT INTO total VALUES ('x', 'y', NULL, '{}', 0)",
    ],
)
def test_changed_old_rows_are_found_by_verify(path: Path, statement: str) -> None:
    edit(path, statement)
    with Ledger.open(path) as ledger, pytest.raises(LedgerError, match="is damaged"):
        ledger.verify()


def test_changed_report_is_not_given_again(path: Path) -> None:
    edit(path, "UPDATE report SET report = x'00' WHERE entry = 1")
    with Ledger.open(path) as ledger, pytest.raises(LedgerError, match="report of entry 1"):
        ledger.charge(charge("0", run_id=1), [LIFE])


@pytest.mark.parametrize(
    ("put", "text"),
    [
        (shutil.copyfile, "set back or replaced"),
        pytest.param(os.replace, "replaced while it was open", marks=POSIX),
    ],
)
def test_file_set_back_or_replaced_while_open_is_noticed(
    path: Path, put: Callable[[Path, Path], object], text: str
) -> None:
    copy = path.with_suffix(".backup")
    shutil.copy(path, copy)
    with Ledger.open(path) as ledger:
        ledger.charge(charge("more"), [LIFE])
        put(copy, path)
        with pytest.raises(LedgerError, match=text):
            ledger.charge(charge("again"), [LIFE])


@POSIX
def test_file_taken_away_while_open_is_noticed(path: Path) -> None:
    with Ledger.open(path) as ledger:
        path.unlink()
        with pytest.raises(LedgerError, match="No such file"):
            ledger.totals("ward-7")


def test_mark_shows_that_a_backup_is_older(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copy(path, copy)
    with Ledger.open(path) as ledger:
        early = ledger.mark()
        ledger.charge(charge("more"), [LIFE])
        late = ledger.mark()
    for mark in (early, late):
        Ledger.open(path, at_least=mark).close()
    Ledger.open(copy, at_least=early).close()
    for wrong in (late, replace(early, ledger="00"), replace(early, chain="00" * 32)):
        cannot_open(copy, "set back or replaced", at_least=wrong)


def test_locked_too_long_is_said(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        cannot_open(path, "another process holds it", timeout=0.01)
    Ledger.open(path).close()


@POSIX
def test_ledger_of_a_parent_process_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.open(path) as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            with pytest.raises(LedgerError, match="open it again after fork"):
                ledger.charge(charge("3"), [LIFE])
        ledger.charge(charge("3"), [LIFE])


def test_a_ledger_is_durable_and_one_that_is_dropped_is_closed(path: Path) -> None:
    db = Ledger.open(path)._db
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        db.execute("SELECT 1")
    with Ledger.open(path) as ledger:
        for name, value in (("journal_mode", "persist"), ("synchronous", 3)):
            assert ledger._db.execute(f"PRAGMA {name}").fetchone() == (value,)


def test_importing_the_ledger_imports_nothing_foreign() -> None:
    code = (
        "import sys, flower_ldp.accounting.ledger\n"
        "sys.exit(any(n in sys.modules for n in ('numpy', 'flwr', 'yaml', 'dp_accounting')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_verify_finds_a_row_of_the_course_under_another_name(path: Path) -> None:
    events = (PrivacyEvent("dpsgd", 1.0, unit=Unit.EXAMPLE),)
    one = charge("m", data_id="a", events=events, example="patient")
    with Ledger.open(path) as ledger:
        ledger.charge(one, [Limit(unit, "life", 10.0) for unit in Unit])
        ledger.verify()
    # The mark that the data has patients costs nothing: its sums are those of no row.
    edit(path, "UPDATE course SET data_id = '-1' WHERE data_id LIKE 'a#patients%'")
    with Ledger.open(path) as ledger, pytest.raises(LedgerError, match="the course at entry 5"):
        ledger.verify()
