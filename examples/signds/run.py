"""Run the app and its unprotected FedAvg baseline on this machine, from one command.

Starts a private local SuperLink (own folder, free ports), submits the app with ``flwr
run`` as a user would, streams its log, and stops everything again. Flower users who have
a SuperLink can submit the app themselves: ``flwr run examples/signds --stream``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.policy import load_policy

APP = Path(__file__).resolve().parent
POLICY = APP / "simulation_policy.yaml"
_START_SECONDS = 60


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextlib.contextmanager
def local_superlink(home: Path, policy: Path) -> Iterator[dict[str, str]]:
    """Run a simulation SuperLink whose clients obey a policy.

    Yields the environment that ``flwr run`` needs to find it.
    """
    port, control = _free_ports(2)
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\n'
        f'address = "127.0.0.1:{port}"\ninsecure = true\n',
        encoding="utf-8",
    )
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLOWER_LDP_POLICY": str(policy.resolve(strict=True)),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    log = home / "superlink.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *("flower-superlink", "--insecure", "--simulation"),
                *("--isolation", "subprocess", "--disable-runtime-dependency-installation"),
                *("--host", "127.0.0.1", "--port", str(port)),
                *("--control-api-address", f"127.0.0.1:{control}"),
            ],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_listening(port, process, log)
        yield environment
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise SystemExit(f"the local SuperLink did not start:\n{log.read_text(errors='replace')}")


def submit(
    app: Path,
    environment: dict[str, str],
    clients: int,
    config: dict[str, str],
    *,
    verbose: bool = False,
    last_line: str = "wrote ",
) -> None:
    """Run an app to its end, which it marks by a line that starts with ``last_line``."""
    command = ["flwr", "run", str(app), "--stream"]
    # One core per client at a time; Flower's default of two would leave half of them idle.
    command += ["--federation-config", f"num-supernodes={clients} client-resources-num-cpus=1"]
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
                if verbose or not _is_noise(line):
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


def _unprotected_copy(folder: Path) -> Path:
    """Copy the app with its client exchanged for the one without the gate."""
    copy = folder / "unprotected"
    shutil.copytree(APP, copy, ignore=shutil.ignore_patterns("outputs", "__pycache__"))
    settings = copy / "pyproject.toml"
    text = settings.read_text(encoding="utf-8")
    private = "signds_example.client_app:app"
    if text.count(private) != 1:
        raise SystemExit(f"{settings} does not name {private} once")
    settings.write_text(
        text.replace(private, "signds_example.unprotected_client_app:app"), encoding="utf-8"
    )
    return copy


def _policy_in(folder: Path) -> Path:
    """Copy the simulation's policy to where its ledger shall be, and begin a new ledger."""
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / POLICY.name
    shutil.copyfile(POLICY, copy)
    ledger = load_policy(copy).ledger
    for old in folder.glob(f"{ledger.name}*"):
        old.unlink()
    return copy


def _print_ledger(policy: Path) -> None:
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
        print(f"simulation: the ledger has {len(accounts)} clients, the most spent is {most}")
    print(f"wrote {path}", flush=True)


def _stop(*_: object) -> None:
    raise SystemExit("stopped")  # an exception, so that the SuperLink is stopped too


def main(
    clients: Annotated[int, typer.Option(min=2, help="Simulated clients.")] = 50,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds, of both runs; by default the app's own number."),
    ] = None,
    baseline: Annotated[
        bool, typer.Option(help="Also train with unprotected FedAvg, to compare with.")
    ] = True,
    data: Annotated[
        str, typer.Option(help="'digits', or the path of an npz file in MNIST's layout.")
    ] = "digits",
    output: Annotated[Path, typer.Option(help="Folder for histories and the plot.")] = APP
    / "outputs",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="KEY=VALUE of the app's configuration in pyproject.toml; repeatable."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option(help="Show Flower's whole log.")] = False,
) -> None:
    """Train with SignDS, and with unprotected FedAvg to compare; print a table, draw a plot.

    Example: python examples/signds/run.py --clients 100 --data mnist.npz --set local-steps=20
    """
    signal.signal(signal.SIGTERM, _stop)
    source = data if data == "digits" else str(Path(data).resolve(strict=True))
    output = output.resolve()
    config = {"data": f'"{source}"', "output-dir": f'"{output}"'}
    for setting in set_ or ():
        name, equals, value = setting.partition("=")
        if not equals:
            raise typer.BadParameter(f"--set takes KEY=VALUE, got {setting!r}")
        config[name.strip()] = value.strip()
    if rounds is not None:
        config["num-server-rounds"] = str(rounds)
    for old in (*output.glob("*-history.json"), *output.glob("history.png")):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="signds-") as scratch:
        folder = Path(scratch)
        policy = _policy_in(output)
        with local_superlink(folder / "flower", policy) as environment:
            if baseline:
                print("FedAvg without protection", flush=True)
                submit(
                    _unprotected_copy(folder),
                    environment,
                    clients,
                    {**config, "strategy": '"fedavg"'},
                    verbose=verbose,
                )
            print("SignDS", flush=True)
            submit(APP, environment, clients, config, verbose=verbose)
    _print_ledger(policy)


if __name__ == "__main__":
    typer.run(main)
