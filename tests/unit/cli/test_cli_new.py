"""``flower-ldp new``: each kind is an app that runs, and that Flower takes as it is."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest

import flower_ldp as package
from flower_ldp.app_digests import bundle_of, read_bundle
from flower_ldp.cli.apps import Kind
from tests.cli import facts, flower_ldp
from tests.extras import extra

#: The kinds that are apps.
APPS = [kind for kind in get_args(Kind) if kind != "mechanism"]
#: What makes a run of a kind short.
SHORT = {
    "codeword": ("--nodes", 8, "-c", "num-server-rounds=2"),
    "signds": ("--nodes", 8, "-c", "num-server-rounds=2 epsilon=60.0 step=0.1"),
    "labels": ("--nodes", 3, "-c", "num-server-rounds=2"),
    "split": ("--nodes", 2, "-c", "party-folder='bottoms'"),
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    monkeypatch.delenv("FLOWER_LDP_POLICY", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "my_app":
            del sys.modules[name]


@pytest.mark.parametrize("kind", APPS)
def test_an_app_of_each_kind_runs(kind: Kind) -> None:
    if kind == "split":
        extra("torch").zeros(1)  # skips without it
    made = facts("new", "my-app", "--kind", kind)
    words = shlex.split(made["start"])
    assert words[:3] == ["flower-ldp", "simulate", "my-app"]
    policy = words[words.index("--policy") + 1]
    done = flower_ldp("simulate", "my-app", *SHORT[kind], "--policy", policy, "--json")
    assert done.code == 0, done.err
    (accuracy,) = re.findall(r"accuracy (0\.\d+)$", done.err, flags=re.MULTILINE)[-1:]
    assert float(accuracy) > (0.2 if kind == "signds" else 0.4)  # an eighth, and a third
    assert Path("my-app/simulation-ledger.sqlite").exists()


@pytest.mark.parametrize("kind", APPS)
def test_an_app_of_each_kind_is_one_that_flower_packs(kind: Kind) -> None:
    made = flower_ldp("new", "My-App2", "--kind", kind, "--publisher", "ward-7", "--json")
    folder = Path("My-App2")
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    assert [path.relative_to(folder).as_posix() for path in found] == made.json["files"]
    for path in found:
        assert not re.search("@[A-Z]+@", path.read_text(encoding="utf-8")), path
    assert (folder / "my_app2" / "server_app.py").exists()
    bundle = read_bundle(bundle_of(folder))
    assert (bundle.app, bundle.version) == ("ward-7/My-App2", "1.0.0")
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    (own,) = [line for line in project["dependencies"] if line.startswith("flower-ldp")]
    version = ".".join(package.__version__.split(".")[:2])
    assert own.endswith(f">={version}")
    assert ("torch" in own) == (kind == "split")


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff is not installed (the extra 'dev')")
def test_what_is_written_is_in_the_form_of_the_examples() -> None:
    for kind in get_args(Kind):
        flower_ldp("new", f"app-{kind}", "--kind", kind)
    rules = "--select=E,F,W,B,UP,N,D,RUF"
    settings = ["--config", "lint.pydocstyle.convention='numpy'", "--line-length=100"]
    for words in (["check", rules, *settings], ["format", "--check", "--line-length=100"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", words[0], "--isolated", "--no-cache", *words[1:], "."],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def test_in_a_deployment_a_client_reads_the_file_that_its_node_names(tmp_path: Path) -> None:
    flower_ldp("new", "my-app")
    spec = spec_from_file_location("of_a_new_app", "my-app/my_app/task.py")
    assert spec is not None
    assert spec.loader is not None
    task = module_from_spec(spec)
    spec.loader.exec_module(task)
    np.savez(tmp_path / "site.npz", x=np.ones((5, 8)), y=np.arange(5) % 3)
    node = {"data": str(tmp_path / "site.npz")}
    inputs, labels = task.load(SimpleNamespace(node_config=node))
    assert (inputs.shape, labels.tolist()) == ((5, 8), [0, 1, 2, 0, 1])


def test_on_a_full_disk_nothing_is_left_half_written(monkeypatch: pytest.MonkeyPatch) -> None:
    write, left = Path.write_text, [2]

    def full(path: Path, *args: object, **named: object) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return write(path, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        done = flower_ldp("new", "my-app", "--kind", "signds", "--publisher", "ward-7")
    assert (done.code, "No space left" in done.err) == (1, True)
    assert not Path("my-app").exists()
    assert flower_ldp("new", "my-app", "--kind", "signds", "--publisher", "ward-7").code == 0


def test_what_is_there_is_not_replaced() -> None:
    Path("my-app").mkdir()
    done = flower_ldp("new", "my-app")
    assert (done.code, "my-app" in done.err) == (1, True)
    assert list(Path("my-app").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("my_app", "is no name of an app"),
        ("7-apps", "is no name of an app"),
        ("a" * 33, "is no name of an app"),
        ("numpy", "would hide the module numpy"),
        ("flower-ldp", "would hide the module flower_ldp"),
        ("class-", None),
        ("class", "would hide the module class"),
    ],
)
def test_a_name_that_will_not_do_is_one_line(name: str, complaint: str | None) -> None:
    done = flower_ldp("new", name)
    assert done.code == (1 if complaint else 0)
    assert (complaint or "") in done.err
    assert Path(name).exists() == (complaint is None)


def test_a_publisher_that_will_not_do() -> None:
    assert "is no publisher" in flower_ldp("new", "my-app", "--publisher", 'a"b').err
    assert not Path("my-app").exists()


def test_a_mechanism_is_a_distribution_that_a_policy_can_allow() -> None:
    made = facts("new", "My-Bit", "--kind", "mechanism")
    assert made["start"] == "cd My-Bit && python -m pytest"
    found = sorted(path for path in Path("My-Bit").rglob("*") if path.is_file())
    assert [path.relative_to("My-Bit").as_posix() for path in found] == made["files"]
    for path in found:
        assert not re.search("@[A-Z]+@", path.read_text(encoding="utf-8")), path
    told = tomllib.loads(Path("My-Bit/pyproject.toml").read_text())
    entries = told["project"]["entry-points"]["flower_ldp.mechanisms"]
    assert entries == {"my_bit": "my_bit.mechanism:extension"}
    assert told["tool"]["pytest"]["ini_options"]["ldp_mechanism"] == entries["my_bit"]
    version = ".".join(package.__version__.split(".")[:2])
    assert f"flower-ldp>={version}" in told["project"]["dependencies"]


@pytest.mark.parametrize("name", ["sign-ds", "SignDS", "dp-encrypt", "laplace-2"])
def test_a_mechanism_takes_no_built_in_name(name: str) -> None:
    done = flower_ldp("new", name, "--kind", "mechanism")
    assert done.code == 1
    assert "overrides none" in done.err
    assert not Path(name).exists()


def test_the_test_that_comes_with_a_mechanism_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    flower_ldp("new", "my-app", "--kind", "mechanism")  # whose modules are forgotten afterwards
    monkeypatch.syspath_prepend("my-app")
    space: dict[str, object] = {}
    exec(Path("my-app/tests/test_estimate.py").read_text(), space)  # noqa: S102
    test = space["test_the_estimates_mean_is_the_updates_signs"]
    assert callable(test)
    test()
