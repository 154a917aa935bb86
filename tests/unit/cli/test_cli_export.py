"""``flower-ldp ledger export``: every row, and a file that is whole or as it was."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flower_ldp.accounting.ledger import Charge, Ledger, Limit
from flower_ldp.cli.ledger import COLUMNS, to_file
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.cli import flower_ldp

EVENTS = (PrivacyEvent("signds", 0.1), PrivacyEvent("magrr", 8 / 3))
LIFE = [Limit(Unit.CLIENT, "life", 1000.0)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path, create=True) as ledger:
        for number in range(3):
            terms = json.dumps({"h": number, "text": 'a,"b"'})
            asked = Charge('w,"7"', 1, str(number), "train", b"x", EVENTS, terms)
            ledger.seal(ledger.charge(asked, LIFE), b"report")
    return path


def expected(file: Path) -> list[dict[str, Any]]:
    with Ledger.open(file, read_only=True) as ledger:
        return list(ledger.export())


def test_lines_of_json(file: Path) -> None:
    done = flower_ldp("ledger", "export", file)
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert rows == expected(file)
    assert [row["epsilon"] for row in rows[:2]] == ["0.1", "2.666666666667"]


def test_csv(file: Path) -> None:
    done = flower_ldp("ledger", "export", file, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert rows == [{k: str(v) for k, v in row.items()} for row in expected(file)]
    assert tuple(rows[0]) == COLUMNS == tuple(expected(file)[0])


@pytest.mark.parametrize("identity", ["=1+1", "+1", "-1", "@SUM(A1)", "1=1", "plain"])
def test_csv_holds_no_formula_of_the_servers(tmp_path: Path, identity: str) -> None:
    file = tmp_path / "ledger.sqlite"
    with Ledger.open(file, create=True, durable=False) as ledger:
        ledger.charge(Charge("d", 1, identity, "train", b"x", EVENTS), LIFE)
    done = flower_ldp("ledger", "export", file, "--format", "csv")
    cells = {row["message_id"] for row in csv.DictReader(io.StringIO(done.out))}
    assert cells == {identity if identity[0] in "1p" else f"'{identity}"}


def test_csv_of_an_empty_ledger_has_its_header(tmp_path: Path) -> None:
    flower_ldp("ledger", "create", tmp_path / "l")
    done = flower_ldp("ledger", "export", tmp_path / "l", "--format", "csv")
    assert done.out == ",".join(COLUMNS) + "\n"


@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_a_file_holds_what_stdout_would_and_is_its_owners(file: Path, name: str) -> None:
    target = file.with_name("out")
    target.write_text("old")
    target.chmod(0o666)
    done = flower_ldp("ledger", "export", file, "--format", name, "--output", target, "--json")
    assert (done.json["rows"], done.json["output"]) == (6, str(target))
    assert target.read_text() == flower_ldp("ledger", "export", file, "--format", name).out
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert not list(file.parent.glob(".out.*"))


def test_a_link_stays_a_link(file: Path) -> None:
    target, link = file.with_name("out"), file.with_name("link")
    target.write_text("old")
    link.symlink_to(target)
    assert flower_ldp("ledger", "export", file, "--output", link).code == 0
    assert link.is_symlink()
    assert target.read_text() != "old"


def test_an_error_on_the_way_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("old")

    def rows() -> Iterator[dict[str, Any]]:
        yield dict.fromkeys(COLUMNS, 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        to_file(rows(), False, target)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out", "old")]


def test_a_crash_on_the_way_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("old")
    code = (
        "import os, sys; from pathlib import Path; from flower_ldp.cli.ledger import *\n"
        "def rows():\n"
        "    for i in range(10_000): yield dict.fromkeys(COLUMNS, i)\n"
        "    os.kill(os.getpid(), 9)\n"
        "to_file(rows(), True, Path(sys.argv[1]))"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert target.read_text() == "old"


def test_damage_leaves_the_old_file_and_ends_with_1(file: Path) -> None:
    target = file.with_name("out")
    target.write_text("old")
    file.write_bytes(file.read_bytes()[:-4096])
    done = flower_ldp("ledger", "export", file, "--output", target)
    assert (done.code, target.read_text()) == (1, "old")


def test_it_does_not_write_over_the_ledger_or_a_device(file: Path) -> None:
    hard, soft = file.with_name("hard"), file.with_name("soft")
    os.link(file, hard)
    soft.symlink_to(file)
    before = file.read_bytes()
    for target in (file, hard, soft, f"{file}-journal", "/dev/null", "/dev/stdout", file.parent):
        done = flower_ldp("ledger", "export", file, "--output", target)
        assert (done.code, done.out) == (2, ""), target
        assert "--output" in done.err
    assert file.read_bytes() == before
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_folder_that_is_not_there(file: Path) -> None:
    target = file.with_name("no") / "out"
    done = flower_ldp("ledger", "export", file, "--output", target)
    assert done.code == 1
    assert "No such file or directory" in done.err
