"""The versions that are declared are stated once each, and the workflow runs all of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import flower_ldp

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
PYTHONS = [
    found[1]
    for line in PROJECT["classifiers"]
    if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))
]
(FLWR,) = [line for line in PROJECT["dependencies"] if line.startswith("flwr")]
FLOOR = FLWR.partition(">=")[2].partition(",")[0]
APPS = sorted((ROOT / "examples").rglob("pyproject.toml"))
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))


def test_the_oldest_python_is_the_first_that_is_named() -> None:
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + PYTHONS[0].replace(".", "")
    for page in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert re.findall(r"Python (3\.\d+) (?:and|or) later", text) == [PYTHONS[0]], page


def test_the_oldest_flower_is_the_same_everywhere() -> None:
    assert re.fullmatch(r"flwr>=[0-9.]+,<2", FLWR)
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    assert [line for line in extras if line.startswith("flwr")] == [
        FLWR.replace("flwr", "flwr[simulation]")
    ]
    assert f"`flwr` {FLOOR} " in (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")


def test_the_examples_declare_what_the_package_does() -> None:
    assert len(APPS) >= 9
    wanted = f"flower-ldp>={'.'.join(flower_ldp.__version__.split('.')[:2])}"
    for path in APPS:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        assert project["requires-python"] == PROJECT["requires-python"], path
        assert f"flwr[simulation]>={FLOOR}" in project["dependencies"], path
        own = [line for line in project["dependencies"] if line.startswith("flower-ldp")]
        for line in own:
            assert line == "flower-ldp" or re.sub(r"\[.*\]", "", line) == wanted, path


def test_the_workflow_runs_each_python_and_both_ends_of_flower() -> None:
    matrix = WORKFLOW["jobs"]["versions"]["strategy"]["matrix"]
    assert matrix["python"] == PYTHONS
    assert matrix["flwr"][0] == "oldest"
    assert matrix["flwr"][-1] == "newest"
    assert all(tuple(map(int, one.split("."))) > (1, 32) for one in matrix["flwr"][1:-1])
    steps = [step.get("run", "") for job in WORKFLOW["jobs"].values() for step in job["steps"]]
    assert any("tests/versions.sh" in step for step in steps)
    assert any("twine check --strict" in step for step in steps)
    assert any(".ci/run" in step for step in steps)
    script = (ROOT / "tests" / "versions.sh").read_text(encoding="utf-8")
    assert re.search(r"sed -n 's/\^    \"flwr>=", script)
    assert re.search(r'^    "flwr>=[0-9.]*,', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)


def test_the_pinned_flower_is_one_that_is_declared() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    (pinned,) = re.findall(r"^flwr==(\d+)\.(\d+)\.\d+$", text, flags=re.MULTILINE)
    assert tuple(map(int, FLOOR.split("."))) <= tuple(map(int, pinned)) < (2,)


def test_workflows_name_others_code_by_its_digest_and_keep_no_token() -> None:
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
        used = [step for job in jobs for step in job["steps"] if "uses" in step]
        for step in used:
            assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"]), (path, step)
            if step["uses"].startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, path
