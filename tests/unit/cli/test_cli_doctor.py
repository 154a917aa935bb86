"""``flower-ldp doctor``: what it finds is what is here, and what is wrong is named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

import flower_ldp as package
from flower_ldp.cli import doctor
from tests.cli import facts, flower_ldp

ROOT = Path(__file__).parents[3]
#: Where the package is: an installed one is not beside the tests.
PLACE = Path(package.__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Extras that are sums of others, or for those who change the package.
SUMS = {"examples", "benchmarks", "notebooks", "docs", "dev"}
#: What a distribution of an extra is imported as.
MODULES = {
    "flwr[simulation]": "ray",
    "dp-accounting": "dp_accounting",
    "scikit-learn": "sklearn",
}

#: Hides one distribution from a process, and its metadata.
HIDE = """
import importlib.metadata, sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "{0}":
            raise ModuleNotFoundError("No module named '{0}'", name="{0}")
sys.meta_path.insert(0, Hide())
known = importlib.metadata.version
def version(name):
    if name in ("{0}", {{"yaml": "pyyaml"}}.get("{0}")):
        raise importlib.metadata.PackageNotFoundError(name)
    return known(name)
importlib.metadata.version = version
"""


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the checkout's own requirements: what is installed may be older than they are."""
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: PROJECT["dependencies"])
    monkeypatch.delenv("FLOWER_LDP_POLICY", raising=False)


def test_this_environment_is_in_order() -> None:
    done = flower_ldp("doctor")
    assert done.code == 0
    for words in (f"flower-ldp  {package.__version__}", sys.executable, metadata.version("flwr")):
        assert words in done.out
    assert "Policy: none is named" in done.out
    assert re.search("random bytes without waiting +yes", done.out)
    found = facts("doctor")
    assert (found["version"], found["policy"], found["entropy"]) == (
        package.__version__,
        None,
        True,
    )
    assert {row["name"]: row["found"] for row in found["installed"]}["numpy"] == metadata.version(
        "numpy"
    )
    assert len(found["installed"]) == len(PROJECT["dependencies"])


def test_policy_and_ledger_are_those_of_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "client_policy.yaml"
    policy.write_text(flower_ldp("policy", "sample").out)
    policy.chmod(0o600)
    monkeypatch.setenv("FLOWER_LDP_POLICY", str(policy))
    done = flower_ldp("doctor", "--json")
    assert (done.code, done.json["policy"]["mode"]) == (1, "deployment")
    assert "flower-ldp ledger create" in done.json["problems"][0]
    flower_ldp("ledger", "create", tmp_path / "privacy-ledger.sqlite")
    done = flower_ldp("doctor", "--json")
    assert (done.code, done.json["ledger"]["entries"]) == (0, 0)
    policy.chmod(0o666)
    assert "can be" in flower_ldp("doctor").err
    assert flower_ldp("doctor", "--policy", tmp_path / "nowhere.yaml").code == 1


def test_what_is_too_old_or_missing_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"flwr": "1.31.9", "numpy": None}
    monkeypatch.setattr(doctor, "_version_of", lambda name: versions.get(name, "99"))
    monkeypatch.setattr(
        doctor.metadata, "requires", lambda _: ["flwr<2,>=1.32", "numpy>=1.26", "typer"]
    )
    assert facts("doctor")["problems"] == [
        "flwr 1.31.9 is not >=1.32,<2: pip install 'flwr>=1.32,<2'",
        "numpy is missing: pip install 'numpy>=1.26'",
    ]


@pytest.mark.parametrize("name", ["flwr", "numpy", "yaml"])
def test_what_is_missing_does_not_end_the_doctor(name: str, tmp_path: Path) -> None:
    # In a process of its own: here all is imported.
    (tmp_path / "sitecustomize.py").write_text(HIDE.format(name))
    done = subprocess.run(
        [sys.executable, "-m", "flower_ldp", "doctor", "--json"],
        capture_output=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}{os.pathsep}{PLACE}"},
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    missing = {"yaml": "pyyaml"}.get(name, name)
    assert done.returncode == 1
    assert any(one.startswith(f"{missing} is missing: pip install") for one in found["problems"])
    assert found["entropy"]


