"""A ledger has one name, in a folder that is its owner's, and nothing foreign beside it."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.accounting.ledger import file as ledger_file
from flower_ldp.errors import LedgerError
from tests.fixtures import LIFE, cannot_open, charge, new_ledger

if os.name != "posix":
    pytest.skip("modes, links and mounts of POSIX", allow_module_level=True)

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "own" / "ledger.sqlite"
    path.parent.mkdir(mode=0o700)
    with Ledger.open(path, create=True, durable=False) as ledger:
        ledger.charge(charge("0"), [LIFE])
    return path


def test_a_second_name_is_refused_under_both(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    os.link(path, other)
    for name in (path, other):
        for how in ({}, {"durable": False}, {"read_only": True}):
            cannot_open(name, r"has 2 names \(hard links\)", **how)
    other.unlink()
    Ledger.open(path).close()


def test_a_symbolic_link_leads_to_the_one_name(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    with Ledger.open(link, durable=False) as ledger:
        ledger.charge(charge("1"), [LIFE])
    assert not Path(f"{link}-journal").exists()
    assert Path(f"{path}-journal").exists()


def test_the_name_that_a_killed_creator_left_is_taken_away(path: Path) -> None:
    left, other = (path.with_name(f".{path.name}.{name}.new") for name in ("abc", "def"))
    other.write_text("of a creator that is still at work")
    os.link(path, left)
    Ledger.open(path).close()
    assert not left.exists()
    assert other.exists()


@pytest.mark.parametrize("seen", [False, True])
def test_a_creator_that_drops_its_name_meanwhile_is_no_second_name(
    path: Path, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = path.with_name(f".{path.name}.abc.new")
    os.link(path, left)
    real = os.scandir

    def slow(folder: Path) -> contextlib.AbstractContextManager[Iterator[os.DirEntry[str]]]:
        found = list(real(folder)) if seen else []
        left.unlink()
        return contextlib.nullcontext(iter(found or list(real(folder))))

    monkeypatch.setattr(os, "scandir", slow)
    ledger_file.check_file(path, read_only=False)
    assert not left.exists()


@pytest.fixture
def mounted(path: Path, tmp_path: Path) -> Iterator[Path]:
    """The file alone, mounted in another folder of the same disk."""
    there = tmp_path / "there"
    there.mkdir(mode=0o700)
    target = there / path.name
    target.touch()
    try:
        command = ["mount", "--bind", str(path), str(target)]
        done = subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        done = False
    if not done:
        pytest.skip("may not mount; what the check reads is tested below")
    yield target
    subprocess.run(["umount", str(target)], check=True)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_mounted_by_itself_is_refused(mounted: Path, read_only: bool) -> None:
    cannot_open(mounted, "is mounted by itself", read_only=read_only)


@pytest.mark.parametrize("numbers", [(b"mnt_id:\t1\n", b"mnt_id:\t2\n"), None])
def test_mounts_are_told_by_number_or_else_by_device(
    path: Path, monkeypatch: pytest.MonkeyPatch, numbers: tuple[bytes, bytes] | None
) -> None:
    if numbers is None:
        monkeypatch.setattr(ledger_file, "_mount", lambda _: None)
        devices = iter([os.stat_result([0, 0, device] + [0] * 7) for device in (1, 2)])
        monkeypatch.setattr(Path, "stat", lambda _: next(devices))
    else:
        monkeypatch.setattr(ledger_file, "_mount", lambda one: numbers[one == path])
    with pytest.raises(LedgerError, match="is mounted by itself"):
        ledger_file.check_mount(path, "ledger")


def test_a_mounted_folder_and_other_disks_are_no_matter(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.skip("no second disk")
    folder = memory / f"ledger-{os.getpid()}"
    folder.mkdir(mode=0o700)
    try:
        Ledger.open(new_ledger(folder / "ledger.sqlite")).close()
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o2775])
def test_a_folder_that_others_may_write_to_is_refused(path: Path, mode: int) -> None:
    path.parent.chmod(mode)
    cannot_open(path, rf"folder .* can be written by others \(mode {mode:04o}\).*chmod go-w")
    for allowed in (mode & ~0o022, mode | 0o1000):  # or a sticky one
        path.parent.chmod(allowed)
        Ledger.open(path).close()


def test_a_simulation_is_warned_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.chmod(0o775)
    with caplog.at_level(logging.WARNING, logger="flower_ldp"):
        for _ in range(3):
            Ledger.open(path, durable=False).close()
    (line,) = caplog.messages
    assert line.startswith("simulation: ledger ")
    assert "chmod go-w" in line
    with Ledger.open(path, read_only=True) as ledger:
        ledger.verify()


@AS_ROOT
@pytest.mark.parametrize(
    ("name", "text"),
    [(".", "folder .*"), ("ledger.sqlite-journal", "its journal ledger.sqlite-journal")],
)
def test_a_folder_or_journal_of_another_user_is_refused(path: Path, name: str, text: str) -> None:
    os.chown(path.parent / name, 65_534, 65_534)
    cannot_open(path, f"{text} belongs to user 65534")


def test_a_journal_that_is_a_link_is_refused(path: Path, tmp_path: Path) -> None:
    journal = Path(f"{path}-journal")
    journal.unlink()
    journal.symlink_to(tmp_path / "elsewhere")
    cannot_open(path, "its journal ledger.sqlite-journal is not a regular file")
    journal.unlink()
    journal.touch(mode=0o600)
    os.link(journal, tmp_path / "second")
    cannot_open(path, "journal has 2 names")


@pytest.mark.parametrize("end", ["-wal", "-shm"])
def test_a_log_beside_it_is_refused(path: Path, end: str) -> None:
    Path(f"{path}{end}").symlink_to("nowhere")
    cannot_open(path, f"has ledger.sqlite{end} beside it")


def test_it_is_checked_at_every_opening_and_drops_no_lock(path: Path) -> None:
    """Opening and closing a descriptor of the file would let a second writer in."""
    with Ledger.open(path, durable=False) as ledger, ledger._transaction("BEGIN IMMEDIATE"):
        ledger_file.check_mount(path, "ledger")
        program = "import sqlite3, sys; sqlite3.connect(sys.argv[1], 0).execute('BEGIN IMMEDIATE')"
        done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True)
        assert b"database is locked" in done.stderr


def test_none_is_made_in_a_folder_that_others_may_write_to(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o775)
    cannot_open(folder / "ledger.sqlite", "folder .* can be written by others", create=True)
    assert list(folder.iterdir()) == []
    Ledger.open(folder / "ledger.sqlite", create=True, durable=False).close()
