"""Run the app and its baselines on this machine, from one command.

Everything runs in this process: server, clients, the same messages and the same gate. With
``--engine simulation`` it starts a private local SuperLink (own folder, free ports), submits the
app with ``flwr run`` as a user would, streams its log, and stops everything again. Flower users who
have a SuperLink can submit the app themselves: ``flwr run examples/signds --stream``.
"""

from __future__ import annotations

import re
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


def _copy_with(kind: str, folder: Path) -> Path:
    """Copy the app with another word after encrypt_train_type in its YAML file.

    Its package gets a name of its own, since one process imports a name once.
    """
    copy, package = folder / kind, f"signds_example_{kind.lower()}"
    shutil.copytree(APP, copy, ignore=shutil.ignore_patterns("outputs", "__pycache__"))
    (copy / "signds_example").rename(copy / package)
    for file in (copy / "pyproject.toml", *(copy / package).glob("*.py")):
        text = file.read_text(encoding="utf-8").replace("signds_example", package)
        file.write_text(text, encoding="utf-8")
    file = copy / package / "signds.yaml"
    text = file.read_text(encoding="utf-8")
    written = re.sub(r"(?m)^(  encrypt_train_type:) \w+$", rf"\1 {kind}", text)
    file.write_text(written, encoding="utf-8")
    return copy


def main(
    clients: Annotated[int, typer.Option(min=2, help="Simulated clients.")] = 50,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds, of each run; by default the app's own number."),
    ] = None,
    baseline: Annotated[
        bool, typer.Option(help="Also train with unprotected FedAvg, to compare with.")
    ] = True,
    codeword: Annotated[bool, typer.Option(help="Also train with codewords.")] = False,
    dp_encrypt: Annotated[
        bool, typer.Option(help="Also train with clipped updates and Gaussian noise.")
    ] = False,
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
    """Train with SignDS, and with other types to compare; print tables, draw a plot.

    Example: python examples/signds/run.py --clients 100 --data mnist.npz --set local-steps=20
    """
    stop_on_termination()
    output = output.resolve()
    config = {"data": f'"{data_source(data)}"', "output-dir": f'"{output}"'}
    config |= settings(set_)
    if rounds is not None:
        config["num-server-rounds"] = str(rounds)
    for old in (*output.glob("*-history.json"), *output.glob("history.png")):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="signds-") as scratch:
        folder = Path(scratch)
        policy = policy_in(output, POLICY)
        with engine_for(engine, folder / "flower", policy, workers) as submit:
            for kind, wanted in {
                "NOT_ENCRYPT": baseline,
                "DP_ENCRYPT": dp_encrypt,
                "CODEWORD": codeword,
                "SIGNDS": True,
            }.items():
                if wanted:
                    print(kind, flush=True)
                    submit(_copy_with(kind, folder), clients, config, verbose=verbose)
    print_ledger(policy)


if __name__ == "__main__":
    typer.run(main)
