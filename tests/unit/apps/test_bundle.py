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


def settings(text: str) -> bytes:
    return packed({**FILES, "pyproject.toml": text})


def added(*names: str) -> bytes:
    return packed({**FILES, **dict.fromkeys(names, "1")})


def twice(name: str) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return packed(more=[(name, "app = 2")])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "cannot be read"),
        (b"PK" + bytes(100), "cannot be read"),
        (packed()[:-40], "cannot be read"),
        (bytes(MOST_PACKED + 1), "more than"),
        (packed({"a.py": ""}), "pyproject"),
        (settings("x"), "cannot be read"),
        (settings("[project]"), "cannot be read"),
        (settings(PYPROJECT.replace('"ward"', '"../ward"')), "no name of a publisher"),
        (settings(PYPROJECT.replace('"1.0.0"', '"1/../.."')), "no name of a publisher"),
        # paths that lead elsewhere
        (added("../outside.py"), "no plain path"),
        (added("pinned_app/../../outside.py"), "no plain path"),
        (added("/etc/outside.py"), "no plain path"),
        (added("..\\outside.py"), "no plain path"),
        (added("C:outside.py"), "no plain path"),
        (added("pinned_app//twice.py"), "no plain path"),
        (added("./pinned_app/here.py"), "no plain path"),
        (added("pinned_app/a\nb.py"), "no plain path"),
        (packed(more=[(LINK, "/srv")], listed={**FILES, LINK.filename: "/srv"}), "is a link"),
        # one name for two, on some disks at least
        (twice("pinned_app/client.py"), "stands twice"),
        (twice("pinned_app/CLIENT.py"), "stands twice"),
        (added("pinned_app/caf\u00e9.py", "pinned_app/cafe\u0301.py"), "stands twice"),
        # another list than the files
        (packed(more=[("sitecustomize.py", "1")]), "own list"),
        (packed(listed={**FILES, "pinned_app/client.py": "app = 1"}), "own list"),
        (packed(listed={**FILES, "gone.py": ""}), "own list"),
        # what runs in the place of the source that was read
        (added("pinned_app/__pycache__/client.cpython-311.pyc"), "is compiled"),
        (added("pinned_app/client.pyc"), "is compiled"),
        (added("pinned_app/client.cpython-311-x86_64-linux-gnu.so"), "is compiled"),
        (added("pinned_app/client.abi3.SO"), "is compiled"),
        (added("pinned_app/client.pyd"), "is compiled"),
        # packing whose size is not bounded
        (packed(method=zipfile.ZIP_BZIP2), "packed in a way"),
        (packed(method=zipfile.ZIP_LZMA), "packed in a way"),
    ],
)
def test_what_is_no_bundle_is_refused(content: bytes, complaint: str) -> None:
    with pytest.raises(BundleError, match=complaint):
        read_bundle(content)


def test_each_byte_of_a_bundle_counts() -> None:
    whole = packed()
    for at in range(0, len(whole), 97):
        changed = bytearray(whole)
        changed[at] ^= 1
        assert digest_of(bytes(changed)) != digest_of(whole)


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


def test_a_bundle_that_differs_in_modes_or_order_alone_is_another() -> None:
    moded = zipfile.ZipInfo("pinned_app/data.json")
    moded.external_attr = (stat.S_IFREG | 0o4755) << 16
    listed = {**FILES, "pinned_app/data.json": "{}"}
    one = packed(more=[(moded, "{}")], listed=listed)
    others = [packed(listed), packed(dict(reversed(listed.items())))]
    assert len({digest_of(each) for each in (one, *others)}) == 3
    for other in others:
        assert not any(differences(read_bundle(one), read_bundle(other)).values())
