"""How the guarded node may be started: with apps under which user, and with which policy."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResultStatus

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.errors import ConfigError
from flower_ldp.node import PROGRAM, command
from flower_ldp.node.app_executor import AppExecutor, command_of
from flower_ldp.node.flower_api import flower_arguments, given_config
from flower_ldp.node.sandbox.filesystem_view import SandboxMissing
from flower_ldp.node.startup import Start

POLICY = """
data_id: ward-7
ledger: ledger.sqlite
mode: {mode}
messages: {{train: {{signds: {{epsilon: 2.0}}}}}}
budgets: {{client: {{life: {{epsilon: 6.0}}}}}}
"""
TOKEN = "0123456789abcdef" * 4


def given(
    monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[argparse.Namespace, argparse.Namespace]:
    """Return the site's options and Flower's arguments, as the command reads them."""
    options, rest = command.site_parser().parse_known_args(words)
    monkeypatch.setattr(sys, "argv", [PROGRAM, "--insecure", *rest])
    return options, flower_arguments()


@pytest.mark.parametrize("more", [(), ("--isolation", "subprocess"), ("--isol=subprocess",)])
def test_apps_under_the_nodes_own_user_are_refused(
    more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SandboxMissing, match="--sandbox") as caught:
        Start(*given(monkeypatch, *more)).apps()
    for way in ("--isolation process", "--ldp-unsafe-app-user"):
        assert way in str(caught.value)
    assert Start(*given(monkeypatch, *more, "--ldp-unsafe-app-user")).apps() is None
    assert Start(*given(monkeypatch, "--isolation", "process")).apps() is None


def test_an_executor_without_a_secret_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    words = ("--isolation", "process", "--superexec-auth-secret-file", "secret")
    assert Start(*given(monkeypatch, *words)).apps() is None
    assert caplog.records == []
    assert Start(*given(monkeypatch, *words[:2])).apps() is None
    assert "superexec-auth-secret-file" in caplog.text


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--ldp-gate", "reports"), "reports"),
        (("--host", "0.0.0.0"), "--host"),
        (("--superexec-auth-secret-file", "x"), "secret"),
        (("--ssl-certfile", "x"), "--ssl"),
        (("--port", "80"), "--port"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is for Linux")
def test_what_contradicts_the_sandbox_is_refused(
    words: tuple[str, ...], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SandboxMissing, match=complaint):
        Start(*given(monkeypatch, "--sandbox", *words)).apps()
    with pytest.raises(SandboxMissing, match="--check"):
        Start(*given(monkeypatch, "--isolation", "process", "--check")).apps()


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is for Linux")
def test_the_secret_is_on_no_command_line_and_flower_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apps = Start(*given(monkeypatch, "--sandbox")).apps()
    assert apps is not None
    more = apps.flower_options()
    _, arguments = given(monkeypatch, *more)
    assert arguments.isolation == "process"
    secret = Path(arguments.superexec_auth_secret_file).read_bytes()
    assert len(secret) == 32
    assert not any(secret.hex() in word for word in more)


def test_a_simulations_policy_needs_a_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(mode="simulation"))
    words = ("--node-config", f'ldp-policy="{policy}"')
    options, arguments = given(monkeypatch, *words)
    with pytest.raises(ConfigError, match="--ldp-simulation"):
        Start(options, arguments).policy(given_config(arguments))
    assert not (tmp_path / "ledger.sqlite").exists()
    options, arguments = given(monkeypatch, *words, "--ldp-simulation")
    assert Start(options, arguments).policy(given_config(arguments)).path == policy


def test_key_policy_and_ledger_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY.format(mode="deployment"))
    Ledger.open(tmp_path / "ledger.sqlite", create=True).close()
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    words = ["--node-config", f'ldp-policy="{tmp_path / "policy.yaml"}"']
    words += ["--auth-supernode-private-key", str(tmp_path / "node-key")]
    (tmp_path / "node-key").write_text("key")
    options, arguments = given(monkeypatch, *words)
    policy = Start(options, arguments).policy(given_config(arguments))
    names = {path.name for path in Start(options, arguments).hidden(policy).values()}
    assert names == {
        "flower",
        "policy.yaml",
        "ledger.sqlite",
        "ledger.sqlite-mark-key",
        "node-key",
    }


def spec(kind: TaskType) -> ExecutionSpec:
    return ExecutionSpec(kind, "127.0.0.1:1", TOKEN, True, None, True, 1, False, 7)


def test_an_app_gets_its_token_by_no_command_line(tmp_path: Path) -> None:
    """The child reads its arguments and token as Flower's own command does."""
    code = (
        "import sys; from flwr.common.args import try_obtain_flwr_app_token as token;"
        "from flwr.supernode.cli.flwr_clientapp import _parse_args_run_flwr_clientapp as parser;"
        "print(token(parser().parse_args(sys.argv[5:])));"
        "print(open('/proc/self/cmdline' if sys.platform == 'linux' else '/dev/null').read())"
    )
    commands = []
    with (tmp_path / "out").open("wb") as out:

        def start(words: list[str], token: int) -> subprocess.Popen[bytes]:
            commands.append(words)
            return subprocess.Popen([sys.executable, "-c", code, *words], stdin=token, stdout=out)

        executor = AppExecutor(start)
        assert executor.launch(spec(TaskType.CLIENT_APP)).status is LaunchResultStatus.ACCEPTED
        (app,) = executor._until
        assert app.wait(60) == 0
    executor.reconcile()
    assert executor._until == {}
    first, _, rest = (tmp_path / "out").read_text().partition("\n")
    assert first == TOKEN
    assert TOKEN not in rest
    assert not any(TOKEN in word for word in commands[0])
    assert commands[0] == command_of(spec(TaskType.CLIENT_APP))


@pytest.mark.parametrize(
    ("times", "ended"),
    [
        ({}, [False, False]),
        ({"stays": 0.0}, [True, False]),
        ({"stays": 600.0}, [False, False]),
        ({"longest": 600.0}, [False, False]),
        ({"longest": 0.0}, [True, True]),
    ],
)
def test_an_app_is_ended_when_the_next_one_is_there_or_it_has_run_for_too_long(
    times: dict[str, float], ended: list[bool]
) -> None:
    def start(words: list[str], token: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    executor = AppExecutor(start, **times)
    try:
        executor.launch(spec(TaskType.CLIENT_APP))
        if "longest" not in times:
            executor.reconcile()
        executor.launch(spec(TaskType.CLIENT_APP))
        processes = list(executor._until)
        executor.reconcile()
        for process, is_ended in zip(processes, ended, strict=True):
            assert (process.wait(20) if is_ended else process.poll()) == (-9 if is_ended else None)
        executor.reconcile()
        assert len(executor._until) == ended.count(False)
    finally:
        for one in executor._until:
            one.kill()
            one.wait()


def test_other_tasks_and_commands_that_cannot_start_fail() -> None:
    def start(words: list[str], token: int) -> subprocess.Popen[bytes]:
        raise FileNotFoundError(words[0])

    executor = AppExecutor(start)
    for kind in TaskType:
        assert executor.launch(spec(kind)).status is LaunchResultStatus.FAILED
