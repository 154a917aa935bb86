"""A rollback anchor: what is ahead of what, what fails closed, and who may move it."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flower_ldp.accounting.ledger import Ledger, Limit, Mark
from flower_ldp.accounting.ledger.anchor import Anchor, CommandAnchor, FileAnchor, anchor_of
from flower_ldp.errors import LedgerError, RefusalError
from flower_ldp.privacy import Unit
from tests.fixtures import cannot_open, charge

LIMITS = [Limit(Unit.CLIENT, "life", 100.0)]
POSIX = pytest.mark.skipif(os.name != "posix", reason="modes and owners of POSIX")
#: A counter on another machine: a file that only the command knows.
STORE = """#!/bin/sh
if [ "$1" = write ]; then cat > '{store}.new' && mv '{store}.new' '{store}'; fi
if [ -e '{store}' ]; then cat '{store}'; fi
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a ledger with two entries."""
    path = tmp_path / "ledger" / "ledger.sqlite"
    path.parent.mkdir(mode=0o700)
    with Ledger.open(path, create=True, durable=False) as ledger:
        for message in range(2):
            ledger.seal(ledger.charge(charge(message), LIMITS), b"report")
    return path


def charged(path: Path, *messages: str) -> None:
    """Charge without an anchor, as a process does that is killed before it moves one."""
    with Ledger.open(path, durable=False) as ledger:
        for message in messages:
            ledger.charge(charge(message), LIMITS)


def program(folder: Path, text: str) -> CommandAnchor:
    script = folder / "anchor-command"
    script.write_text(text)
    script.chmod(0o700)
    return CommandAnchor((str(script),), timeout=20.0)


@pytest.fixture(params=["file", pytest.param("command", marks=POSIX)])
def anchor(request: pytest.FixtureRequest, tmp_path: Path, path: Path) -> Anchor:
    """Return an anchor that was made from the ledger."""
    folder = tmp_path / "elsewhere"
    folder.mkdir(mode=0o700)
    made: Anchor = FileAnchor(folder / "mark")
    if request.param == "command":
        made = program(folder, STORE.format(store=folder / "store"))
    with Ledger.open(path) as ledger:
        ledger.make_anchor(made)
    return made


def use(path: Path, anchor: Anchor, message: object) -> bytes | None:
    with Ledger.open(path, anchor=anchor, durable=False) as ledger:
        receipt = ledger.charge(charge(message), LIMITS)
    if receipt.report is None:
        with Ledger.open(path, anchor=anchor, durable=False) as ledger:
            ledger.seal(receipt, b"report")
    return receipt.report


def test_it_moves_at_every_charge(path: Path, anchor: Anchor) -> None:
    for message in (2, 3):
        assert use(path, anchor, message) is None
        with Ledger.open(path, anchor=anchor) as ledger:
            assert anchor.read() == ledger.mark() != Mark(ledger.mark().ledger, 2, "")
    assert use(path, anchor, 3) == b"report"


def test_a_ledger_that_was_set_back_is_refused(path: Path, anchor: Anchor) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    use(path, anchor, 2)
    newest = path.with_name("newest")
    shutil.copy(path, newest)
    shutil.copy(copy, path)
    cannot_open(path, "was set back: .* has entry 3, and it ends with 2", anchor=anchor)
    charged(path, "other", "more")
    cannot_open(path, "set back and used again: .* another entry 3", anchor=anchor)
    shutil.copy(newest, path)
    assert use(path, anchor, 2) == b"report"


def test_a_ledger_set_back_while_it_is_open_is_refused(path: Path, anchor: Anchor) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    with Ledger.open(path, anchor=anchor, durable=False) as ledger:
        receipt = ledger.charge(charge(2), LIMITS)
        shutil.copyfile(copy, path)
        with pytest.raises(LedgerError, match="set back or replaced"):
            ledger.seal(receipt, b"report")


def test_a_ledger_ahead_of_its_anchor_was_killed_and_goes_on(path: Path, anchor: Anchor) -> None:
    charged(path, "lost", "too")
    with Ledger.open(path, anchor=anchor) as ledger:
        mark = anchor.read()
        assert mark is not None
        assert mark.entries == 2
        with pytest.raises(RefusalError, match="no report was sealed"):
            ledger.charge(charge("lost"), LIMITS)
    assert use(path, anchor, "next") is None
    with Ledger.open(path) as ledger:
        assert anchor.read() == ledger.mark()


def test_no_stored_report_leaves_before_its_anchor(path: Path, anchor: Anchor) -> None:
    """A report that was sealed without the anchor is given again only when that has moved."""
    with Ledger.open(path, durable=False) as ledger:
        ledger.seal(ledger.charge(charge(2), LIMITS), b"report")
    assert use(path, anchor, 2) == b"report"
    with Ledger.open(path) as ledger:
        assert anchor.read() == ledger.mark()


def test_a_charge_that_gets_its_report_after_all_is_anchored_first(
    path: Path, anchor: Anchor
) -> None:
    """The guarded node answers for a process that was killed between ledger and anchor."""
    charged(path, "killed")
    with Ledger.open(path, anchor=anchor, durable=False) as ledger:
        receipt = ledger.unsealed(charge("killed"))
        assert anchor.read() == ledger.mark()
        ledger.seal(receipt, b"report")


def test_it_survives_what_is_not_charged(path: Path, anchor: Anchor) -> None:
    with Ledger.open(path, anchor=anchor, durable=False) as ledger:
        ledger.count("data", "acknowledged")
        with pytest.raises(RefusalError):
            ledger.charge(charge("dear"), [Limit(Unit.CLIENT, "life", 0.1)])
    use(path, anchor, 2)
    with Ledger.open(path, anchor=anchor, read_only=True) as ledger:
        assert ledger.verify().mark == anchor.read()


def test_another_ledgers_anchor_is_refused(path: Path, anchor: Anchor, tmp_path: Path) -> None:
    Ledger.open(tmp_path / "other", create=True).close()
    charged(tmp_path / "other", *"01234")
    with Ledger.open(tmp_path / "other") as other, pytest.raises(LedgerError, match="is that of"):
        other.make_anchor(anchor)
    cannot_open(tmp_path / "other", "is that of ledger", anchor=anchor)
    use(path, anchor, 2)


def test_a_restored_backup_takes_its_owners_word(path: Path, anchor: Anchor) -> None:
    shutil.copy(path, path.with_name("backup"))
    use(path, anchor, 2)
    shutil.copy(path.with_name("backup"), path)
    with Ledger.open(path, durable=False) as ledger:
        with pytest.raises(LedgerError, match="was set back"):
            ledger.make_anchor(anchor)
        ledger.make_anchor(anchor, replace=True)
    use(path, anchor, 2)


def test_a_missing_ledger_is_never_made_beside_an_anchor(path: Path, anchor: Anchor) -> None:
    for file in path.parent.iterdir():
        file.unlink()
    with pytest.raises(LedgerError, match="does not exist"):
        Ledger.open(path, create=True, anchor=anchor)
    assert not path.exists()
    Ledger.open(path, create=True).close()
    cannot_open(path, "is that of ledger", anchor=anchor)


def test_a_moved_ledger_keeps_its_anchor(path: Path, anchor: Anchor, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    os.replace(path, moved)
    use(moved, anchor, 2)


def test_no_gate_makes_an_anchor(path: Path, tmp_path: Path) -> None:
    anchor = FileAnchor(tmp_path / "mark")
    for durable in (True, False):
        with pytest.raises(LedgerError, match=r"holds no mark.*flower-ldp ledger anchor"):
            Ledger.open(path, anchor=anchor, durable=durable)
    assert not anchor.path.exists()


def linked(file: Path) -> None:
    os.replace(file, file.with_name("other"))
    file.symlink_to(file.with_name("other"))


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


SPOILED: dict[str, Callable[[Path], object]] = {
    "missing": lambda file: file.unlink(),
    "link": linked,
    "hard link": lambda file: os.link(file, file.with_name("other")),
    "mode": lambda file: file.chmod(0o666),
    "folder": lambda file: file.parent.chmod(0o777),
    "pipe": pipe,
    "length": lambda file: file.write_bytes(file.read_bytes()[:-9]),
    "text": lambda file: file.write_bytes(bytes(range(256)) * 4_000),
}


@POSIX
@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
def test_a_file_that_cannot_be_relied_on_is_refused(
    path: Path, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir(mode=0o700)
    anchor = FileAnchor(folder / "mark")
    with Ledger.open(path, durable=False) as ledger:
        ledger.make_anchor(anchor)
    with Ledger.open(path, anchor=anchor, durable=False) as ledger:
        spoil(anchor.path)
        for _ in range(2):
            with pytest.raises(LedgerError, match="anchor /"):
                ledger.charge(charge("more"), LIMITS)
        assert ledger.mark().entries == 2
    cannot_open(path, "anchor /.{1,400}$", anchor=anchor)


@POSIX
def test_a_file_that_cannot_be_written_releases_nothing_and_wastes_one_charge(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anchor = FileAnchor(tmp_path / "mark")
    with Ledger.open(path, durable=False) as ledger:
        ledger.make_anchor(anchor)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with Ledger.open(path, anchor=anchor, durable=False) as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            for message in range(2, 6):
                with pytest.raises(LedgerError, match="No space left"):
                    ledger.charge(charge(message), LIMITS)
            assert ledger.mark().entries == 3
        with pytest.raises(RefusalError, match="no report was sealed"):
            ledger.charge(charge(2), LIMITS)
        assert ledger.charge(charge(3), LIMITS).report is None


BROKEN = {
    "No such file": "#!/no/such/interpreter\n",
    "Exec format error": "garbage without an interpreter",
    "ended with status 3": "#!/bin/sh\nexit 3\n",
    "ended with status -9": "#!/bin/sh\nkill -9 $$\n",
    "prints what is no mark": "#!/bin/sh\nyes\n",
    "says 'none": "#!/bin/sh\necho none at all\n",
    "holds no mark": "#!/bin/sh\n",
}


@POSIX
@pytest.mark.parametrize("text", BROKEN)
def test_a_command_that_fails_releases_nothing(path: Path, tmp_path: Path, text: str) -> None:
    cannot_open(path, text, anchor=program(tmp_path, BROKEN[text]))


class Raising(Anchor):
    """An anchor of somebody else's making."""

    def read(self) -> Mark | None:
        raise KeyError("no such key")

    def write(self, mark: Mark) -> None:
        raise KeyError("no such key")


