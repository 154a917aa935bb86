"""Train a clustering in private, score it in private, and compare with the truth.

Each client answers once in a run, trains or is evaluated: its total is one answer's, epsilon 8, and
its own ledger allows no second answer. For each protection of the predictions (Laplace noise,
codebook) the app runs once, with SignDS training and protected evaluation under one ledger: in this
process or, with ``--engine simulation``, through ``flwr run`` on a private local SuperLink.
Afterwards, and outside of the app, this script computes score and loss **without protection** from
the models of all rounds and the simulated clients' images. No server of a real federation can do
that; nothing in the app can either, since its gate refuses raw predictions.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

APP = Path(__file__).resolve().parent
sys.path[:0] = [str(APP.parent), str(APP)]

from _engines import Engine, EngineOption, WorkersOption, engine_for  # noqa: E402
from _runner import data_source, policy_in, print_ledger, settings, stop_on_termination  # noqa: E402

from flower_ldp.config import load_config  # noqa: E402

POLICY = APP / "simulation_policy.yaml"
PRIVATE = APP / "unsupervised_example" / "private.yaml"
PROTECTIONS = ("laplace", "codebook")


def main(
    clients: Annotated[
        int,
        typer.Option(min=4, help="Simulated clients: each is asked once, half of them to train."),
    ] = 2_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each with an evaluation.")] = 20,
    protection: Annotated[
        list[str] | None, typer.Option(help="'laplace' or 'codebook'; repeatable, both by default.")
    ] = None,
    data: Annotated[
        str, typer.Option(help="'digits', or the path of an npz file in MNIST's layout.")
    ] = "digits",
    private_config: Annotated[
        Path, typer.Option(exists=True, help="Mechanisms, as in configs/laplace_eval.yaml.")
    ] = PRIVATE,
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
    """Train and score in private; compare with the truth in a table and a plot.

    Example: python examples/unsupervised-eval/run.py --data mnist.npz --clients 8000
    """
    stop_on_termination()
    chosen = protection or list(PROTECTIONS)
    if not {*chosen} <= {*PROTECTIONS} or len({*chosen}) < len(chosen):
        raise typer.BadParameter(f"--protection takes each of {PROTECTIONS} at most once")
    if clients < 4 * rounds:
        raise typer.BadParameter(
            f"--clients must be at least {4 * rounds}: nobody is asked twice, and in each of "
            f"{rounds} rounds two train and two others are evaluated"
        )
    score = load_config(private_config).unsupervised.eval_type
    config = {"data": f'"{data_source(data)}"', "private-config": f'"{private_config.resolve()}"'}
    config |= {
        "num-server-rounds": str(rounds),
        "evaluated-each-round": str(clients // (2 * rounds)),
    }
    config |= settings(set_)
    # Here, since torch takes seconds to import and a wrong argument should not.
    from unsupervised_example import comparison

    histories = []
    for name in chosen:
        folder = output.resolve() / name
        for old in (*folder.glob("*.json"), *folder.glob("models/*.npz")):
            old.unlink()
        policy = policy_in(folder, POLICY)
        print(f"SignDS training, predictions through {name}", flush=True)
        # The other run's clients, if they were of this very process, hold on to their policy.
        sys.modules.pop("unsupervised_example.client_app", None)
        own = {"protection": f'"{name}"', "output-dir": f'"{folder}"'}
        with (
            tempfile.TemporaryDirectory(prefix="unsupervised-") as scratch,
            engine_for(engine, Path(scratch), policy, workers) as submit,
        ):
            submit(APP, clients, config | own, verbose=verbose)
        print_ledger(policy)
        histories.append(comparison.compare(folder, clients, score))
    comparison.publish(histories, output.resolve())


if __name__ == "__main__":
    typer.run(main)
