"""``flower-ldp new``: each kind is an app that runs, and that Flower takes as it is."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest

import flower_ldp as package
from flower_ldp.app_digests import bundle_of, read_bundle
from flower_ldp.cli.apps import Kind
from tests.cli import facts, flower_ldp, process, refused
from tests.extras import extra

#: Of the package, without its patch level.
VERSION = ".".join(package.__version__.split(".")[:2])
#: The kinds that are apps.
APPS = [kind for kind in get_args(Kind) if kind != "mechanism"]
#: What makes a run of a kind short.
SHORT = {
    "codeword": ("--nodes", 8, "-c", "num-server-rounds=2"),
    "signds": ("--nodes", 8, "-c", "num-server-rounds=2 epsilon=60.0 step=0.1"),
    "gaussian": ("--nodes", 8, "-c", "num-server-rounds=2 epsilon=60.0"),
    "evaluation": ("--nodes", 24, "-c", "num-server-rounds=2"),
    "labels": ("--nodes", 3, "-c", "num-server-rounds=2"),
    "split": ("--nodes", 2, "-c", "party-folder='bottoms'"),
    "release": ("--nodes", 3),
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


def written(folder: Path, files: list[str]) -> None:
    """Check that these files are what a command wrote, with every name put in."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    assert [path.relative_to(folder).as_posix() for path in found] == files
    for path in found:
        assert not re.search("@[A-Z]+@", path.read_text(encoding="utf-8")), path


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
    assert Path("my-app/simulation-ledger.sqlite").exists()
    if kind == "release":  # of 600 values of one normal law, with noise of 5 in each count
        counts = re.findall(r"^\d+ to \d+: (-?\d+)$", done.err, flags=re.MULTILINE)
        assert np.abs(np.array(counts, int) - [14, 138, 296, 138, 14]).max() < 60
        return
    (accuracy,) = re.findall(r"accuracy (0\.\d+)$", done.err, flags=re.MULTILINE)[-1:]
    assert float(accuracy) > (0.2 if kind == "signds" else 0.4)  # an eighth, and a third


@pytest.mark.parametrize("kind", APPS)
def test_an_app_of_each_kind_is_one_that_flower_packs(kind: Kind) -> None:
    made = facts("new", "My-App2", "--kind", kind, "--publisher", "ward-7")
    folder = Path("My-App2")
    written(folder, made["files"])
    assert (folder / "my_app2" / "server_app.py").exists()
    bundle = read_bundle(bundle_of(folder))
    assert (bundle.app, bundle.version) == ("ward-7/My-App2", "1.0.0")
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    (own,) = [line for line in project["dependencies"] if line.startswith("flower-ldp")]
    assert own.endswith(f">={VERSION}")
    assert ("torch" in own) == (kind == "split")


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff is not installed (the extra 'dev')")
def test_what_is_written_is_in_the_form_of_the_examples() -> None:
    for kind in get_args(Kind):
        flower_ldp("new", f"app-{kind}", "--kind", kind)
    rules = "--select=E,F,W,B,UP,N,D,RUF"
    settings = ["--config", "lint.pydocstyle.convention='numpy'", "--line-length=100"]
    for words in (["check", rules, *settings], ["format", "--check", "--line-length=100"]):
        alone = (words[0], "--isolated", "--no-cache", *words[1:])
        done = process(sys.executable, "-m", "ruff", *alone, ".")
        assert done.returncode == 0, done.stdout


def test_in_a_deployment_a_client_reads_the_file_that_its_node_names(tmp_path: Path) -> None:
    flower_ldp("new", "my-app")
    task = runpy.run_path("my-app/my_app/task.py")
    np.savez(tmp_path / "site.npz", x=np.ones((5, 8)), y=np.arange(5) % 3)
    node = {"data": str(tmp_path / "site.npz")}
    inputs, labels = task["load"](SimpleNamespace(node_config=node))
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
        assert "No space left" in refused("new", "my-app", "--kind", "signds")
    assert not Path("my-app").exists()
    assert flower_ldp("new", "my-app", "--kind", "signds").code == 0


def test_what_is_there_is_not_replaced() -> None:
    Path("my-app").mkdir()
    assert "my-app" in refused("new", "my-app")
    assert list(Path("my-app").iterdir()) == []


HIDES = "would hide the module"


@pytest.mark.parametrize(
    ("name", "words", "complaint"),
    [
        ("my_app", "", "is no name of an app"),
        ("7-apps", "", "is no name of an app"),
        ("a" * 33, "", "is no name of an app"),
        ("numpy", "", f"{HIDES} numpy"),
        ("flower-ldp", "", f"{HIDES} flower_ldp"),
        ("class", "", f"{HIDES} class"),
        ("my-app", '--publisher a"b', "is no publisher"),
        ("sign-ds", "--kind mechanism", "overrides none"),
        ("SignDS", "--kind mechanism", "overrides none"),
        ("dp-encrypt", "--kind mechanism", "overrides none"),
        ("laplace-2", "--kind mechanism", "overrides none"),
    ],
)
def test_a_name_that_will_not_do_is_refused(name: str, words: str, complaint: str) -> None:
    assert complaint in refused("new", name, *words.split())
    assert not Path(name).exists()


def test_a_keyword_with_a_dash_is_a_name() -> None:
    assert flower_ldp("new", "class-").code == 0
    assert Path("class-").exists()


def test_a_mechanism_is_a_distribution_that_a_policy_can_allow() -> None:
    made = facts("new", "My-Bit", "--kind", "mechanism")
    assert made["start"] == "cd My-Bit && python -m pytest"
    written(Path("My-Bit"), made["files"])
    told = tomllib.loads(Path("My-Bit/pyproject.toml").read_text())
    entries = told["project"]["entry-points"]["flower_ldp.mechanisms"]
    assert entries == {"my_bit": "my_bit.mechanism:extension"}
    assert told["tool"]["pytest"]["ini_options"]["ldp_mechanism"] == entries["my_bit"]
    assert f"flower-ldp>={VERSION}" in told["project"]["dependencies"]


def test_the_test_that_comes_with_a_mechanism_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    flower_ldp("new", "my-app", "--kind", "mechanism")  # whose modules are forgotten afterwards
    monkeypatch.syspath_prepend("my-app")
    space = runpy.run_path("my-app/tests/test_estimate.py")
    space["test_the_estimates_mean_is_the_updates_signs"]()
