"""The examples are apps that Flower publishes: its rules for files, sizes, names and licence."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import flower_ldp

ROOT = Path(__file__).parents[2]
APPS = sorted(path.parent for path in (ROOT / "examples").rglob("pyproject.toml"))
#: As ``flwr app publish`` has them: flwr.supercore.constant.
KINDS = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl"}
NAMES = {"LICENSE", ".gitignore"}
MOST_FILE, MOST_ALL, MOST_FILES, DEEPEST = 1 << 20, 10 << 20, 1_000, 10
#: What runs leave behind, which git does not keep.
LEFT = {"__pycache__", "outputs", ".ruff_cache", ".mypy_cache"}


def files(app: Path) -> list[Path]:
    found = (path for path in app.rglob("*") if path.is_file())
    return [path for path in found if not LEFT & set(path.relative_to(app).parts)]


def project(app: Path) -> dict[str, Any]:
    return tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))


def named(app: Path) -> str:
    return app.relative_to(ROOT / "examples").as_posix()


def test_all_examples_are_looked_at() -> None:
    assert len(APPS) >= 10


@pytest.mark.parametrize("app", APPS, ids=named)
def test_all_that_an_app_needs_is_of_a_kind_that_is_published(app: Path) -> None:
    found = files(app)
    kept = [path for path in found if ".sqlite" not in path.name]
    assert [p.name for p in kept if p.suffix not in KINDS and p.name not in NAMES] == []
    assert 0 < len(kept) <= MOST_FILES
    sizes = [path.stat().st_size for path in kept]
    assert max(sizes) <= MOST_FILE
    assert sum(sizes) <= MOST_ALL
    for path in kept:
        assert not path.is_symlink()
        assert len(path.relative_to(app).parts) <= DEEPEST
        path.read_text(encoding="utf-8")


@pytest.mark.parametrize("app", APPS, ids=named)
def test_an_app_says_who_publishes_it_and_under_which_licence(app: Path) -> None:
    found = project(app)
    for name in (app.name, found["project"]["name"]):  # publishing checks the folder's too
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,31}", name)
    assert 0 < len(found["project"]["description"].strip()) <= 200
    settings = found["tool"]["flwr"]["app"]
    assert settings["publisher"]
    assert settings["fab-format-version"] == 1
    assert found["project"]["license"] == {"file": "LICENSE"}
    assert (app / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert set(settings["components"]) == {"serverapp", "clientapp"}


@pytest.mark.parametrize("app", APPS, ids=named)
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_flowers_own_check_passes_where_there_is_one(app: Path) -> None:
    publish = pytest.importorskip("flwr.cli.app_cmd.publish")
    checks = ("_collect_file_paths", "_validate_files", "_validate_description")
    for name in (*checks, "_validate_app_name"):
        if not hasattr(publish, name):
            pytest.skip(f"this Flower's publish has no {name}")
    found = publish._collect_file_paths(app)
    # What a run leaves is named by the app's own .gitignore: the repository's is not looked at.
    assert not [path for path in found if LEFT & set(path.parts)]
    publish._validate_files(found)
    publish._validate_app_name(app.name, "folder")
    publish._validate_description(project(app)["project"]["description"])


def test_the_citation_is_of_this_version() -> None:
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert found["version"] == flower_ldp.__version__
    assert {"cff-version", "message", "title", "authors"} <= found.keys()


def test_the_issue_forms_can_be_read() -> None:
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    bodies = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in forms]
    assert [sorted(body) for body in bodies] == [
        ["blank_issues_enabled"],
        ["body", "description", "name"],
        ["body", "description", "name"],
    ]
    for body in bodies[1:]:
        for part in body["body"]:
            assert part["type"] == "markdown" or part["id"]
            assert part["attributes"]
