"""Nobody else can put another folder, link or program in place above what a ledger relies on."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flower_ldp.accounting.ledger import Ledger, Limit
from flower_ldp.accounting.ledger.anchor import CommandAnchor, FileAnchor
from flower_ldp.accounting.ledger.file import check_way
from flower_ldp.errors import LedgerError, RefusalError
from flower_ldp.privacy import Unit
from tests.fixtures import cannot_open, charge, new_ledger

if os.name != "posix":
    pytest.skip("modes, links and owners of POSIX", allow_module_level=True)

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
MARK = f"{'a' * 32} 5 {'b' * 64}"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A folder above the ledger's own."""
    top = tmp_path / "top"
    (top / "own").mkdir(parents=True, mode=0o700)
    new_ledger(top / "own" / "ledger.sqlite")
    return top


def spend(path: Path, message: int) -> int:
    """Return how many releases were made: one or none."""
    try:
        with Ledger.open(path) as ledger:
            ledger.charge(charge(message, 1.0), [Limit(Unit.CLIENT, "life", 2.0)])
    except (RefusalError, LedgerError):
        return 0
    return 1


def shared(top: Path) -> Path:
    top.chmod(0o777)
    return top / "own" / "ledger.sqlite"


def shared_by_group(top: Path) -> Path:
    top.chmod(0o775)
    return top / "own" / "ledger.sqlite"


def link_in_a_shared_folder(top: Path, target: Path) -> Path:
    other = top.parent / "other"
    other.mkdir()
    (other / "link").symlink_to(target)
    other.chmod(0o777)
    return other / "link"


def link_to_the_folder(top: Path) -> Path:
    return link_in_a_shared_folder(top, top / "own") / "ledger.sqlite"


def link_to_the_file(top: Path) -> Path:
    return link_in_a_shared_folder(top, Path("..", "top", "own", "ledger.sqlite"))


@pytest.mark.parametrize("way", [shared, shared_by_group, link_to_the_folder, link_to_the_file])
def test_a_ledger_that_others_can_replace_is_refused(
    top: Path, way: Callable[[Path], Path]
) -> None:
    path = way(top)
    cannot_open(path, r"may be replaced: folder .* written by others \(mode 077[57]\)")
    Ledger.open(path, read_only=True).close()


def test_an_older_folder_put_in_place_gives_nothing_back(top: Path) -> None:
    """Two releases of two, and the folder is exchanged for a copy that its user kept."""
    path = top / "own" / "ledger.sqlite"
    shutil.copytree(path.parent, top / "kept")
    top.chmod(0o777)
    released = sum(spend(path, message) for message in range(3))
    os.replace(top / "own", top / "away")
    os.replace(top / "kept", top / "own")
    released += sum(spend(path, message) for message in range(3, 6))
    assert released <= 2
    top.chmod(0o755)
    assert spend(path, 9) == 1


@AS_ROOT
@pytest.mark.parametrize("what", ["folder", "link"])
def test_a_folder_or_link_of_another_user_is_refused(top: Path, what: str) -> None:
    path = top / "own" / "ledger.sqlite"
    if what == "folder":
        os.chown(top, 4711, -1)
    else:
        path = top / "link" / "ledger.sqlite"
        path.parent.symlink_to("own")
        os.chown(path.parent, 4711, -1, follow_symlinks=False)
    cannot_open(path, rf"ledger .* may be replaced: {what} .* belongs to user 4711")


def test_sticky_folders_and_own_links_are_no_matter(top: Path, tmp_path: Path) -> None:
    top.chmod(0o1777)
    (tmp_path / "link").symlink_to(Path("top", "..", "top", "own"))
    Ledger.open(tmp_path / "link" / "ledger.sqlite").close()


def test_a_simulation_looks_at_the_ledgers_own_folder_alone(
    top: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="flower_ldp"):
        Ledger.open(shared_by_group(top), durable=False).close()
    assert caplog.text == ""


def test_links_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        check_way(tmp_path / "a" / "c", "ledger")


def program(folder: Path, text: str) -> CommandAnchor:
    script = folder / "mark"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return CommandAnchor((str(script),), timeout=0.5)


def test_an_anchor_that_others_can_replace_is_refused(top: Path) -> None:
    file, command = FileAnchor(top / "own" / "anchor"), program(top / "own", f"echo {MARK}")
    with Ledger.open(top / "own" / "ledger.sqlite") as ledger:
        ledger.make_anchor(file)
    assert command.read() is not None
    shared(top)
    for anchor, name in ((file, "anchor"), (command, "anchor command")):
        with pytest.raises(LedgerError, match=rf"{name} /.* may be replaced: folder .* by others"):
            anchor.read()


def test_what_a_program_leaves_running_is_not_waited_for_again(tmp_path: Path) -> None:
    """It left the program's group, so it is not killed: no thread and no descriptor waits."""
    anchor = program(tmp_path, f"setsid sleep 3 & echo {MARK}")
    open_before, threads = len(os.listdir("/dev/fd")), threading.active_count()
    start = time.monotonic()
    with pytest.raises(LedgerError, match="did not end and close its output within"):
        anchor.read()
    assert time.monotonic() - start < 2.5
    assert threading.active_count() == threads
    assert len(os.listdir("/dev/fd")) == open_before


def test_a_program_may_leave_running_what_has_another_output(tmp_path: Path) -> None:
    anchor = program(tmp_path, f"sleep 3 > /dev/null & echo {MARK}")
    assert anchor.read() is not None


def test_a_name_that_is_no_text_can_be_a_ledgers(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff?#%.sqlite"))
    with Ledger.open(path, create=True, durable=False) as ledger:
        assert ledger.mark().entries == 0
    assert path.is_file()
