"""What all examples' ``run.py`` share: a private SuperLink, ``flwr run``, policy and ledger.

:mod:`_engines` and :mod:`_parties` choose between these and a run in one process.

Not part of the package. A simulation's clients obey the policy that is named when the
SuperLink starts, so each call of :func:`local_superlink` is told of one.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import typer

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.policy import load_policy

# Seconds on an idle machine; a loaded one gets its time.
_START_SECONDS = 180


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at now.

    Below those that the system gives to outgoing connections: a SuperLink takes seconds to begin.
    """
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            one = stack.enter_context(socket.socket())
            port = 24_000 + secrets.randbelow(8_000)
            with contextlib.suppress(OSError):
                one.bind(("127.0.0.1", port))
                ports.append(port)
    return ports


@contextlib.contextmanager
def local_superlink(home: Path, policy: Path) -> Iterator[dict[str, str]]:
    """Run a simulation SuperLink whose clients obey a policy.

    Yields the environment that ``flwr run`` needs to find it.
    """
    port, control = free_ports(2)
    environment = flower_environment(home, port)
    environment["FLOWER_LDP_POLICY"] = str(policy.resolve(strict=True))
    with superlink(port, control, environment, home / "superlink.log", simulation=True):
        yield environment


def flower_environment(home: Path, port: int) -> dict[str, str]:
    """Return an environment in which Flower's commands find the SuperLink at a port."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\n'
        f'address = "127.0.0.1:{port}"\ninsecure = true\n',
        encoding="utf-8",
    )
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


@contextlib.contextmanager
def superlink(
    port: int, control: int, environment: dict[str, str], log: Path, *, simulation: bool
) -> Iterator[None]:
    """Keep a SuperLink of this machine's own running; with virtual nodes, or for SuperNodes."""
    if simulation and find_spec("ray") is None:
        raise SystemExit(
            "Flower's simulation engine needs Ray, which the extra 'simulation' brings: "
            "pip install 'flower-ldp[simulation]'; --engine process does without"
        )
    command = ["flower-superlink", "--insecure", "--isolation", "subprocess"]
    command += ["--disable-runtime-dependency-installation", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--control-api-address", f"127.0.0.1:{control}"]
    with running([*command, *(["--simulation"] * simulation)], environment, log) as process:
        wait_until_listening(port, process, log)
        yield


@contextlib.contextmanager
def running(
    command: list[str], environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Keep a process running, and stop it with all that it started."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for a SuperLink; give up, with its log, if it ended or takes too long."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise SystemExit(f"the local SuperLink did not start:\n{log.read_text(errors='replace')}")


def submit(
    app: Path,
    clients: int,
    config: Mapping[str, str],
    *,
    environment: dict[str, str],
    verbose: bool = False,
    last_line: str = "wrote ",
) -> None:
    """Run an app to its end, which it marks by a line that starts with ``last_line``."""
    follow(
        app, environment, clients, config, last_line, lambda line: verbose or not _is_noise(line)
    )


def follow(
    app: Path,
    environment: dict[str, str],
    virtual: int,
    config: Mapping[str, str],
    last_line: str,
    shown: Callable[[str], bool],
) -> None:
    """Run an app to its last line, with so many virtual nodes or with those that there are."""
    command = ["flwr", "run", str(app), "--stream"]
    if virtual:
        # One core per client at a time; Flower's default of two would leave half of them idle.
        command += ["--federation-config", f"num-supernodes={virtual} client-resources-num-cpus=1"]
    for name, value in config.items():
        command += ["--run-config", f"{name}={value}"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    run_id, finished = "", False
    tail: list[str] = []
    with process:
        try:
            for line in process.stdout or ():
                run_id = run_id or "".join(re.findall(r"started run (\d+)", line))
                finished = finished or line.startswith(last_line)
                tail = [*tail[-60:], line]
                if shown(line):
                    print(line, end="", flush=True)
        finally:
            if not finished and run_id:
                stop = ["flwr", "stop", run_id]
                subprocess.run(stop, env=environment, capture_output=True, check=False)
            process.terminate()
    if not finished:
        raise SystemExit("the run did not finish; its last lines:\n" + "".join(tail))


# Flower's log of every configuration key and metric; --verbose shows it.
_NOISE = re.compile(r"^\S*(INFO|WARNING) |\(ClientAppActor|FutureWarning|^\s*warnings\.warn|^\s*$")


def _is_noise(line: str) -> bool:
    return bool(_NOISE.search(line))


def policy_in(folder: Path, policy: Path) -> Path:
    """Copy a simulation's policy to where its ledger shall be, and begin a new ledger."""
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / policy.name
    shutil.copyfile(policy, copy)
    ledger = load_policy(copy).ledger
    for old in folder.glob(f"{ledger.name}*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()  # models that were sent
    return copy


def print_ledger(policy: Path) -> None:
    """Say what the clients' own ledger holds: the truth about what was spent."""
    path = load_policy(policy).ledger
    with Ledger.open(path, read_only=True) as ledger:
        accounts = ledger.data_ids()
        spent = [
            amount.spent(unit)
            for account in accounts
            for unit, amount in ledger.totals(account).items()
        ]
    if spent:
        most = max(spent, key=lambda total: total.epsilon)
        clients = {account.partition("#")[0] for account in accounts}
        print(f"simulation: the ledger has {len(clients)} clients, the most spent is {most}")
    print(f"wrote {path}", flush=True)


def data_source(given: str) -> str:
    """Return what ``--data`` names: the built-in digits, or the whole path of a file."""
    if given == "digits":
        return given
    path = Path(given).resolve()
    if not path.is_file():
        raise typer.BadParameter(f"--data: there is no file {given}")
    return str(path)


def settings(given: Iterable[str] | None) -> dict[str, str]:
    """Read ``KEY=VALUE`` items of a command line."""
    found = {}
    for setting in given or ():
        name, equals, value = setting.partition("=")
        if not equals:
            raise typer.BadParameter(f"--set takes KEY=VALUE, got {setting!r}")
        found[name.strip()] = value.strip()
    return found


def stop_on_termination() -> None:
    """Turn SIGTERM into an interrupt, so that the SuperLink is stopped too, and no app keeps it.

    A SystemExit in a client's call would be that client's error reply, and the run would go on.
    """
    signal.signal(signal.SIGTERM, _stop)


def _stop(*_: object) -> None:
    raise KeyboardInterrupt
