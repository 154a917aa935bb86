"""What else five hospitals could take, at an epsilon of 1: on the sites of ``hospitals.py``.

``cancer``, ``cifar`` and ``mnist`` are the data, sites and model of that benchmark, twenty rounds
and delta 1e-5. Of each rival the file has the unit that its epsilon is about, the noise, and the
true epsilon of all rounds together for one such unit replaced (the patient's for FL4Health, the
site's for the others).

``FedAvg``              without privacy
``LocalDpMod as told``  Flower's mod with its epsilon and the clipping length as sensitivity
``LocalDpMod``          the same with noise for that epsilon in truth
``central DP``          Flower's strategy at client level; the server sees each site's update
``FL4Health``           Opacus at each site, epsilon by its formula: a row added or removed
``SignDS, codewords``   what the advisor plans for five clients, with its verdict

Clients without noise of their own take 50 steps a round: on all rows as
``unprotected_client_app.py`` does, and of images on 600 at random. Their step size for images was
chosen without privacy on a tenth of the training rows; FL4Health has the steps and the step size of
the plan that it is compared with. The clipping length is 1, as in ``hospitals.py``.

    python benchmarks/hospital_rivals.py cancer
    python benchmarks/hospital_rivals.py cifar --data cifar10-features.npz
    python benchmarks/hospital_rivals.py mnist --data mnist.npz --cache mnist-strokes.npz
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from _environment import write_report
from _hospital_clients import Asked
from _hospital_rivals import RIVALS
from _runs import Changes, EvaluateOn, Run, Seeds, changed, earlier, is_known, spread, told
from hospitals import ROWS, source

HERE = Path(__file__).resolve().parent
#: What all rivals of one kind are asked for: the plan at an epsilon of 1, and steps without noise.
ASKED = {
    "cancer": Asked(ROWS["cancer"][0].plan, 50, 0.25),
    "cifar": Asked(ROWS["cifar"][0].plan, 50, 3.0, rows=600),
    "mnist": Asked(ROWS["mnist"][0].plan, 50, 1.0, rows=600),
}


def summary(runs: list[Run], evaluate_on: str) -> list[dict[str, Any]]:
    """Return mean and spread of each rival's runs, by data and epsilon."""
    made = []
    kept = ("unit", "epsilon_true", "epsilon_stated", "verdict", "good_would_be")
    for row, data, epsilon in {(one["row"], one["data"], one["epsilon"]): None for one in runs}:
        wanted = {"row": row, "data": data, "epsilon": epsilon}
        same = wanted | {"evaluated_on": evaluate_on}
        mine = [one for one in runs if same.items() <= one.items()]
        if mine:
            of_it = {key: mine[0][key] for key in kept if key in mine[0]}
            made.append(wanted | spread(mine) | of_it)
    return made


def main(
    kind: Annotated[str, typer.Argument(help=f"{', '.join(ASKED)}.")],
    path: Annotated[Path | None, typer.Option("--data", help="An npz file of images.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Where features of mnist are kept.")] = None,
    seeds: Seeds = 5,
    epsilon: Annotated[float, typer.Option(help="Of all rounds together.")] = 1.0,
    only: Annotated[list[str] | None, typer.Option(help="Rivals, by name; repeatable.")] = None,
    changes: Changes = None,
    evaluate_on: EvaluateOn = "test",
    output: Annotated[Path, typer.Option(help="Results file, kept up to date.")] = HERE
    / "results"
    / "hospital_rivals.json",
) -> None:
    """Train each rival with each seed, and write means and spreads."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if kind not in ASKED:
        raise typer.BadParameter(f"name one of {', '.join(ASKED)}")
    made, command = source(kind, path, cache, evaluate_on)
    asked = changed(ASKED[kind], changes)
    asked = replace(asked, plan=replace(asked.plan, epsilon=epsilon))
    command += [f"--set {item}" for item in changes or []]
    runs = earlier(output)
    for seed in range(1, seeds + 1):
        sites = made(seed)
        for name, rival in RIVALS.items():
            one: Run = {"row": name, "data": kind, "seed": seed, "epsilon": epsilon}
            one |= {"evaluated_on": evaluate_on, "steps": [asked.steps, asked.rate, asked.rows]}
            if (only and name not in only) or is_known(one, runs):
                continue
            began = time.process_time()
            one |= rival(sites, asked)
            one["processor_seconds"] = round(time.process_time() - began, 1)
            one["command"] = " ".join(["python", "benchmarks/hospital_rivals.py", *command])
            runs.append(one)
            said = f"{name:<18} seed {seed}: {one['accuracy']:.4f}"
            print(f"{said}, {one['processor_seconds']} s", flush=True)
            body = {"summary": summary(runs, evaluate_on), "runs": runs}
            write_report(output, "benchmarks/hospital_rivals.py", command, body)
    for line in summary(runs, evaluate_on):
        true = f"epsilon {line.get('epsilon_true')}"
        print(f"{line['data']:<7} {told(line)}, {true}")


if __name__ == "__main__":
    typer.run(main)
