"""Run the app and what it is compared with on this machine, from one command.

``--engine process`` runs server and clients in this process: the same messages and the same gate.
``--engine simulation`` submits the apps with ``flwr run`` to a SuperLink of its own. ``--engine
nodes`` runs the private training so that each hospital is a SuperNode with a policy and a ledger of
its own, and what it is compared with in this process.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

APP = Path(__file__).resolve().parent
sys.path[:0] = [str(APP), str(APP.parent)]

import _engines  # noqa: E402
from _report import print_ledgers, publish  # noqa: E402
from _runner import (  # noqa: E402
    flower_environment,
    follow,
    free_ports,
    policy_in,
    running,
    settings,
    stop_on_termination,
    superlink,
)

from flower_ldp.accounting.ledger import Ledger  # noqa: E402
from flower_ldp.policy import load_policy  # noqa: E402

POLICY = APP / "simulation_policy.yaml"
SITES = 5


class Engine(str, Enum):
    """Where hospitals and server run."""

    PROCESS = "process"
    SIMULATION = "simulation"
    NODES = "nodes"


def _without_gate(folder: Path) -> Path:
    """Copy the app with its client exchanged for the one without privacy."""
    copy = folder / "unprotected"
    shutil.copytree(APP, copy, ignore=shutil.ignore_patterns("outputs", "__pycache__"))
    project = copy / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    private, plain = (
        "hospitals_example.client_app:app",
        "hospitals_example.unprotected_client_app:app",
    )
    if text.count(private) != 1:
        raise SystemExit(f"{project} does not name {private} once")
    project.write_text(text.replace(private, plain), encoding="utf-8")
    return copy


def _hospital(folder: Path, site: int) -> tuple[Path, Path]:
    """Make a hospital's own policy and empty ledger, both real, and return where they are."""
    policy = policy_in(folder, POLICY)
    text = policy.read_text(encoding="utf-8")
    for simulated, real in (
        ("mode: simulation", "mode: deployment"),
        ("data_id: ward", f"data_id: ward-{site}"),
    ):
        if text.count(simulated) != 1:
            raise SystemExit(f"{POLICY} does not say {simulated!r} once")
        text = text.replace(simulated, real)
    policy.write_text(text, encoding="utf-8")
    ledger = load_policy(policy).ledger
    Ledger.open(ledger, create=True).close()
    return policy, ledger


def _with_nodes(folder: Path, output: Path, config: dict[str, str], *, verbose: bool) -> list[Path]:
    """Run the private training with a SuperNode for each hospital; return their ledgers."""
    port, control, *listening = free_ports(2 + SITES)
    home, ledgers = folder / "nodes", list[Path]()
    environment = {"OMP_NUM_THREADS": "1", **flower_environment(home, port)}
    environment.pop("FLOWER_LDP_POLICY", None)  # each hospital has its own
    with contextlib.ExitStack() as processes:
        link = superlink(port, control, environment, home / "superlink.log", simulation=False)
        processes.enter_context(link)
        for site, own in enumerate(listening):
            policy, ledger = _hospital(output / f"hospital-{site}", site)
            ledgers.append(ledger)
            node = f'ldp-policy="{policy}" partition-id={site} num-partitions={SITES}'
            command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"]
            command += ["--port", str(own), "--node-config", node]
            processes.enter_context(running(command, environment, home / f"site-{site}.log"))
        follow(
            APP, environment, 0, config, "wrote ", lambda line: verbose or line.startswith("round ")
        )
    return ledgers


def main(
    baselines: Annotated[
        bool, typer.Option(help="Also train without privacy, and each site alone.")
    ] = True,
    output: Annotated[Path, typer.Option(help="Folder for histories and the plot.")] = APP
    / "outputs",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="KEY=VALUE of the app's configuration in pyproject.toml; repeatable."
        ),
    ] = None,
    engine: Annotated[
        Engine,
        typer.Option(
            help="This process, without Ray; Flower's simulation engine (which needs the extra "
            "simulation); or a SuperNode for each hospital."
        ),
    ] = Engine.PROCESS,
    workers: _engines.WorkersOption = None,
    verbose: Annotated[bool, typer.Option(help="Show Flower's whole log.")] = False,
) -> None:
    """Train on five hospitals' patients, at an epsilon of 1 per patient; print table and ledgers.

    Example: python examples/hospitals/run.py --engine nodes
    """
    stop_on_termination()
    output = output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    config = {"output-dir": f'"{output}"', **settings(set_)}
    alone = {**config, "sites": '"alone"'}
    for old in (*output.glob("*-history.json"), *output.glob("history.png")):
        old.unlink()
    ledgers = []
    with tempfile.TemporaryDirectory(prefix="hospitals-") as scratch:
        folder = Path(scratch)
        together = max(2, workers or 2) if baselines else workers
        where = _engines.Engine("process" if engine is Engine.NODES else engine.value)
        with _engines.engine_for(
            where, folder / "flower", policy_in(output, POLICY), together
        ) as submit:
            if baselines:
                plain = _without_gate(folder)
                print("FedAvg without privacy", flush=True)
                submit(plain, SITES, {**config, "title": '"fedavg"'}, verbose=verbose)
                print("Each site alone, without privacy", flush=True)
                submit(plain, SITES, {**alone, "title": '"alone"'}, verbose=verbose)
            print("DP-SGD at five sites", flush=True)
            if engine is Engine.NODES:
                ledgers = _with_nodes(folder, output, config, verbose=verbose)
            else:
                submit(APP, SITES, config, verbose=verbose)
                ledgers = [output / "simulation-ledger.sqlite"]
        if baselines:
            print("DP-SGD at each site alone", flush=True)
            # Another world, with a ledger of its own: there these patients paid for this alone.
            # Its clients are other processes, since a process keeps the policy that it began with.
            policy = policy_in(output / "alone", POLICY)
            apart = max(2, workers or 2)
            with _engines.engine_for(where, folder / "second", policy, apart) as submit:
                submit(APP, SITES, {**alone, "title": '"dpsgd-alone"'}, verbose=verbose)
    publish(output)
    print_ledgers(ledgers)


if __name__ == "__main__":
    typer.run(main)
