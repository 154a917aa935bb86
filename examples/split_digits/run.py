"""Run the app on this machine, in one of three ways.

``process``     everything in this process: no engine, the same messages and the same gate
``simulation``  Flower's simulation engine, one virtual node for each party
``nodes``       a SuperLink and two SuperNodes, each a process with its own half of the images,
                its own policy and its own ledger, as two institutions would run them
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from flwr.app import Context, RecordDict

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.strategies import LocalExchange

APP = Path(__file__).resolve().parent
SIDES = ("left", "right")
POLICY = """# {side}: this party's word on what may be released. See docs/policy.md.
data_id: digits-{side}
ledger: ledger.sqlite
mode: {mode}
messages:
  # The bottom is trained on the records, so both are conditional on it, and allowed by name.
  train.forward: &allowed
    "embedding_dp:conditional": {{epsilon: 2000.0, unit: example}}
    "codebook_embedding:conditional": {{epsilon: 8.0, unit: example}}
  evaluate.forward: *allowed
budgets:
  example:
    life: {{epsilon: 100000.0}}
"""


class Engine(str, Enum):
    """How parties and server run."""

    PROCESS = "process"
    SIMULATION = "simulation"
    NODES = "nodes"


def _policy(folder: Path, side: str, mode: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "policy.yaml"
    path.write_text(POLICY.format(side=side, mode=mode), encoding="utf-8")
    Ledger.open(folder / "ledger.sqlite", create=True).close()
    return path


def in_process(config: dict[str, Any], folder: Path) -> None:
    """Call the parties' app directly."""
    sys.path.insert(0, str(APP))
    from split_digits import client_app, server_app

    parties = {}
    for number, side in enumerate(SIDES):
        node = {
            "side": side,
            "party-folder": str(folder),
            "ldp-policy": str(_policy(folder / f"owner-{side}", side, "deployment")),
        }
        context = Context(
            run_id=1,
            node_id=number + 1,
            node_config=node,
            state=RecordDict(),
            run_config=config,
        )
        parties[number + 1] = (client_app.app, context)
    server_app.run(LocalExchange(parties), config)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextlib.contextmanager
def _process(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    """Keep a process running, and stop it with all that it started."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=15)


def _wait_for(port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise SystemExit(f"the SuperLink did not start:\n{log.read_text(errors='replace')}")


def with_flower(config: dict[str, Any], folder: Path, *, nodes: bool) -> None:
    """Submit the app to a SuperLink of its own, with virtual nodes or with SuperNodes."""
    port, control, *own = _free_ports(4)
    home = folder / "flower"
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n",
        encoding="utf-8",
    )
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    superlink = ["flower-superlink", "--insecure", "--isolation", "subprocess"]
    superlink += ["--disable-runtime-dependency-installation", "--host", "127.0.0.1"]
    superlink += ["--port", str(port), "--control-api-address", f"127.0.0.1:{control}"]
    with contextlib.ExitStack() as running:
        if nodes:
            running.enter_context(_process(superlink, environment, home / "superlink.log"))
            _wait_for(port, home / "superlink.log")
            for side, listening in zip(SIDES, own, strict=True):
                policy = _policy(folder / f"owner-{side}", side, "deployment")
                settings = f'side="{side}" party-folder="{folder}" ldp-policy="{policy}"'
                command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"]
                command += ["--port", str(listening), "--node-config", settings]
                running.enter_context(_process(command, environment, home / f"{side}.log"))
        else:
            policy = _policy(folder / "owners", "both", "simulation")
            environment["FLOWER_LDP_POLICY"] = str(policy)
            superlink.append("--simulation")
            running.enter_context(_process(superlink, environment, home / "superlink.log"))
            _wait_for(port, home / "superlink.log")
        _submit(environment, {**config, "party-folder": str(folder)}, nodes=nodes)


def _submit(environment: dict[str, str], config: dict[str, Any], *, nodes: bool) -> None:
    command = ["flwr", "run", str(APP), "--stream"]
    if not nodes:
        command += ["--federation-config", "num-supernodes=2 client-resources-num-cpus=1"]
    for name, value in config.items():
        text = f'"{value}"' if isinstance(value, str) else str(value)
        command += ["--run-config", f"{name}={text}"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        tail: list[str] = []
        finished = False
        for line in process.stdout or ():
            tail = [*tail[-60:], line]
            if re.match(r"(epoch|party|epsilon|no mechanism|finished)", line):
                print(line, end="", flush=True)
            finished = finished or line.startswith("finished")
        process.terminate()
    if not finished:
        raise SystemExit("the run did not finish; its last lines:\n" + "".join(tail))


def _config(set_: list[str]) -> dict[str, Any]:
    """Return the app's configuration, with what the command line changes."""
    text = (APP / "pyproject.toml").read_text(encoding="utf-8")
    lines = text.partition("[tool.flwr.app.config]")[2].splitlines()
    pairs = (line.partition("#")[0].partition("=") for line in lines)
    config = {name.strip(): _value(value) for name, equals, value in pairs if equals}
    for setting in set_:
        name, equals, value = setting.partition("=")
        if not equals or name.strip() not in config:
            raise typer.BadParameter(f"--set takes KEY=VALUE of {sorted(config)}, got {setting!r}")
        kind = type(config[name.strip()])
        config[name.strip()] = kind(value.strip())
    return config


def _value(text: str) -> str | int | float:
    text = text.strip()
    if text.startswith('"'):
        return text.strip('"')
    return float(text) if "." in text else int(text)


def _stop(*_: object) -> None:
    raise SystemExit("stopped")  # an exception, so that all processes are stopped too


def main(
    engine: Annotated[Engine, typer.Option(help="How parties and server run.")] = Engine.PROCESS,
    data: Annotated[
        str, typer.Option(help="'digits', or the path of an npz file in MNIST's layout.")
    ] = "digits",
    output: Annotated[Path | None, typer.Option(help="JSON file for the result.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE of the app's configuration; repeatable."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where bottoms, policies and ledgers stay; new if left out.")
    ] = None,
) -> None:
    """Train on two halves of each image; print loss, accuracy and what a record has cost.

    Example: python examples/split_digits/run.py --engine nodes --set mode=bits --set epochs=2
    """
    signal.signal(signal.SIGTERM, _stop)
    config = _config(set_ or [])
    config["data"] = data if data == "digits" else str(Path(data).resolve(strict=True))
    if output is not None:
        config["output"] = str(output.resolve())
    with tempfile.TemporaryDirectory(prefix="split-") as scratch:
        place = Path(scratch) if folder is None else folder.resolve()
        if engine is Engine.PROCESS:
            in_process(config, place)
        else:
            with_flower(config, place, nodes=engine is Engine.NODES)


if __name__ == "__main__":
    typer.run(main)
