"""The SignDS baseline (examples/signdsfl) on digits, 50 nodes: the default rule and the published.

The app as it is, in one process and with one ledger for all runs. The seed is that of the split and
of the initial weights; noise takes none. Runs that are there are not repeated.

    python benchmarks/baseline.py
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import statistics
import tempfile
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import _options as options
import typer
from _examples import EXAMPLES
from _runs import Run, Runs, groups

from flower_ldp.simulation import load_folder, run_in_process

APP = EXAMPLES / "signdsfl"
NODES, TOLD = 50, (10, 20, 30)
ROWS: dict[str, dict[str, Any]] = {
    "ours": {},
    "published": {"rule": "published"},
    "published, fixed step": {"rule": "published", "magnitude-epsilon": 0.0},
}


def train(changes: dict[str, Any], folder: str) -> Run:
    """Run the app once; return its rounds' accuracies, bytes and epsilons."""
    app = load_folder(APP, {**changes, "output-dir": folder})
    run_in_process(app.server, app.client, NODES, run_config=app.run_config, progress=False)
    rounds = json.loads(Path(folder, "history.json").read_text(encoding="utf-8"))["rounds"]
    return {
        "accuracy": rounds[-1]["accuracy"],
        "accuracy_by_round": [round(one["accuracy"], 4) for one in rounds],
        "epsilon_per_round": rounds[-1]["epsilon-round"],
        "epsilon_total": rounds[-1]["epsilon-total"],
        "payload_bytes": rounds[-1]["bytes-up"],
        "rejected_reports": sum(one.get("rejected", 0) for one in rounds),
    }


def summary(runs: list[Run]) -> list[Run]:
    """Return mean and deviation of each row's runs after some rounds, and the largest fall."""
    made = []
    for group in groups(runs, lambda run: run["row"]):
        mine = [one["accuracy_by_round"] for one in group]
        line: Run = {"row": group[0]["row"], "seeds": len(mine)}
        for at in TOLD:
            found = [one[at] for one in mine]
            line[f"accuracy_mean_{at}"] = round(statistics.mean(found), 4)
            line[f"accuracy_standard_deviation_{at}"] = round(statistics.pstdev(found), 4)
        falls = [before - after for one in mine for before, after in pairwise(one)]
        made.append(line | {"largest_fall_in_a_round": round(max(falls), 4)})
    return made


def main(
    seeds: options.Seeds = 5,
    only: options.Only = None,
    output: options.Output = options.RESULTS / "signdsfl.json",
) -> None:
    """Train by each rule with each seed, and write means and spreads."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    runs = Runs(output, summary)
    names = [name for name in ROWS if not only or name in only]
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder, "policy.yaml")
        policy.write_text((APP / "simulation_policy.yaml").read_text(encoding="utf-8"))
        os.environ["FLOWER_LDP_POLICY"] = str(policy)
        for seed, name in itertools.product(range(1, seeds + 1), names):
            changes = {"seed": seed, **ROWS[name]}
            runs.make({"row": name, **changes}, partial(train, changes, folder))
    runs.show()


if __name__ == "__main__":
    typer.run(main)
