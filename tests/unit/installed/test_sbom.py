"""Lists of components, by the format's own schema."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cyclonedx")

from flower_ldp import __version__
from flower_ldp.installed.closure import closure
from tests.cli import flower_ldp
from tests.unit.installed.sites import installed

ASKED = (
    "License-Expression: Apache-2.0",
    "Provides-Extra: plots",
    "Provides-Extra: more",
    "Provides-Extra: all",
    "Requires-Dist: one>=1",
    'Requires-Dist: elsewhere; sys_platform == "none"',
    'Requires-Dist: two[fast]; extra == "plots"',
    'Requires-Dist: not-here; extra == "more"',
    'Requires-Dist: flower-ldp[plots]; extra == "all"',
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A package with a need, an extra that is installed and one that is not."""
    folder = tmp_path / "site-packages"
    installed(folder, "flower-ldp", *ASKED)
    installed(folder, "one", "License: MIT", version="1.5", files={"one.py": ""})
    installed(
        folder,
        "two",
        "Classifier: License :: OSI Approved :: BSD License",
        "Provides-Extra: fast",
        "Provides-Extra: slow",
        'Requires-Dist: Three_Four; extra == "fast"',
        'Requires-Dist: one; extra == "slow"',
        files={"two.py": ""},
        notes={"direct_url.json": json.dumps({"archive_info": {"hashes": {"sha256": "ab" * 32}}})},
    )
    installed(folder, "three-four", f"License: {'long text ' * 20}", files={"three.py": ""})
    installed(folder, "stranger", files={"stranger.py": ""})
    return folder


def listed(*words: object) -> dict[str, Any]:
    done = flower_ldp("installed", "sbom", *words)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert isinstance(found, dict)
    return found


def complaints(document: dict[str, Any]) -> object:
    pytest.importorskip("jsonschema")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document))


def test_a_list_has_what_is_asked_for_and_installed_and_nothing_else(site: Path) -> None:
    found = closure("flower_ldp", site)
    assert found.extras == ("all", "plots")
    assert found.missing == ()
    assert [(one.name, one.needs, one.is_optional) for one in found.others] == [
        ("one", (), False),
        ("three-four", (), True),
        ("two", ("three-four",), True),
    ]
    assert found.root.needs == ("one", "two")


def test_each_component_has_version_license_and_digests(site: Path) -> None:
    document = listed("--site", site)
    assert not complaints(document)
    parts = {part["name"]: part for part in document["components"]}
    assert parts.keys() == {"one", "two", "three-four"}
    assert parts["one"]["purl"] == parts["one"]["bom-ref"] == "pkg:pypi/one@1.5"
    assert parts["one"]["licenses"][0]["license"]["id"] == "MIT"
    assert parts["two"]["licenses"][0]["license"]["name"] == "BSD License"
    assert parts["two"]["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    assert "licenses" not in parts["three-four"]
    assert {name: part["scope"] for name, part in parts.items()} == {
        "one": "required",
        "two": "optional",
        "three-four": "optional",
    }
    root = document["metadata"]["component"]
    contents = flower_ldp("installed", "check", "--site", site, "--json").json["contents"]
    assert {"name": "flower-ldp:contents:sha256", "value": contents} in root["properties"]
    edges = {row["ref"]: row.get("dependsOn", []) for row in document["dependencies"]}
    assert edges["pkg:pypi/flower-ldp@0.1.0"] == ["pkg:pypi/one@1.5", "pkg:pypi/two@0.1.0"]


def test_the_same_installation_gives_the_same_bytes_and_another_other_ones(
    site: Path, tmp_path: Path
) -> None:
    for name in "ab":
        done = flower_ldp("installed", "sbom", "--site", site, "--output", tmp_path / name)
        assert done.out.endswith(": 4 components, extras: all, plots\n")
    assert flower_ldp("installed", "sbom", "--site", site, "--json").code == 2
    told = flower_ldp("installed", "sbom", "--site", site, "--output", tmp_path / "c", "--json")
    assert (told.json["components"], told.json["extras"]) == (4, ["all", "plots"])
    one, other = ((tmp_path / name).read_text() for name in "ab")
    assert one == other
    assert "timestamp" not in one
    installed(site, "one", version="1.6", files={"one.py": "1"})
    (site / "one-1.5.dist-info/METADATA").unlink()
    (site / "one-1.5.dist-info/RECORD").unlink()
    (site / "one-1.5.dist-info").rmdir()
    later = listed("--site", site)
    assert later["serialNumber"] != json.loads(one)["serialNumber"]
    timed = listed("--site", site, "--timestamp")
    assert not complaints(timed)
    assert "timestamp" in timed["metadata"]


def test_what_is_asked_for_and_not_installed_is_told(tmp_path: Path) -> None:
    installed(tmp_path, "flower-ldp", "Requires-Dist: not-here")
    done = flower_ldp("installed", "sbom", "--site", tmp_path)
    assert done.code == 0
    assert "warning: not-here is asked for and is not installed" in done.err
    assert flower_ldp("installed", "sbom", "--site", tmp_path / "flower_ldp").code == 1


def test_this_installation_is_listed() -> None:
    document = listed()
    assert document["specVersion"] == "1.6"
    assert document["metadata"]["component"]["version"] == __version__
    names = {part["name"].lower() for part in document["components"]}
    assert {"flwr", "numpy", "cryptography", "pydantic"} <= names


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.partition(".")[0] == "cyclonedx" or name == "flower_ldp.installed.sbom":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cyclonedx", None)
    done = flower_ldp("installed", "sbom")
    assert done.code == 1
    assert "pip install 'flower-ldp[sbom]'" in done.err
