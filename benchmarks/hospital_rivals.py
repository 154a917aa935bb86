"""What else five hospitals could take, at an epsilon of 1: on the sites of ``hospitals.py``.

Scikit-learn's breast cancer data, 91 patients at each of five sites, the layer and the scaling of
``examples/hospitals``, twenty rounds, delta 1e-5. Of each rival the file has the unit that its
epsilon is about, the noise, and the true epsilon of all rounds together for one such unit replaced
(the patient's for FL4Health, the site's for the others).

``FedAvg``              without privacy
``LocalDpMod as told``  Flower's mod with its epsilon and the clipping length as sensitivity
``LocalDpMod``          the same with noise for that epsilon in truth
``central DP``          Flower's strategy at client level; the server sees each site's update
``FL4Health``           Opacus at each site, epsilon by its formula: a row added or removed
``SignDS, codewords``   what the advisor plans for five clients, with its verdict

Clients without noise of their own take 50 steps a round, as ``unprotected_client_app.py`` does. The
clipping length is 1, as in ``hospitals.py``; none was tuned.

    python benchmarks/hospital_rivals.py
"""

from __future__ import annotations

import logging
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from _environment import write_report
from _hospital_rivals import RIVALS, Asked
from _runs import EvaluateOn, Run, Seeds, earlier, is_known
from hospitals import cancer

HERE = Path(__file__).resolve().parent


def summary(runs: list[Run], epsilon: float) -> list[dict[str, Any]]:
    """Return mean and spread of each rival's runs."""
    made = []
    for name in RIVALS:
        mine = [one for one in runs if (one["row"], one["epsilon"]) == (name, epsilon)]
        if not mine:
            continue
        found = [one["accuracy"] for one in mine]
        kept = ("unit", "epsilon_true", "epsilon_stated", "verdict", "good_would_be")
        made.append(
            {
                "row": name,
                "accuracy_mean": round(statistics.mean(found), 4),
                "accuracy_standard_deviation": round(statistics.pstdev(found), 4),
                "seeds": len(mine),
                **{key: mine[0][key] for key in kept if key in mine[0]},
            }
        )
    return made


def main(
    seeds: Seeds = 5,
    epsilon: Annotated[float, typer.Option(help="Of all rounds together.")] = 1.0,
    only: Annotated[list[str] | None, typer.Option(help="Rivals, by name; repeatable.")] = None,
    evaluate_on: EvaluateOn = "test",
    output: Annotated[Path, typer.Option(help="Results file, kept up to date.")] = HERE
    / "results"
    / "hospital_rivals.json",
) -> None:
    """Train each rival with each seed, and write means and spreads."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    runs = earlier(output)
    for seed in range(1, seeds + 1):
        sites = cancer(evaluate_on, seed)
        for name, rival in RIVALS.items():
            one: Run = {"row": name, "seed": seed, "epsilon": epsilon, "evaluated_on": evaluate_on}
            if (only and name not in only) or is_known(one, runs):
                continue
            began = time.process_time()
            one |= rival(sites, Asked(epsilon, rounds=20, rate=0.5))
            one["processor_seconds"] = round(time.process_time() - began, 1)
            runs.append(one)
            said = f"{name:<18} seed {seed}: {one['accuracy']:.4f}"
            print(f"{said}, {one['processor_seconds']} s", flush=True)
            body = {"summary": summary(runs, epsilon), "runs": runs}
            command = ["--evaluate-on", evaluate_on]
            write_report(output, "benchmarks/hospital_rivals.py", command, body)
    for line in summary(runs, epsilon):
        mean, spread = (100 * line[f"accuracy_{of}"] for of in ("mean", "standard_deviation"))
        print(f"{line['row']:<18} {mean:.1f} ± {spread:.1f} %, epsilon {line.get('epsilon_true')}")


if __name__ == "__main__":
    typer.run(main)