def test_whatever_an_anchor_raises_refuses(path: Path) -> None:
    cannot_open(path, "no such key", anchor=Raising())


@POSIX
@pytest.mark.parametrize("script", ["sleep 60", "sleep 60 & exec sleep 60", "sleep 60 & exit 0"])
def test_a_command_that_hangs_is_ended(path: Path, tmp_path: Path, script: str) -> None:
    anchor = CommandAnchor(program(tmp_path, f"#!/bin/sh\n{script}\n").argv, timeout=0.5)
    threads, start = threading.active_count(), time.monotonic()
    cannot_open(path, r" within 0\.5 seconds", anchor=anchor)
    assert time.monotonic() - start < 30
    while threading.active_count() > threads:
        assert time.monotonic() - start < 30
        time.sleep(0.01)


@POSIX
def test_a_command_that_does_not_store_releases_nothing(path: Path, tmp_path: Path) -> None:
    with Ledger.open(path) as ledger:
        mark = ledger.mark()
    anchor = program(tmp_path, f"#!/bin/sh\necho {mark}\n")
    with (
        Ledger.open(path, anchor=anchor) as ledger,
        pytest.raises(LedgerError, match="stores another mark"),
    ):
        ledger.charge(charge(2), LIMITS)


@POSIX
def test_a_command_that_others_can_change_is_refused(path: Path, tmp_path: Path) -> None:
    anchor = program(tmp_path, "#!/bin/sh\n")
    Path(anchor.argv[0]).chmod(0o722)
    cannot_open(path, "can be written by others", anchor=anchor)


