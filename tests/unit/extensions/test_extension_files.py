"""A distribution is read as it lies there, or refused: what the digest covers is all of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from flower_ldp.errors import ConfigError
from flower_ldp.extensions import read_distribution
from tests.extension_world import DISTRIBUTION, ENTRY, INFORMATION, NAME, Installed

METADATA, ENTRIES = f"{INFORMATION}/METADATA", f"{INFORMATION}/entry_points.txt"
Spoil = Callable[[Path], object]


def read(installed: Installed) -> str:
    return read_distribution(DISTRIBUTION, installed.path).digest


def test_name_version_entry_and_sources_are_read(tmp_path: Path) -> None:
    found = read_distribution("One_Bit", Installed(tmp_path).write().path)
    assert (found.name, found.version) == (DISTRIBUTION, "0.1.0")
    assert found.entries == {NAME: ("one_bit.mechanism", "extension")}
    assert set(found.sources) == {"one_bit/__init__.py", "one_bit/mechanism.py"}
    assert re.fullmatch("sha256:[0-9a-f]{64}", found.digest)


def test_each_byte_of_each_file_is_in_the_digest_and_its_path(tmp_path: Path) -> None:
    installed = Installed(tmp_path).write()
    before = read(installed)
    for name in (METADATA, ENTRIES, "one_bit/mechanism.py"):
        path = tmp_path / name
        text = path.read_bytes()
        path.write_bytes(text + b"\n")
        assert read(installed) != before, name
        path.write_bytes(text)
    assert read(installed) == before
    files = dict(installed.files)
    files["one_bit/other.py"] = files.pop("one_bit/mechanism.py")
    entry = installed.entry.replace("mechanism:", "other:")
    assert read(Installed(tmp_path / "moved", files, entry).write()) != before


def test_what_the_installer_and_python_add_is_not(tmp_path: Path) -> None:
    installed = Installed(tmp_path).write()
    before = read(installed)
    (tmp_path / INFORMATION / "INSTALLER").write_text("uv\n")
    compiled = tmp_path / "one_bit" / "__pycache__"
    compiled.mkdir()
    for name in ("mechanism", "more"):
        (compiled / f"{name}.cpython-311.pyc").write_bytes(b"anything")
    assert read(installed) == before


def _link(name: str, to: str) -> Spoil:
    def link(site: Path) -> None:
        path, target = site / name, site / to
        if path.exists():
            path.rename(target)
        else:
            path.parent.mkdir(exist_ok=True)
            target.mkdir(exist_ok=True)
        path.symlink_to(target)

    return link


def _file(name: str, text: str = "") -> Spoil:
    return lambda site: (site / name).write_text(text)


def _row(name: str, made: bool = True) -> Spoil:
    """List a file, and make it where it can be made."""

    def add(site: Path) -> None:
        path = site / INFORMATION / "RECORD"
        path.write_text(f"{path.read_text()}{name},,\n")
        if made and not name.startswith(("/", "..")) and name.isascii():
            (site / name).parent.mkdir(exist_ok=True)
            (site / name).touch()

    return add


def _changed(name: str, old: str, new: str) -> Spoil:
    def change(site: Path) -> None:
        text = (site / name).read_text()
        assert old in text
        (site / name).write_text(text.replace(old, new))

    return change


EDITABLE = '{"url": "file:///here", "dir_info": {"editable": true}}'
IMPORT = ("one_bit/mechanism.py", "import math\n")
EGG = "one_bit-0.1.0.egg-info"


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (_link("one_bit/__init__.py", "elsewhere.py"), "is a link"),
        (_link("one_bit", "real"), "is a link"),
        (_link("one_bit/more", "real"), "does not name"),
        (_link("one_bit/__pycache__/more.pyc", "."), "does not name"),
        (_file(f"{INFORMATION}/direct_url.json", EDITABLE), "editable"),
        (lambda site: (site / "One.Bit-0.1.0.dist-info").mkdir(), "installed 2 times"),
        (_file("one-bit.egg-link", "/somewhere/else\n."), "installed 2 times"),
        (lambda site: (site / INFORMATION).rename(site / EGG), "not installed from a wheel"),
        (_file("one_bit/more.py", "print()"), "does not name"),
        (_file(f"{INFORMATION}/more.txt", "print()"), "does not name"),
        (_row("../../bin/one-bit"), "outside of it"),
        (_row("/etc/passwd"), "outside of it"),
        (_row("one_bit/./more.py"), "outside of it"),
        (_row("one_bit/\uff4dore.py"), "no plain name"),
        (_row("one_bit/MECHANISM.py"), "a file twice"),
        (_row("one_bit/core.so"), "not Python's source"),
        (_row("one_bit.pth"), "not Python's source"),
        (_row("tests/test_it.py"), "one package or module"),
        (_row("one_bit/gone.py", made=False), "cannot be read"),
        (_changed(*IMPORT, "import math, scipy\n"), "not cover"),
        (_changed(*IMPORT, "def f(): import one_bit.more\n"), "relatively"),
        (_changed(*IMPORT, "import (\n"), "cannot be read"),
        (_changed(METADATA, "Name: one-bit", "Name: two-bits"), "metadata are those of"),
        (_changed(METADATA, "Version: 0.1.0\n", ""), "no version"),
        (_changed(ENTRIES, "one_bit.mechanism:", "os:"), "entry point"),
        (_changed(ENTRIES, ":extension", ":a.b"), "entry point"),
        (_changed(ENTRIES, "]\n", "\n"), "cannot be read"),
    ],
)
def test_what_cannot_be_judged_is_refused(tmp_path: Path, spoil: Spoil, complaint: str) -> None:
    installed = Installed(tmp_path).write()
    spoil(tmp_path)
    with pytest.raises(ConfigError, match=complaint):
        read(installed)


DEEP = {"one_bit/__init__.py": "", "one_bit/mechanism.py": f"x = {'-' * 200_000}1\n"}


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"numpy/__init__.py": ""}, "another's"),
        ({"flower_ldp/__init__.py": ""}, "another's"),
        ({"json/__init__.py": ""}, "another's"),
        ({"one_bit/mechanism.py": ""}, r"has no __init__\.py"),
        (DEEP, "cannot be read"),
    ],
)
def test_files_of_no_own_package(tmp_path: Path, files: dict[str, str], complaint: str) -> None:
    installed = Installed(tmp_path, files, ENTRY if files is DEEP else "").write()
    with pytest.raises(ConfigError, match=complaint):
        read(installed)
    with pytest.raises(ConfigError, match="one-bit is not installed here"):
        read_distribution(DISTRIBUTION, [str(tmp_path / "one_bit"), str(tmp_path / "none")])


def test_a_folder_that_is_looked_in_twice_holds_it_once(tmp_path: Path) -> None:
    installed = Installed(tmp_path).write()
    again = [*installed.path, f"{tmp_path}/../{tmp_path.name}", *installed.path]
    assert read_distribution(DISTRIBUTION, again).digest == installed.digest


@pytest.mark.parametrize(("limit", "most"), [("_MOST_BYTES", 500), ("_MOST_FILES", 2)])
def test_there_is_an_end_to_its_size(
    limit: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"flower_ldp.extensions.loading.{limit}", most)
    with pytest.raises(ConfigError, match=f"more than {most}"):
        read(Installed(tmp_path).write())


def test_a_section_of_defaults_names_no_extension(tmp_path: Path) -> None:
    entry = f"[DEFAULT]\nother = one_bit.mechanism:extension\n{ENTRY}"
    Installed(tmp_path, entry=entry).write()
    assert list(read_distribution(DISTRIBUTION, [str(tmp_path)]).entries) == [NAME]
