"""Files that are whole: what is under the name, what else is left, and when it is on disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flower_ldp.safe_files import make_whole, replacing, sync_folder

POSIX = pytest.mark.skipif(os.name != "posix", reason="modes and folders as POSIX has them")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Yield the path of a file; in the end nothing but it and the kept one is there."""
    yield tmp_path / "model.pt"
    assert {found.name for found in tmp_path.iterdir()} <= {"model.pt", "before.pt"}


def write(path: Path, content: bytes, **named: Any) -> None:
    with replacing(path, **named) as file:
        file.write(content)


def fails_after(content: bytes) -> Callable[[Path], None]:
    def attempt(path: Path) -> None:
        with replacing(path) as file:
            file.write(content)
            raise KeyboardInterrupt

    return attempt


def test_a_file_is_made_and_replaced(path: Path) -> None:
    write(path, b"one")
    write(path, b"two")
    assert path.read_bytes() == b"two"


def test_the_old_file_stays_until_the_block_ends(path: Path) -> None:
    write(path, b"old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def test_a_block_that_fails_leaves_the_old_file_alone(path: Path) -> None:
    write(path, b"old")
    with pytest.raises(KeyboardInterrupt):
        fails_after(b"new")(path)
    assert path.read_bytes() == b"old"


def test_where_there_was_none_a_block_that_fails_leaves_none(path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fails_after(b"new")(path)
    assert not path.exists()


def test_the_old_file_can_be_kept(path: Path) -> None:
    kept = path.with_name("before.pt")
    write(path, b"old")
    write(path, b"new", keep=kept)
    assert (path.read_bytes(), kept.read_bytes()) == (b"new", b"old")


def test_two_writers_at_once_do_not_meet(path: Path) -> None:
    with replacing(path) as one:
        one.write(b"one")
        write(path, b"other")
        assert path.read_bytes() == b"other"
    assert path.read_bytes() == b"one"


@POSIX
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_the_new_file_has_the_mode(path: Path, mode: int) -> None:
    old = os.umask(0o022)
    try:
        write(path, b"old")
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        write(path, b"new", mode=mode)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_what_is_there_is_not_made_again(path: Path) -> None:
    make_whole(path, b"first")
    make_whole(path, b"second")
    assert path.read_bytes() == b"first"
    assert os.name != "posix" or stat.S_IMODE(path.stat().st_mode) == 0o600


@POSIX
@pytest.mark.parametrize(("act", "name"), [(write, "replace"), (make_whole, "link")])
def test_the_file_is_on_disk_before_its_name_and_the_name_before_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path, bytes], None], name: str
) -> None:
    done: list[str] = []
    sync, named = os.fsync, getattr(os, name)

    def synced(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def linked(*given: Any) -> None:
        done.append(name)
        named(*given)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, name, linked)
    act(path, b"content")
    assert done == ["file", name, "folder"]


@POSIX
def test_a_full_disk_is_told_and_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for act in (write, make_whole):
            with pytest.raises(OSError, match="No space"):
                act(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "none" / "file", b"")
    if os.name == "posix":
        with pytest.raises(FileNotFoundError):
            sync_folder(tmp_path / "none")
