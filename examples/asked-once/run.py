"""Run the app and a baseline on this machine, from one command.

Everything runs in this process: server, clients, the same messages and the same gate. With
``--engine simulation`` it starts a private local SuperLink (own folder, free ports), submits the
app with ``flwr run`` as a user would, streams its log, and stops everything again. Flower users who
have a SuperLink can submit the app themselves: ``flwr run examples/asked-once --stream``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

APP = Path(__file__).resolve().parent
sys.path.insert(0, str(APP.parent))

from _engines import Engine, EngineOption, WorkersOption, engine_for  # noqa: E402
from _runner import data_source, policy_in, print_ledger, settings, stop_on_termination  # noqa: E402

POLICY = APP / "simulation_policy.yaml"


def _copy_with(client: str, folder: Path) -> Path:
    """Copy the app with its client exchanged for another of its modules."""
    copy = folder / client
    shutil.copytree(APP, copy, ignore=shutil.ignore_patterns("outputs", "__pycache__"))
    project = copy / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    private = "asked_once_example.client_app:app"
    if text.count(private) != 1:
        raise SystemExit(f"{project} does not name {private} once")
    project.write_text(text.replace(private, f"asked_once_example.{client}:app"), encoding="utf-8")
    return copy


def main(
    clients: Annotated[int, typer.Option(min=2, help="Simulated clients.")] = 480,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds, of each run; by default the app's own number."),
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
    engine: EngineOption = Engine.PROCESS,
    workers: WorkersOption = None,
    verbose: Annotated[bool, typer.Option(help="Show Flower's whole log.")] = False,
) -> None:
    """Ask each client once, at a total epsilon of 8; print tables, draw a plot beside FedAvg.

    Example: python examples/asked-once/run.py --clients 5000 --data mnist.npz
    """
    stop_on_termination()
    output = output.resolve()
    config = {"data": f'"{data_source(data)}"', "output-dir": f'"{output}"'}
    config |= settings(set_)
    if rounds is not None:
        config["num-server-rounds"] = str(rounds)
    for old in (*output.glob("*-history.json"), *output.glob("history.png")):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="asked-once-") as scratch:
        folder = Path(scratch)
        policy = policy_in(output, POLICY)
        with engine_for(engine, folder / "flower", policy, workers) as submit:
            if baseline:
                print("FedAvg without protection", flush=True)
                copy = _copy_with("unprotected_client_app", folder)
                setting = {**config, "strategy": '"fedavg"'}
                submit(copy, clients, setting, verbose=verbose)
            print("Codewords, each client asked once", flush=True)
            submit(APP, clients, config, verbose=verbose)
    print_ledger(policy)


if __name__ == "__main__":
    typer.run(main)
