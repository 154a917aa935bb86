"""Train on labels that clients randomize once, in four ways, and without privacy to compare.

Runs the app once for each method, in this process; with ``--engine simulation`` by ``flwr run`` on
a private local SuperLink that is stopped at the end. Within a seed the private runs share the
clients' ledger: the first randomizes the labels, the others find them there and pay nothing. Only
``lp-2st``, which randomizes them in another way, has a ledger of its own. Flower users who have a
SuperLink can submit the app themselves: ``flwr run examples/label-dp --stream``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

APP = Path(__file__).resolve().parent
sys.path[:0] = [str(APP.parent), str(APP)]

from _engines import Engine, EngineOption, Submit, WorkersOption, engine_for  # noqa: E402
from _runner import data_source, policy_in, print_ledger, settings, stop_on_termination  # noqa: E402
from label_dp_example import report  # noqa: E402

METHODS = ("no-privacy", "plain", "forward", "local-priors", "lp-2st")
POLICY = APP / "label_policy.yaml"
#: From a folder for files of its own and a policy to what runs apps.
Start = Callable[[Path, Path], AbstractContextManager[Submit]]


def _unprotected_copy(folder: Path) -> Path:
    """Copy the app with its client exchanged for the one that trains on true labels."""
    copy = folder / "unprotected"
    shutil.copytree(APP, copy, ignore=shutil.ignore_patterns("outputs", "__pycache__"))
    project = copy / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    private = "label_dp_example.client_app:app"
    if text.count(private) != 1:
        raise SystemExit(f"{project} does not name {private} once")
    project.write_text(
        text.replace(private, "label_dp_example.unprotected_client_app:app"), encoding="utf-8"
    )
    return copy


def _compare(
    chosen: list[str],
    policy: Path,
    clients: int,
    config: dict[str, str],
    *,
    start: Start,
    verbose: bool,
) -> None:
    """Run each method once on the same data, and on the same randomized labels."""
    config = {**config, "output-dir": f'"{policy.parent}"'}
    with (
        tempfile.TemporaryDirectory(prefix="label-dp-") as scratch,
        start(Path(scratch) / "flower", policy) as submit,
    ):
        for name in chosen:
            print(f"{name}, seed {config['seed']}", flush=True)
            app = _unprotected_copy(Path(scratch)) if name == "no-privacy" else APP
            own = {**config, "method": f'"{name}"'}
            submit(app, clients, own, verbose=verbose)
            if name != "no-privacy":
                print_ledger(policy)


def main(
    clients: Annotated[int, typer.Option(min=2, help="Simulated clients.")] = 10,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of training; by default the app's number.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(METHODS)}; repeatable, all by default.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat all with seeds 1, 2, ...")] = 1,
    data: Annotated[
        str, typer.Option(help="'digits', or the path of an npz file in MNIST's layout.")
    ] = "digits",
    policy: Annotated[Path, typer.Option(exists=True, help="What the data owners allow.")] = POLICY,
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
    """Train by each method; print a table, write a history, draw a plot.

    Example: python examples/label-dp/run.py --data mnist.npz --clients 50 --set clusters=300
    """
    stop_on_termination()
    chosen = list(method or METHODS)
    if not {*chosen} <= {*METHODS} or len({*chosen}) < len(chosen):
        raise typer.BadParameter(f"--method takes each of {', '.join(METHODS)} at most once")
    config = {"data": f'"{data_source(data)}"'} | settings(set_)
    if rounds is not None:
        config["num-server-rounds"] = str(rounds)
    output = output.resolve()
    for old in (*output.glob("seed-*/**/*.json"), *output.glob("history.*")):
        old.unlink()
    policies: dict[tuple[str, int], Path] = {}
    for seed in range(1, seeds + 1):
        for group in ([m for m in chosen if m != "lp-2st"], [m for m in chosen if m == "lp-2st"]):
            if not group:
                continue
            # A new ledger: these labels are randomized for one experiment and no other.
            folder = output / f"seed-{seed}" / ("lp-2st" if "lp-2st" in group else "")
            own_policy = policy_in(folder, policy)
            own = {**config, "seed": str(seed)}
            start = partial(engine_for, engine, workers=workers)
            _compare(group, own_policy, clients, own, start=start, verbose=verbose)
            policies |= {(name, seed): own_policy for name in group}
    report.publish(output, chosen, policies)


if __name__ == "__main__":
    typer.run(main)
