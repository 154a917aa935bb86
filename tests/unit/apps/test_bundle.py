"""Bundles as bytes: their digest, and what is refused of those that Flower would never make."""

from __future__ import annotations

import stat
import sys
import tracemalloc
import warnings
import zipfile
from hashlib import sha256
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from flower_ldp.app_digests import (
    MOST_PACKED,
    BundleError,
    bundle_of,
    differences,
    digest_of,
    read_bundle,
    this_environment,
)
from tests.bundles import FILES, PYPROJECT, app_folder, packed

LINK = zipfile.ZipInfo("pinned_app/data")
LINK.external_attr = (stat.S_IFLNK | 0o777) << 16


def test_the_digest_is_that_of_the_bytes_and_the_same_for_the_same_folder(tmp_path: Path) -> None:
    first = bundle_of(app_folder(tmp_path / "a"))
    assert first == bundle_of(app_folder(tmp_path / "b"))
    found = read_bundle(first)
    assert found.digest == digest_of(first) == f"sha256:{sha256(first).hexdigest()}"
    assert (found.app, found.version) == ("ward/pinned-app", "1.0.0")
    assert set(found.files) == set(FILES)
    (tmp_path / "one.fab").write_bytes(first)
    assert bundle_of(tmp_path / "one.fab") == first


def test_each_byte_of_a_bundle_counts() -> None:
    whole = packed()
    for at in range(0, len(whole), 97):
        changed = bytearray(whole)
        changed[at] ^= 1
        assert digest_of(bytes(changed)) != digest_of(whole)


@pytest.mark.parametrize(
    "name",
    [
        "../outside.py",
        "pinned_app/../../outside.py",
        "/etc/outside.py",
        "..\\outside.py",
        "C:outside.py",
        "pinned_app//twice.py",
        "./pinned_app/here.py",
        "pinned_app/a\nb.py",
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(name: str) -> None:
    files = {**FILES, name: "1"}
    with pytest.raises(BundleError, match="no plain path"):
        read_bundle(packed(files))


def test_a_link_is_refused() -> None:
    with pytest.raises(BundleError, match="is a link"):
        read_bundle(packed(more=[(LINK, "/srv")], listed={**FILES, LINK.filename: "/srv"}))


@pytest.mark.parametrize("name", ["pinned_app/client.py", "pinned_app/CLIENT.py"])
def test_a_name_that_stands_twice_is_refused(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        content = packed(more=[(name, "app = 2")])
    with pytest.raises(BundleError, match="stands twice"):
        read_bundle(content)


@pytest.mark.parametrize(
    "content",
    [
        packed(more=[("sitecustomize.py", "1")]),
        packed(listed={**FILES, "pinned_app/client.py": "app = 1"}),
        packed(listed={**FILES, "gone.py": ""}),
    ],
    ids=["more", "other", "less"],
)
def test_files_that_are_not_as_the_list_says_are_refused(content: bytes) -> None:
    with pytest.raises(BundleError, match="own list"):
        read_bundle(content)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "cannot be read"),
        (b"PK" + bytes(100), "cannot be read"),
        (packed()[:-40], "cannot be read"),
        (bytes(MOST_PACKED + 1), "more than"),
        (packed({"a.py": ""}), "pyproject"),
        (packed({**FILES, "pyproject.toml": "x"}), "cannot be read"),
        (packed({**FILES, "pyproject.toml": "[project]"}), "cannot be read"),
        (
            packed({**FILES, "pyproject.toml": PYPROJECT.replace('"ward"', '"../ward"')}),
            "no name of a publisher",
        ),
        (
            packed({**FILES, "pyproject.toml": PYPROJECT.replace('"1.0.0"', '"1/../.."')}),
            "no name of a publisher",
        ),
    ],
)
def test_what_is_no_bundle_is_refused(content: bytes, complaint: str) -> None:
    with pytest.raises(BundleError, match=complaint):
        read_bundle(content)


def test_a_bundle_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flower_ldp.app_digests.MOST_UNPACKED", 100)
    with pytest.raises(BundleError, match="unpacks to more"):
        read_bundle(packed())


def test_a_folder_that_is_no_app_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone.fab"):
        with pytest.raises(BundleError, match=str(path)):
            bundle_of(path)


