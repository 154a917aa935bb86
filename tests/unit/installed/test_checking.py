"""Whether installed files are those of a release."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

from tests.cli import Done, flower_ldp
from tests.unit.installed.sites import FILES, installed, wheel


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    installed(folder, notes={"INSTALLER": "pip\n"})
    return folder


def check(site: Path, *words: object) -> Done:
    return flower_ldp("installed", "check", "--site", site, *words)


def test_files_as_they_were_released_pass(site: Path, tmp_path: Path) -> None:
    release = wheel(tmp_path)
    assert check(site, "--json").json["compared"] == 4  # with the installer's own note
    done = check(site, "--wheel", release)
    assert done.code == 0
    assert f"sha256:{sha256(release.read_bytes()).hexdigest()}" in done.out
    found = check(site, "--wheel", release, "--json").json
    assert found["compared"] == 3
    assert found["version"] == "0.1.0"


def test_what_differs_is_named(site: Path, tmp_path: Path) -> None:
    (site / "flower_ldp/gate.py").write_text("closed = False\n")
    (site / "flower_ldp/__init__.py").unlink()
    (site / "flower_ldp/extra.py").write_text("")
    (site / "flower_ldp/__pycache__").mkdir()
    (site / "flower_ldp/__pycache__/gate.cpython-311.pyc").write_bytes(b"")
    for words in ((), ("--wheel", wheel(tmp_path))):
        done = check(site, *words, "--json")
        assert done.code == 1
        assert done.json["changed"] == ["flower_ldp/gate.py"]
        assert done.json["missing"] == ["flower_ldp/__init__.py"]
        assert done.json["added"] == ["flower_ldp/extra.py"]
        assert "error: of no release: flower_ldp/extra.py" in done.err


def test_a_list_that_was_changed_with_its_file_does_not_pass_the_wheel(tmp_path: Path) -> None:
    site = tmp_path / "site"
    installed(site, files={**FILES, "flower_ldp/gate.py": "closed = False\n"})
    assert check(site).code == 0
    done = check(site, "--wheel", wheel(tmp_path), "--json")
    assert done.json["changed"] == ["flower_ldp/gate.py"]


def test_the_digest_of_the_contents_is_the_releases_on_each_machine(
    site: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    notes = {"INSTALLER": "uv\n", "REQUESTED": "", "direct_url.json": "{}"}
    information = installed(other, notes=notes)
    with (information / "RECORD").open("a") as stream:
        stream.write("../../../bin/flower-ldp,sha256=AAAA,4\n")
    digests = {check(one, "--json").json["contents"] for one in (site, other)}
    assert len(digests) == 1
    changed = tmp_path / "changed"
    installed(changed, files={**FILES, "flower_ldp/gate.py": ""})
    assert check(changed, "--json").json["contents"] not in digests


def test_what_cannot_be_judged_is_an_error(site: Path, tmp_path: Path) -> None:
    later = wheel(tmp_path, "0.2.0")
    assert "is not a wheel of flower_ldp-0.1.0" in check(site, "--wheel", later).err
    none = tmp_path / "none.whl"
    none.write_text("none")
    assert "is no wheel" in check(site, "--wheel", none).err
    assert "not installed in" in check(tmp_path).err
    editable = tmp_path / "editable"
    url = json.dumps({"url": "file:///x", "dir_info": {"editable": True}})
    information = installed(editable, notes={"direct_url.json": url})
    assert "editable" in check(editable).err
    (information / "direct_url.json").unlink()
    (information / "RECORD").unlink()
    done = check(editable)
    assert done.code == 1
    assert "no list of its files" in done.err
