"""The ledger under real faults: killed, shared, full, read-only.

In each: never more released than charged, no charge lost, and a text a person understands.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.ledger import Ledger
from flower_ldp.accounting.ledger.anchor import FileAnchor
from flower_ldp.errors import LedgerError
from flower_ldp.privacy import Unit
from tests.faults.ledger_worker import release

if sys.platform == "win32":
    pytest.skip("signals, limits and mounts of POSIX", allow_module_level=True)

WORKER = Path(__file__).with_name("ledger_worker.py")
ROOT = WORKER.parents[2]
NOBODY = 65_534
TENTH = 10**11
KILLS, RACES, SEED = 60, 25, 20_260_101


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def result(process: subprocess.Popen[str]) -> object:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


def check(path: Path, released: set[str]) -> int:
    """Verify the file; return the number of entries, all of which cost a tenth."""
    with Ledger.open(path) as ledger:
        found = ledger.verify()
        entries = list(ledger.entries())
        assert released <= {entry.message_id for entry in entries if entry.sealed}
        expected = dict.fromkeys(Unit, Amount(len(entries) * TENTH)) if entries else {}
        assert ledger.totals("data") == expected
        assert len(entries) == found.entries >= found.sealed >= len(released)
    return len(entries)


@pytest.mark.parametrize(("count", "anchored"), [(KILLS, False), (KILLS // 4, True)])
def test_killed_at_random_moments(tmp_path: Path, count: int, anchored: bool) -> None:
    path, anchor = tmp_path / "ledger.sqlite", FileAnchor(tmp_path / "mark")
    more = ["--anchor", anchor.path] if anchored else []
    told = result(start("kills", path, SEED, count, *more))
    assert isinstance(told, list)
    charged, asked, refused = (
        {words[1] for words in told if words[0] == kind} for kind in ("charged", "asked", "refused")
    )
    reports: dict[str, set[str]] = {}
    for words in told:
        if words[0] == "released":
            reports.setdefault(words[1], set()).add(words[2])
    assert all(len(given) == 1 for given in reports.values()), "a message was drawn for twice"
    entries = check(path, set(reports))
    if anchored:
        Ledger.open(path, anchor=anchor).close()
        marks = [int(words[1]) for words in told if words[0] == "anchored"]
        assert marks == sorted(marks)
        assert len(set(marks)) > count / 10
    with Ledger.open(path) as ledger:
        known = {entry.message_id: entry.sealed for entry in ledger.entries()}
    assert charged <= set(known) <= asked, "a charge was lost, or made up"
    assert all(not known[message] for message in refused), "refused although sealed"
    assert not refused & set(reports), "released although never sealed"
    # The kills did hit: in the middle of releases, with progress in between.
    assert len(reports) > count / 10
    assert refused or anchored
    assert entries - len(charged) <= count


def test_killed_at_each_step_of_the_anchor(tmp_path: Path) -> None:
    """Whatever left is in the ledger and before the anchor; whatever happened, it goes on."""
    path, anchor = tmp_path / "ledger.sqlite", tmp_path / "mark"
    found = result(start("steps", path, "--anchor", anchor))
    assert isinstance(found, list)
    assert len(found) > 6
    *killed, whole = found
    assert [one["killed"] for one in found] == [True] * len(killed) + [False]
    assert whole["told"] == ["charged", "released"]
    for one in killed:
        assert one["told"] == []
        assert one["entries"] - 1 <= one["anchored"] <= one["entries"]
    # Some died between ledger and anchor, some after the anchor and before the release.
    behind = [one["entries"] - one["anchored"] for one in killed]
    assert set(behind) == {0, 1}


def test_a_whole_and_a_part_never_both_fit(tmp_path: Path) -> None:
    """What is spent on all of the data and on a part of it adds up, and is checked together."""
    path = tmp_path / "ledger.sqlite"
    Ledger.open(path, create=True).close()
    racers = [start("race", path, part) for part in ("", "#cut/0", "#other/0")]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for number in range(RACES):
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(f"data-{number}\n")
            racer.stdin.flush()
        answers = [racer.stdout.readline() for racer in racers if racer.stdout is not None]
        assert sorted(answers) == ["0\n", "0\n", "1\n"], number
    for racer in racers:
        racer.communicate(timeout=60)
    with Ledger.open(path) as ledger:
        assert ledger.verify().entries == RACES
        parts = [entry.data_id.partition("#")[2] for entry in ledger.entries()]
    assert len(set(parts)) > 1, "nobody raced"


def test_five_processes_share_one_limit(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path, create=True):
        pass
    processes = [start("share", path, name, "8.0") for name in range(5)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    released = [result(process) for process in processes]
    assert sum(map(int, map(str, released))) == check(path, set()) == 80


def test_limit_on_file_size(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    fill(path, 3)
    answer = result(start("once", path, "late", "--file-size", path.stat().st_size))
    while answer == "released":  # pages may have had room
        answer = result(start("once", path, os.urandom(4).hex(), "--file-size", 30_000))
    assert "cannot be used" in str(answer)
    assert str(path) in str(answer)
    before = check(path, {"0", "1", "2"})
    assert result(start("once", path, "later")) == "released"
    assert check(path, {"later"}) == before + 1


def fill(path: Path, count: int) -> None:
    with Ledger.open(path, create=True) as ledger:
        for message in range(count):
            release(ledger, str(message), 1e6)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        done = False
    if not done:
        pytest.skip("may not mount; a limit on file size and a folder's mode are tested instead")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def release_on(ledger: Ledger, released: set[str]) -> None:
    while True:
        name = str(len(released))
        release(ledger, name, 1e6)
        released.add(name)


def test_disk_full(small_disk: Path) -> None:
    path = small_disk / "ledger.sqlite"
    released: set[str] = set()
    with Ledger.open(path, create=True) as ledger:
        with pytest.raises(LedgerError, match="the disk is full"):
            release_on(ledger, released)
        assert len(released) > 10
        remount(small_disk, "size=1m")
        release(ledger, "after", 1e6)
    assert len(released) + 1 <= check(path, released | {"after"}) <= len(released) + 2


def test_disk_full_while_it_is_made(small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes(250_000))
    with pytest.raises(LedgerError, match="the disk is full"):
        Ledger.open(small_disk / "ledger.sqlite", create=True)
    (small_disk / "other").unlink()
    assert list(small_disk.iterdir()) == []
    fill(small_disk / "ledger.sqlite", 1)


def test_read_only_file_system(small_disk: Path) -> None:
    path = small_disk / "ledger.sqlite"
    fill(path, 2)
    with Ledger.open(path) as ledger:
        pass
    remount(small_disk, "ro")
    with pytest.raises(LedgerError, match="cannot be written"):
        Ledger.open(path)
    with pytest.raises(LedgerError, match="Read-only file system"):
        Ledger.open(small_disk / "new.sqlite", create=True)
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.verify().entries == 2
        with pytest.raises(LedgerError, match="cannot be written"):
            release(ledger, "x", 1e6)
    remount(small_disk, "rw")
    assert check(path, {"0", "1"}) == 2


@pytest.fixture
def reachable_folder() -> Iterator[Path]:
    """A folder that any user can reach, of the user who does the work."""
    folder = Path(tempfile.mkdtemp())
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o700)
    shutil.rmtree(folder)


def test_read_only_folder(reachable_folder: Path) -> None:
    # A folder's mode does not bind root: then the work is done as another user.
    user = ("--user", NOBODY) if os.geteuid() == 0 else ()
    path = reachable_folder / "ledger.sqlite"
    assert result(start("once", path, "0", *user)) == "released"
    Path(f"{path}-journal").unlink(missing_ok=True)
    reachable_folder.chmod(0o555)
    answer = str(result(start("once", path, "1", *user)))
    assert "folder must be writable" in answer
    assert "cannot be written" in answer
    assert "cannot be used" in str(result(start("once", reachable_folder / "new", "1", *user)))
    reachable_folder.chmod(0o755)
    assert result(start("once", path, "2", *user)) == "released"
    with Ledger.open(path, read_only=True) as ledger:
        assert [entry.message_id for entry in ledger.entries()] == ["0", "2"]
        ledger.verify()
