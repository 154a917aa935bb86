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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import _options as options
import torch
import typer
from _hospital_rivals import RIVALS, Asked
from _runs import Run, Runs, groups, like, spread
from hospitals import ROWS, source

#: What all rivals of one kind are asked for: the plan at an epsilon of 1, and steps without noise.
ASKED = {
    "cancer": Asked(ROWS["cancer"][0].plan, 50, 0.25),
    "cifar": Asked(ROWS["cifar"][0].plan, 50, 3.0, rows=600),
    "mnist": Asked(ROWS["mnist"][0].plan, 50, 1.0, rows=600),
}


def summary(runs: list[Run], evaluate_on: str) -> list[Run]:
    """Return mean and spread of each rival's runs, by data and epsilon."""
    made = []
    kept = ("unit", "epsilon_true", "epsilon_stated", "verdict", "good_would_be")
    about = ("row", "data", "epsilon")
    for mine in groups(like(runs, evaluated_on=evaluate_on), lambda run: [run[k] for k in about]):
        first = mine[0]
        of_it = {key: first[key] for key in kept if key in first}
        made.append({key: first[key] for key in about} | spread(mine) | of_it)
    return made


def main(
    kind: Annotated[str, typer.Argument(help=f"{', '.join(ASKED)}.")],
    path: Annotated[Path | None, typer.Option("--data", help="An npz file of images.")] = None,
    cache: options.Cache = None,
    seeds: options.Seeds = 5,
    epsilon: Annotated[float, typer.Option(help="Of all rounds together.")] = 1.0,
    only: options.Only = None,
    changes: options.Changes = None,
    evaluate_on: options.EvaluateOn = "test",
    output: options.Output = options.RESULTS / "hospital_rivals.json",
) -> None:
    """Train each rival with each seed, and write means and spreads."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if kind not in ASKED:
        raise typer.BadParameter(f"name one of {', '.join(ASKED)}")
    made = source(kind, path, cache, evaluate_on)
    asked = options.changed(ASKED[kind], changes)
    asked = replace(asked, plan=replace(asked.plan, epsilon=epsilon))
    runs = Runs(output, lambda found: summary(found, evaluate_on))
    for seed in range(1, seeds + 1):
        sites = made(seed)
        for name in [name for name in RIVALS if not only or name in only]:
            one: Run = {"row": name, "data": kind, "seed": seed, "epsilon": epsilon}
            one |= {"evaluated_on": evaluate_on, "steps": [asked.steps, asked.rate, asked.rows]}
            runs.make(one, partial(RIVALS[name], sites, asked))
    runs.show()


if __name__ == "__main__":
    typer.run(main)