def test_what_differs_is_told_by_file(tmp_path: Path) -> None:
    changed = {"pinned_app/client.py": "app = 1", "pinned_app/more.py": ""}
    one = read_bundle(bundle_of(app_folder(tmp_path / "a")))
    other = read_bundle(bundle_of(app_folder(tmp_path / "b", changed)))
    assert differences(one, other) == {
        "only in the first": [],
        "only in the second": ["pinned_app/more.py"],
        "differs": ["pinned_app/client.py"],
    }
    assert one.digest != other.digest


def test_reading_a_bundle_imports_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')"
    names = ("sitecustomize.py", "usercustomize.py", "conftest.py", "json.py", "evil.pth")
    content = packed({**FILES, **dict.fromkeys(names, trap)})
    monkeypatch.chdir(tmp_path)
    modules, path = set(sys.modules), list(sys.path)
    assert set(names) < set(read_bundle(content).files)
    assert not (tmp_path / "ran").exists()
    assert list(tmp_path.iterdir()) == []
    assert sys.path == path
    assert not {one for one in set(sys.modules) - modules if "pinned_app" in one}


def distribution(folder: Path, record: str | None, version: str = "1.0") -> PathDistribution:
    path = folder / f"thing-{version}.dist-info"
    path.mkdir(parents=True, exist_ok=True)
    (path / "METADATA").write_text(f"Name: Thing\nVersion: {version}\n")
    if record is not None:
        (path / "RECORD").write_text(record)
    return PathDistribution(path)


def test_an_environment_is_known_by_its_interpreter_and_records(tmp_path: Path) -> None:
    record = "thing.py,sha256=abc,1\n"
    one = this_environment([distribution(tmp_path / "a", record)])
    assert one.installed == (("thing", "1.0", sha256(record.encode()).hexdigest()),)
    assert one.digest == this_environment([distribution(tmp_path / "b", record)]).digest
    others = [
        this_environment([distribution(tmp_path / "c", "thing.py,sha256=abd,1\n")]),
        this_environment([distribution(tmp_path / "d", record, "1.1")]),
        this_environment([distribution(tmp_path / "e", None)]),
        this_environment([]),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 5
    assert sys.version in one.python


def lying(name: str, size: int, said: int) -> bytes:
    """Return a bundle with a file that unpacks to more than both of its headers say."""
    content = bytearray(packed({**FILES, name: "0" * size}, listed=FILES, method=8))
    for _ in range(2):
        at = content.index(size.to_bytes(4, "little"))
        content[at : at + 4] = said.to_bytes(4, "little")
    return bytes(content)


def test_a_file_that_unpacks_to_more_than_it_says_takes_no_memory() -> None:
    content = lying("pinned_app/data.json", 12_345_678, 10)
    tracemalloc.start()
    try:
        with pytest.raises(BundleError):
            read_bundle(content)
        assert tracemalloc.get_traced_memory()[1] < 1 << 21
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_only_packing_whose_size_is_bounded_is_unpacked(method: int) -> None:
    with pytest.raises(BundleError, match="packed in a way"):
        read_bundle(packed(method=method))


@pytest.mark.parametrize(
    "name",
    [
        "pinned_app/__pycache__/client.cpython-311.pyc",
        "pinned_app/client.pyc",
        "pinned_app/client.cpython-311-x86_64-linux-gnu.so",
        "pinned_app/client.abi3.SO",
        "pinned_app/client.pyd",
    ],
)
def test_what_runs_in_the_place_of_the_source_that_was_read_is_refused(name: str) -> None:
    with pytest.raises(BundleError, match="is compiled"):
        read_bundle(packed({**FILES, name: "app = 1"}))


def test_two_names_that_some_disks_hold_for_one_are_refused() -> None:
    files = {**FILES, "pinned_app/caf\u00e9.py": "1", "pinned_app/cafe\u0301.py": "2"}
    with pytest.raises(BundleError, match="stands twice"):
        read_bundle(packed(files))


def test_a_bundle_that_differs_in_modes_or_order_alone_is_another() -> None:
    moded = zipfile.ZipInfo("pinned_app/data.json")
    moded.external_attr = (stat.S_IFREG | 0o4755) << 16
    listed = {**FILES, "pinned_app/data.json": "{}"}
    one = packed(more=[(moded, "{}")], listed=listed)
    others = [packed(listed), packed(dict(reversed(listed.items())))]
    assert len({digest_of(each) for each in (one, *others)}) == 3
    for other in others:
        assert not any(differences(read_bundle(one), read_bundle(other)).values())
