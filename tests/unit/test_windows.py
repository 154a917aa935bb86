"""The package asks Windows for nothing that it lacks; the guarded node alone needs POSIX.

What Windows lacks is read from typeshed, which comes with mypy: names that its stubs give under
``if sys.platform != "win32":``. And a run through the gate, ledger and label store included, goes
its way with all of those names taken away.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import flower_ldp

PACKAGE = Path(flower_ldp.__file__).parent
#: What runs on POSIX alone, and says so.
POSIX_PARTS = ("node",)
#: Modules of the standard library that Windows has a part of.
MIXED = ("os", "signal", "socket", "select", "mmap", "time", "threading", "multiprocessing")
#: And those that it has not.
MISSING = ("fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "posix", "syslog")
FILES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in POSIX_PARTS
)


def _platform(test: ast.expr) -> bool | None:
    """Return what a condition is on Windows; None if it asks something else."""
    text = ast.unparse(test)
    if text in ("sys.platform == 'win32'", "sys.platform != 'win32'"):
        return "==" in text
    if text.startswith(("sys.platform == ", "sys.platform.startswith('linux')")):
        return False
    return None


def _on_windows(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield all nodes that Windows comes to."""
    for statement in body:
        known = _platform(statement.test) if isinstance(statement, ast.If) else None
        if isinstance(statement, ast.If) and known is not None:
            chosen = statement.body if known else statement.orelse
            yield from _on_windows(chosen)
            if chosen and isinstance(chosen[-1], ast.Return | ast.Raise):
                return
            continue
        yield from _within(statement)


def _within(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for _, value in ast.iter_fields(node):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield from _on_windows(value)
            continue
        children = value if isinstance(value, list) else [value]
        for child in children:
            if isinstance(child, ast.IfExp) and (known := _platform(child.test)) is not None:
                yield from _within(child.body if known else child.orelse)
            elif isinstance(child, ast.BoolOp) and _platform(child.values[0]) is False:
                continue  # `platform is another and ...`
            elif isinstance(child, ast.AST):
                yield from _within(child)


@cache
def _lacking() -> Mapping[str, frozenset[str]]:
    """Return the names of each mixed module that Windows lacks."""
    stubs = Path(pytest.importorskip("mypy").__file__).parent / "typeshed" / "stdlib"
    found = {}
    for module in MIXED:
        path = stubs / f"{module}.pyi"
        path = path if path.exists() else stubs / module / "__init__.pyi"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        everywhere = set(_names(ast.walk(tree)))
        found[module] = frozenset(everywhere - set(_names(_on_windows(tree.body))))
    return found


def _names(nodes: Iterator[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def _complaints(source: str) -> list[str]:
    found = []
    for node in _on_windows(ast.parse(source).body):
        match node:
            case ast.Import(names=names):
                found += [one.name for one in names if one.name.split(".")[0] in MISSING]
            case ast.ImportFrom(module=str(module), names=names):
                lacking = _lacking().get(module, frozenset())
                found += [module] if module.split(".")[0] in MISSING else []
                found += [f"{module}.{one.name}" for one in names if one.name in lacking]
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                found += [f"{module}.{name}"] if name in _lacking().get(module, ()) else []
    return found


def test_nothing_that_windows_lacks_is_asked_of_it() -> None:
    assert len(FILES) > 100
    found = {path: _complaints(path.read_text(encoding="utf-8")) for path in FILES}
    assert {path: said for path, said in found.items() if said} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import fcntl", ["fcntl"]),
        ("import os\ndef f():\n    return os.geteuid()", ["os.geteuid"]),
        ("from os import fork", ["os.fork"]),
        ("import signal\nif x:\n    signal.SIGKILL", ["signal.SIGKILL"]),
        ("import sys\nif sys.platform == 'linux':\n    import fcntl", []),
        (
            "import sys\ndef f():\n    if sys.platform == 'win32':\n        return\n    os.fork()",
            [],
        ),
        ("import sys\nif sys.platform == 'win32':\n    os.fork()\nelse:\n    0", ["os.fork"]),
        ("import sys\na = 0 if sys.platform == 'win32' else os.getuid()", []),
        ("import sys\nif sys.platform != 'win32' and os.getuid():\n    os.getuid()", ["os.getuid"]),
        ("import os\nos.O_BINARY, os.replace, getattr(os, 'O_NOFOLLOW', 0)", []),
    ],
)
def test_the_check_finds_what_it_is_for(source: str, found: list[str]) -> None:
    assert _complaints(source) == found


def test_a_run_needs_nothing_that_windows_lacks(tmp_path: Path) -> None:
    lacking = {module: sorted(_lacking()[module]) for module in ("os", "signal")}
    done = subprocess.run(
        [sys.executable, "-c", _RUN.format(lacking=lacking, missing=MISSING), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["trained 2", "labels True"], done.stderr


_RUN = '''
import builtins, multiprocessing.connection, os, pathlib, signal, sqlite3, subprocess, sys, types
import tempfile
import numpy as np, flwr.serverapp, flwr.clientapp, flwr.app, flwr.common.serde, flwr.supercore.run
import flwr.serverapp.strategy, flwr.supercore.inflatable.inflatable_utils, filelock
import pydantic.main, zoneinfo, yaml, ctypes, rich.progress
import flwr.common.config, flwr.supercore.object_ref

# The modules above keep what they have; what is imported from here on gets less.
for module, names in {lacking!r}.items():
    less = types.ModuleType(module)
    vars(less).update((k, v) for k, v in vars(sys.modules[module]).items() if k not in names)
    sys.modules[module] = less
given = builtins.__import__
def importing(name, *rest, **named):
    if name.split(".")[0] in {missing!r}:
        raise ModuleNotFoundError(name)
    return given(name, *rest, **named)
builtins.__import__ = importing
sys.platform = "win32"

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flower_ldp.clients import LdpMod, SignDSRelease
from flower_ldp.clients.labels import private_labels
from flower_ldp.mechanisms import KaryResponse, SignDS
from flower_ldp.privacy import Unit
from flower_ldp.simulation import run_in_process
from flower_ldp.strategies import FixedStep, SignDSStrategy

home = pathlib.Path(sys.argv[1])
(home / "policy.yaml").write_text("""
data_id: here
ledger: spent.sqlite
mode: simulation
messages: {{}}
unlisted_messages: answer
budgets:
  client: {{life: {{epsilon: 100.0, delta: 0.1}}}}
  label: {{life: {{epsilon: 100.0}}}}
""")
client, server = ClientApp(mods=[LdpMod(train=SignDSRelease())]), ServerApp()
labels, response = [], KaryResponse(1.0, 3, unit=Unit.LABEL)

@client.train()
def train(message, context):
    if not labels:
        for _ in range(2):
            labels.append(private_labels(context, np.arange(30) % 3, mechanism=response).reports)
    model = ArrayRecord([np.ones(400, np.float32)])
    return Message(RecordDict({{"arrays": model}}), reply_to=message)

@server.main()
def main(grid, context):
    strategy = SignDSStrategy(SignDS(1.0, 0.2), FixedStep(0.1))
    done = strategy.start(grid, ArrayRecord([np.zeros(400, np.float32)]), num_rounds=2)
    print("trained", len(done.train_metrics_clientapp))

run_in_process(server, client, 3, node_config={{"ldp-policy": str(home / "policy.yaml")}})
print("labels", bool((labels[0] == labels[1]).all()))
'''
