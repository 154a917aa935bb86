"""``flower-ldp doctor``: what it finds is what is here, and what is wrong is named."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

import flower_ldp as package
from flower_ldp.cli import doctor
from tests.cli import MODULE, PLACE, facts, flower_ldp, process
from tests.fixtures import ROOT, private_file

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Extras that are sums of others, or for those who change the package.
SUMS = {"examples", "benchmarks", "notebooks", "docs", "dev"}
#: What a distribution of an extra is imported as.
MODULES = {
    "flwr[simulation]": "ray",
    "scikit-learn": "sklearn",
    "cryptography": "cryptography.hazmat.primitives.hpke",
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
    declare(monkeypatch, *PROJECT["dependencies"])
    monkeypatch.delenv("FLOWER_LDP_POLICY", raising=False)


def declare(
    patch: pytest.MonkeyPatch, *lines: str, found: dict[str, str | None] | None = None
) -> None:
    """Have these requirements, and of what is found these versions; 99 of all else."""
    patch.setattr(doctor.metadata, "requires", lambda _: list(lines))
    if found is not None:
        patch.setattr(doctor, "_version_of", lambda name: found.get(name, "99"))


def test_this_environment_is_in_order() -> None:
    done = flower_ldp("doctor")
    assert done.code == 0
    for words in (f"flower-ldp  {package.__version__}", sys.executable, metadata.version("flwr")):
        assert words in done.out
    assert "Policy: none is named" in done.out
    assert re.search("random bytes without waiting +yes", done.out)
    told = facts("doctor")
    known = {"version": package.__version__, "policy": None, "entropy": True}
    assert told.items() >= known.items()
    found = {row["name"]: row["found"] for row in told["installed"]}
    assert found["numpy"] == metadata.version("numpy")
    assert len(told["installed"]) == len(PROJECT["dependencies"])


def test_policy_and_ledger_are_a_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = private_file(tmp_path / "policy.yaml", flower_ldp("policy", "sample").out)
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


def test_what_is_too_old_or_missing_has_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"flwr": "1.31.9", "numpy": None}
    declare(monkeypatch, "flwr<2,>=1.32", "numpy>=1.26", "typer", found=versions)
    assert facts("doctor")["problems"] == [
        "flwr 1.31.9 is not >=1.32,<2: pip install 'flwr>=1.32,<2'",
        "numpy is missing: pip install 'numpy>=1.26'",
    ]


@pytest.mark.parametrize("name", ["flwr", "numpy", "yaml"])
def test_what_is_missing_does_not_end_the_doctor(name: str, tmp_path: Path) -> None:
    # In a process of its own: here all is imported.
    (tmp_path / "sitecustomize.py").write_text(HIDE.format(name))
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{PLACE}"}
    done = process(*MODULE, "doctor", "--json", env=path)
    found = json.loads(done.stdout)
    missing = {"yaml": "pyyaml"}.get(name, name)
    assert done.returncode == 1
    assert any(one.startswith(f"{missing} is missing: pip install") for one in found["problems"])
    assert found["entropy"]


def test_an_extra_in_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["numpy>=1.26", "torch>=2.4; extra == 'torch'", "torch>=2.4; extra == 'dpsgd'"]
    declare(monkeypatch, *lines, found={"torch": "2.1.0"})
    told, unfit = facts("doctor"), ["torch 2.1.0 is not >=2.4"]
    found = {row["name"]: row["unfit"] for row in told["extras"] if row["unfit"]}
    assert found == {"torch": unfit, "dpsgd": unfit}
    assert told["ok"]
    assert unfit[0] in flower_ldp("doctor").out


def test_what_is_not_installed_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "requires", missing)
    told = facts("doctor")
    assert (told["ok"], told["installed"]) == (True, None)
    assert "versions are not checked" in told["warnings"][0]


def test_extras_that_are_missing_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    done = flower_ldp("doctor")
    assert done.code == 0
    assert "torch, scipy" in done.out
    assert "not on the PATH; flower-ldp simulate needs none" in done.out


@pytest.mark.parametrize(("version", "words"), [(None, "no nodes without it"), ("2.55", "2.55")])
def test_the_engine_is_named(
    version: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/bin/{name}")
    declare(monkeypatch, found={"ray": version})
    assert re.search(f"Ray +.*{words}", flower_ldp("doctor").out)


def test_another_system_has_no_guarded_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    told = facts("doctor")
    assert (told["ok"], told["guarded_node"]["usable"]) == (True, False)
    assert "for Linux" in told["guarded_node"]["reason"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing tells")
def test_a_generator_that_is_not_seeded_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(*_: int) -> bytes:
        raise BlockingIOError

    other = SimpleNamespace(getrandom=wait, GRND_NONBLOCK=os.GRND_NONBLOCK)
    monkeypatch.setattr(doctor, "os", other)
    assert facts("doctor")["problems"] == [
        "the system's generator is not seeded yet: a client waits until it is"
    ]


def test_the_extras_are_those_that_are_declared() -> None:
    declared = PROJECT["optional-dependencies"]
    assert list(doctor.EXTRAS) == [n for n in declared if n not in SUMS]
    for extra, (modules, _) in doctor.EXTRAS.items():
        names = {_distribution(line) for line in declared[extra]}
        while inner := next((name for name in names if name.startswith("flower-ldp[")), None):
            names.remove(inner)
            for part in inner[len("flower-ldp[") : -1].split(","):
                names |= {_distribution(line) for line in declared[part]}
        assert {MODULES.get(name, name) for name in names} == set(modules)


def _distribution(line: str) -> str:
    return line.partition(">=")[0]


def test_requirements_are_those_without_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, *PROJECT["dependencies"], "ray==2.55; extra == 'x'", "a<2,>=1.5")
    found = [one.name + doctor.versions_of(one) for one in doctor.requirements()]
    assert found == [*PROJECT["dependencies"], "a>=1.5,<2"]
    assert [str(one.specifier) for one in doctor.requirements("x")] == ["==2.55"]


@pytest.mark.parametrize("version", ["1.32", "1.32.0", "1.32.0rc1", "1.100.2", "1.99+cpu"])
def test_versions_in_the_range_are_admitted(version: str) -> None:
    assert doctor.admits(Requirement("flwr>=1.32,<2"), version)


@pytest.mark.parametrize("version", ["1.31.9", "2.0.0", "2", "of-its-own"])
def test_other_versions_are_admitted_where_any_is(version: str) -> None:
    assert not doctor.admits(Requirement("flwr>=1.32,<2"), version)
    assert doctor.admits(Requirement("flwr"), version)
