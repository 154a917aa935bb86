"""``flower-ldp ledger export``: every row, and a file that is whole or as it was."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flower_ldp.accounting.ledger import Ledger, Limit
from flower_ldp.cli.ledger import COLUMNS, to_file
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.cli import facts, flower_ldp, process, refused
from tests.fixtures import charge

EVENTS = (PrivacyEvent("signds", 0.1), PrivacyEvent("magrr", 8 / 3))
LIFE = [Limit(Unit.CLIENT, "life", 1000.0)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path, create=True) as ledger:
        for number in range(3):
            terms = json.dumps({"h": number, "text": 'a,"b"'})
            asked = charge(number, data_id='w,"7"', events=EVENTS, parameters=terms)
            ledger.seal(ledger.charge(asked, LIFE), b"report")
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a file of an earlier export."""
    path = tmp_path / "out"
    path.write_text("old")
    return path


def export(*words: object) -> str:
    return flower_ldp("ledger", "export", *words).out


def expected(file: Path) -> list[dict[str, Any]]:
    with Ledger.open(file, read_only=True) as ledger:
        return list(ledger.export())


def test_lines_of_json(file: Path) -> None:
    rows = [json.loads(line) for line in export(file).splitlines()]
    assert rows == expected(file)
    assert [row["epsilon"] for row in rows[:2]] == ["0.1", "2.666666666667"]


def test_csv(file: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(export(file, "--format", "csv"))))
    assert rows == [{k: str(v) for k, v in row.items()} for row in expected(file)]
    assert tuple(rows[0]) == COLUMNS == tuple(expected(file)[0])


@pytest.mark.parametrize("identity", ["=1+1", "+1", "-1", "@SUM(A1)", "1=1", "plain"])
def test_csv_holds_no_formula_of_the_servers(tmp_path: Path, identity: str) -> None:
    file = tmp_path / "ledger.sqlite"
    with Ledger.open(file, create=True, durable=False) as ledger:
        ledger.charge(charge(identity), LIFE)
    rows = csv.DictReader(io.StringIO(export(file, "--format", "csv")))
    named = {row["message_id"] for row in rows}
    assert named == {identity if identity[0] in "1p" else f"'{identity}"}


def test_csv_of_an_empty_ledger_has_its_header(tmp_path: Path) -> None:
    flower_ldp("ledger", "create", tmp_path / "l")
    assert export(tmp_path / "l", "--format", "csv") == ",".join(COLUMNS) + "\n"


@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_a_file_holds_what_stdout_would_and_is_its_owners(file: Path, old: Path, name: str) -> None:
    old.chmod(0o666)
    found = facts("ledger", "export", file, "--format", name, "--output", old)
    assert (found["rows"], found["output"]) == (6, str(old))
    assert old.read_text() == export(file, "--format", name)
    assert stat.S_IMODE(old.stat().st_mode) == 0o600
    assert not list(file.parent.glob(".out.*"))


def test_a_link_stays_a_link(file: Path, old: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(old)
    assert flower_ldp("ledger", "export", file, "--output", link).code == 0
    assert link.is_symlink()
    assert old.read_text() != "old"


def test_an_error_on_the_way_leaves_the_old_file(tmp_path: Path, old: Path) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield dict.fromkeys(COLUMNS, 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        to_file(rows(), False, old)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out", "old")]


def test_a_crash_on_the_way_leaves_the_old_file(old: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from flower_ldp.cli.ledger import *\n"
        "def rows():\n"
        "    for i in range(10_000): yield dict.fromkeys(COLUMNS, i)\n"
        "    os.kill(os.getpid(), 9)\n"
        "to_file(rows(), True, Path(sys.argv[1]))"
    )
    assert process(sys.executable, "-c", code, old).returncode == -signal.SIGKILL
    assert old.read_text() == "old"


def test_damage_leaves_the_old_file_and_ends_with_1(file: Path, old: Path) -> None:
    file.write_bytes(file.read_bytes()[:-4096])
    assert "damaged" in refused("ledger", "export", file, "--output", old)
    assert old.read_text() == "old"


def test_it_does_not_write_over_the_ledger_or_a_device(file: Path) -> None:
    hard, soft = file.with_name("hard"), file.with_name("soft")
    os.link(file, hard)
    soft.symlink_to(file)
    before = file.read_bytes()
    for target in (file, hard, soft, f"{file}-journal", "/dev/null", "/dev/stdout", file.parent):
        assert "--output" in refused("ledger", "export", file, "--output", target, code=2)
    assert file.read_bytes() == before
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_folder_that_is_not_there(file: Path) -> None:
    said = refused("ledger", "export", file, "--output", file.with_name("no") / "out")
    assert "No such file or directory" in said