def test_an_extra_in_a_version_that_it_does_not_ask_for_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = ["numpy>=1.26", "torch>=2.4; extra == 'torch'", "torch>=2.4; extra == 'dpsgd'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: lines)
    monkeypatch.setattr(doctor, "_version_of", lambda _: "2.1.0")
    done = flower_ldp("doctor", "--json")
    assert {row["name"]: row["unfit"] for row in done.json["extras"] if row["unfit"]} == {
        "torch": ["torch 2.1.0 is not >=2.4"],
        "dpsgd": ["torch 2.1.0 is not >=2.4"],
    }
    assert done.code == 0
    assert "torch 2.1.0 is not >=2.4" in flower_ldp("doctor").out


def test_what_is_not_installed_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "requires", missing)
    done = flower_ldp("doctor", "--json")
    assert (done.code, done.json["installed"]) == (0, None)
    assert "versions are not checked" in done.json["warnings"][0]


def test_extras_that_are_missing_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    done = flower_ldp("doctor")
    assert done.code == 0
    assert "torch, dp_accounting" in done.out
    assert "not on the PATH; flower-ldp simulate needs none" in done.out


def test_the_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/bin/{name}")
    for version, words in ((None, "no nodes without it"), ("2.55", "2.55")):
        found = dict.fromkeys(["ray"], version)
        monkeypatch.setattr(doctor, "_version_of", lambda name, f=found: f.get(name, "99"))
        assert re.search(f"Ray +.*{words}", flower_ldp("doctor").out)


def test_another_system_has_no_guarded_node_and_is_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    done = flower_ldp("doctor", "--json")
    assert (done.code, done.json["guarded_node"]["usable"]) == (0, False)
    assert "for Linux" in done.json["guarded_node"]["reason"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing tells")
def test_a_generator_that_is_not_seeded_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(*_: int) -> bytes:
        raise BlockingIOError

    other = SimpleNamespace(getrandom=wait, GRND_NONBLOCK=os.GRND_NONBLOCK)
    monkeypatch.setattr(doctor, "os", other)
    done = flower_ldp("doctor", "--json")
    assert done.json["problems"] == [
        "the system's generator is not seeded yet: a client waits until it is"
    ]


def test_the_extras_are_those_that_are_declared() -> None:
    declared = PROJECT["optional-dependencies"]
    assert list(doctor.EXTRAS) == [n for n in declared if n not in SUMS]
    for extra, (modules, _) in doctor.EXTRAS.items():
        names = {_distribution(line) for line in declared[extra]}
        for inner in [name for name in names if name.startswith("flower-ldp[")]:
            names.remove(inner)
            for part in inner[len("flower-ldp[") : -1].split(","):
                names |= {_distribution(line) for line in declared[part]}
        assert {MODULES.get(name, name) for name in names} == set(modules)


def _distribution(line: str) -> str:
    return line.partition(">=")[0]


def test_the_declared_requirements_are_those_without_an_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [*PROJECT["dependencies"], "ray==2.55; extra == 'x'", "a<2,>=1.5"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: lines)
    found = [one.name + doctor.versions_of(one) for one in doctor.requirements()]
    assert found == [*PROJECT["dependencies"], "a>=1.5,<2"]
    assert [str(one.specifier) for one in doctor.requirements("x")] == ["==2.55"]


@pytest.mark.parametrize(
    ("version", "admitted"),
    [
        ("1.31.9", False),
        ("1.32", True),
        ("1.32.0", True),
        ("1.32.0rc1", True),
        ("1.100.2", True),
        ("1.99+cpu", True),
        ("2.0.0", False),
        ("2", False),
        ("of-its-own", False),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, admitted: bool) -> None:
    assert doctor.admits(Requirement("flwr>=1.32,<2"), version) is admitted
    assert doctor.admits(Requirement("flwr"), version)
