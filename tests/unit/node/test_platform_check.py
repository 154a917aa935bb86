"""Where a guarded node cannot run, its commands say so at once and load nothing of Flower."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable

import pytest

from flower_ldp import node
from flower_ldp.node import command
from tests.cli import process


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_another_system_is_named(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(node.NoLinux, match=f"for Linux, this is {platform}: run the gate in"):
        node.check_here()


@pytest.mark.parametrize("version", ["1.32.0", "1.39.1", "1.43.0", "2.0.0"])
def test_an_unknown_flower_is_named(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(node.FlowerChanged, match=rf"flwr {version} is installed.* >=1\.40,<1\.43"):
        node.check_here()


@pytest.mark.parametrize(
    ("start", "platform", "name"),
    [(command.run_superexec, "darwin", ""), (command.main, "win32", "flower-ldp-supernode: ")],
)
def test_no_command_is_started(
    start: Callable[[], object],
    platform: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "keep_plain", lambda _: None)
    monkeypatch.setattr(command, "_log_to_stderr", lambda: None)
    monkeypatch.setattr(sys, "argv", ["flower-ldp-supernode", "--ldp-policy", "/nowhere"])
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == 2
    said = f"{name}not started: the guarded node is for Linux, this is {platform}"
    assert said in capsys.readouterr().err


def test_the_commands_load_nothing_of_flower_and_nothing_that_windows_lacks() -> None:
    code = (
        "import sys\n"
        "for name in ('fcntl', 'pwd', 'grp', 'resource', 'termios'): sys.modules[name] = None\n"
        "import flower_ldp.node.command\n"
        "print([name for name in sys.modules if name.partition('.')[0] == 'flwr'])\n"
    )
    done = process(sys.executable, "-c", code)
    assert done.stdout == "[]\n", done.stderr