def test_threads_move_it_forward_only(path: Path, anchor: Anchor) -> None:
    seen: list[int] = []

    class Watched(Anchor):
        def read(self) -> Mark | None:
            return anchor.read()

        def write(self, mark: Mark) -> None:
            seen.append(mark.entries)
            anchor.write(mark)

    def work(name: int) -> None:
        with Ledger.open(path, anchor=Watched(), durable=False) as ledger:
            for message in range(3):
                receipt = ledger.charge(charge(f"{name}-{message}"), LIMITS)
                mark = anchor.read()
                assert mark is not None
                assert mark.entries >= receipt.entry
                done.append(receipt.entry)

    done: list[int] = []
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(work, range(3)))
    assert sorted(done) == list(range(3, 12))
    assert seen == sorted(seen)
    with Ledger.open(path) as ledger:
        assert anchor.read() == ledger.mark()


def test_what_a_policy_names(tmp_path: Path) -> None:
    assert anchor_of() is None
    assert anchor_of(file=tmp_path / "mark") == FileAnchor(tmp_path / "mark")
    assert anchor_of(command=["/bin/anchor", "x"]) == CommandAnchor(("/bin/anchor", "x"))
    for wrong in (
        {"file": "mark"},
        {"command": ["anchor"]},
        {"command": []},
        {"file": tmp_path / "mark", "command": ["/bin/anchor"]},
    ):
        with pytest.raises(ValueError, match="anchor"):
            anchor_of(**wrong)  # type: ignore[arg-type]
